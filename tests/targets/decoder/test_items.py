"""Items: batches of encoder-only networks, in which every item is answered as alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from targets.decoder import DecoderFactory
from targets.models import find_model
from targets.protocol import BadInput, Request
from targets.registry import TargetSpec, build
from tests.targets.decoder.driving import assert_all_given_back, close, drain, logits, request, submit

ASKED = (request(1, 2, 3, new=3), request(9, new=5), request(*range(20, 60), new=2), request(7, 7, 8, new=1))


def factory_of(model: str) -> DecoderFactory:
    return DecoderFactory(find_model(model), name="encoder")


def alone(factory: DecoderFactory, asked: Request) -> torch.Tensor:
    """The logits [n, V] of an answer, each token of it with an item of its own."""
    network: Any = factory.network({})
    ids, rows = list(asked.prompt), []
    with torch.inference_mode():
        for _ in range(asked.max_new_tokens):
            rows.append(network(input_ids=torch.tensor([ids]), prompt_tokens=len(ids))[0, 0])
            ids.append(int(rows[-1].argmax()))
    return torch.stack(rows)


@pytest.mark.parametrize("settings", [{}, {"step_tokens_max": 4}, {"pad_batch": True}, {"slots": 1}], ids=repr)
@pytest.mark.parametrize("model", ["tiny-bert", "tiny-swin"])
def test_an_item_in_a_batch_is_answered_as_alone(model: str, settings: dict[str, Any]) -> None:
    factory = factory_of(model)
    decoder = factory.open(settings)
    events = [*submit(decoder, *ASKED), *drain(decoder)]
    for who, asked in enumerate(ASKED):
        assert close(logits(events, who), alone(factory, asked))
    assert_all_given_back(decoder)


def test_a_batch_is_as_wide_as_its_longest_item_and_holds_what_slots_held_before() -> None:
    decoder = factory_of("tiny-bert").open({"slots": 2})
    submit(decoder, request(1, 2, 3, 4, new=1), request(5, new=1))
    drain(decoder)
    submit(decoder, request(6, new=1), request(7, 8, 9, new=1), start=2)
    seen: list[torch.Tensor] = []
    decoder.network_hook = decoder.runner.network.register_forward_pre_hook(  # type: ignore[attr-defined]
        lambda _, __, named: seen.append(named["input_ids"]), with_kwargs=True
    )
    decoder.step()
    (batch,) = seen
    by_first = {int(row[0]): row.tolist() for row in batch}
    assert by_first[7] == [7, 8, 9]
    assert by_first[6] in ([6, 2, 3], [6, 1, 1]), "behind it stands what the last owner left, or the dirt"


def test_what_a_cell_is_filled_with_is_always_an_id() -> None:
    for poison in ("none", "low", "high"):
        decoder = factory_of("tiny-bert").open({"poison": poison})
        submit(decoder, request(1, new=1), request(1, 2, new=1))
        assert len(drain(decoder)) > 0
        assert decoder.runner.padding in (None, 0, 319)


def test_a_network_is_run_only_by_the_target_that_is_made_for_it() -> None:
    for target, model, wanted in (
        ("encoder", "tiny-t5", "an encoder-only network"),
        ("seq2seq", "tiny-bert", "an encoder and a decoder"),
        ("pictures", "tiny-bart", "a causal LM that sees pictures"),
        ("slots", "tiny-llava", "a causal LM"),
    ):
        with pytest.raises(BadInput) as caught:
            build(TargetSpec(target=target, model=model))
        assert str(caught.value) == f"model must be {wanted} for target {target}, got {model} (--model)"


def test_each_target_has_a_model_of_its_own_where_none_is_named() -> None:
    named = {target: build(TargetSpec(target=target)).identity.split()[0] for target in ("encoder", "seq2seq", "pictures")}
    assert named == {"encoder": "tiny-bert", "seq2seq": "tiny-t5", "pictures": "tiny-llava"}
