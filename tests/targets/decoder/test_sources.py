"""Sources and pictures: encoded once, shared by content, read by several, and let go by the last."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from targets.decoder import CrossingStore, Decoder, DecoderFactory, Shelf, SourceStore
from targets.models import find_model
from targets.protocol import Reason, Request, Setting
from tests.targets.decoder.driving import assert_all_given_back, cached, close, drain, logits, request, submit

ASKED = (request(1, 2, 3, new=3), request(9, new=5), request(*range(20, 60), new=2), request(1, 2, 3, new=4))
MODELS = (("seq2seq", "tiny-t5"), ("seq2seq", "tiny-bart"), ("pictures", "tiny-llava"))
FEATURES = torch.ones(2, 3)


def factory_of(target: str = "seq2seq", model: str = "tiny-t5") -> DecoderFactory:
    return DecoderFactory(find_model(model), name=target)


def store_of(decoder: Decoder) -> SourceStore:
    assert isinstance(decoder.store, SourceStore)
    return decoder.store


def alone(factory: DecoderFactory, asked: Request) -> torch.Tensor:
    """The logits [n, V] of an answer, without any cache."""
    network: Any = factory.network({})
    ids, rows = list(asked.prompt), []
    with torch.inference_mode():
        for _ in range(asked.max_new_tokens):
            rows.append(network(input_ids=torch.tensor([ids]), prompt_tokens=len(asked.prompt))[0, -1])
            ids.append(int(rows[-1].argmax()))
    return torch.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"step_tokens_max": 2}, {"pipelined": True}, {"slots": 1}, {"prefill": "alone"}], ids=repr
)
@pytest.mark.parametrize(("target", "model"), MODELS)
def test_whoever_shares_a_source_is_answered_as_alone(target: str, model: str, settings: dict[str, Setting]) -> None:
    factory = factory_of(target, model)
    decoder = factory.open(settings)
    events = [*submit(decoder, *ASKED), *drain(decoder)]
    for who, asked in enumerate(ASKED):
        assert close(logits(events, who), alone(factory, asked))
    decoder.step()  # what was in flight lands
    assert_all_given_back(decoder)
    assert all(not entry.users for entry in store_of(decoder).shelf.entries.values())


def encoded(decoder: Decoder) -> list[torch.Tensor]:
    """From now on, the sources that each forward of the encoder is given."""
    seen: list[torch.Tensor] = []

    def note(_: Any, __: Any, named: dict[str, Any]) -> None:
        if "lengths" in named:
            seen.append(named["input_ids"])

    decoder.runner.network.register_forward_pre_hook(note, with_kwargs=True)
    return seen


@pytest.mark.parametrize(("target", "model"), MODELS)
def test_a_source_that_several_bring_is_encoded_once(target: str, model: str) -> None:
    decoder = factory_of(target, model).open({})
    seen = encoded(decoder)
    submit(decoder, request(1, 2, new=4), request(1, 2, new=2), request(3, 4, new=1))
    decoder.step()
    submit(decoder, request(3, 4, new=1), start=3)
    drain(decoder)
    assert [batch.tolist() for batch in seen] == [[[1, 2], [3, 4]]]


def test_an_encoded_source_stands_for_all_tokens_of_the_prompt_but_the_last() -> None:
    decoder = factory_of().open({})
    events = [*submit(decoder, request(1, 2, 3, new=1)), *drain(decoder)]
    events += [*submit(decoder, request(1, 2, 3, new=1), request(1, 2, new=1), start=1), *drain(decoder)]
    assert cached(events) == {0: 0, 1: 2, 2: 0}


def test_sources_of_unlike_salts_are_kept_apart() -> None:
    decoder = factory_of().open({})
    seen = encoded(decoder)
    submit(decoder, request(1, 2, new=1, salt=0), request(1, 2, new=1, salt=1), request(1, 2, new=1, salt=0))
    drain(decoder)
    assert [batch.tolist() for batch in seen] == [[[1, 2], [1, 2]]]


def test_a_chunk_that_is_not_the_last_of_a_prompt_runs_nothing_of_the_decoder() -> None:
    decoder = factory_of().open({"step_tokens_max": 2})
    submit(decoder, request(1, 2, 3, new=1))
    decoder.step()
    assert decoder.runner.forwards == []
    assert decoder.store.lengths[0] == 2
    decoder.step()
    assert [len(feeds) for feeds, _ in decoder.runner.forwards] == [1]


def test_rows_are_read_with_their_newest_cells_side_by_side() -> None:
    decoder = factory_of().open({"slots": 2})
    submit(decoder, request(1, new=4), request(2, new=2))
    decoder.step(rows=(0,))
    decoder.step(rows=(0,))
    decoder.step()
    assert isinstance(decoder.store, CrossingStore)
    (feeds, starts) = decoder.runner.forwards[-1]
    rows = decoder.runner.place(feeds, starts)
    keys, _ = decoder.store.read(0, rows)
    longer, shorter = (0, 1) if int(rows.positions[0]) else (1, 0)
    cells = decoder.store.keys[0]
    assert rows.cells == 3
    assert torch.equal(keys[longer], cells[rows.slots[longer], :, :3])
    assert torch.equal(keys[shorter][:, -1], cells[rows.slots[shorter], :, 0])
    assert decoder.runner.masks(rows)["attention_mask"][shorter, 0, 0].tolist() == [False, False, True]


def test_a_request_that_is_cancelled_lets_its_source_go() -> None:
    decoder = factory_of().open({"step_tokens_max": 1})
    submit(decoder, request(1, 2, 3, new=1), request(1, 2, 3, new=1))
    decoder.step()
    decoder.cancel(0, Reason.CANCELLED)
    decoder.cancel(1, Reason.CANCELLED)
    assert store_of(decoder).shelf.entries == {}
    assert_all_given_back(decoder)


# The shelf by itself


def held(shelf: Shelf, slot: int, *content: int, made: bool = True) -> str:
    entry = shelf.hold(slot, content, None)
    if made and entry.features is None:
        shelf.put(entry, FEATURES.clone())
    return entry.name


def test_of_what_nobody_uses_the_one_unused_for_longest_goes() -> None:
    shelf = Shelf(unused_max=2)
    names = [held(shelf, slot, slot) for slot in range(4)]
    for slot in (2, 0, 3):
        shelf.release(slot)
    assert list(shelf.entries) == [names[1], names[0], names[3]]
    assert shelf.counts == {"sources_found": 0, "sources_dropped": 1}


def test_what_was_never_encoded_is_not_kept() -> None:
    shelf = Shelf(unused_max=2)
    held(shelf, 0, 1, made=False)
    shelf.release(0)
    assert shelf.entries == {}


def test_what_somebody_uses_stays_though_nothing_is_kept() -> None:
    shelf = Shelf(unused_max=0)
    name = held(shelf, 0, 1)
    assert held(shelf, 1, 1) == name
    shelf.release(0)
    assert list(shelf.entries) == [name]
    assert shelf.used_bytes() == FEATURES.nbytes
    shelf.release(1)
    assert shelf.entries == {}
    assert shelf.used_bytes() == 0


def test_an_account_names_who_uses_what_and_tells_a_write_by_its_digest() -> None:
    shelf = Shelf(unused_max=1)
    name = held(shelf, 3, 1)
    held(shelf, 1, 1)
    (before,) = shelf.account()
    assert (before.name, before.slots) == (f"{name} 0", (1, 3))
    shelf.held[1].made().mul_(2)
    (after,) = shelf.account()
    assert after.digest != before.digest
    held(shelf, 0, 2, made=False)
    assert [kept.digest for kept in shelf.account()][1:] == [""]
