from __future__ import annotations

from dataclasses import replace

import pytest

from targets.decoder import DECODERS, Decoder, DecoderFactory, PageStore, Parts, Pool
from targets.faults import FAULTS, Probe, planted
from targets.models import Model
from tests.targets.decoder.driving import drain, request, submit, tokens


def test_no_fault_at_all_leaves_the_parts_as_they_are() -> None:
    assert planted(()) == Parts(decoder=Decoder)


@pytest.mark.parametrize("name", FAULTS)
def test_planting_changes_only_the_parts_that_are_named_and_no_class(name: str) -> None:
    clean = DECODERS[FAULTS[name].targets[0]]
    before = replace(clean)
    parts = FAULTS[name].plant()
    for part in ("decoder", "scheduler", "store", "states", "planner", "drafter", "batch", "runner", "sampler"):
        changed = getattr(parts, part) is not getattr(clean, part)
        assert changed == (part in FAULTS[name].mixins), part
        assert issubclass(getattr(parts, part), getattr(clean, part))
    assert clean == before


def test_faults_combine_each_with_a_probe_of_its_own(tiny: Model) -> None:
    late, lost = Probe(), Probe()
    parts = FAULTS["late-token"].plant(FAULTS["token-lost-on-finish"].plant(probe=lost), late)
    decoder = DecoderFactory(tiny, parts).open({"slots": 1})
    streamed = tokens(submit(decoder, request(1, new=2), request(2, new=2)) + drain(decoder))
    assert {who: len(answer) for who, answer in streamed.items()} == {0: 1, 1: 1}
    assert (late.changed, lost.changed) == (1, 2)


def test_two_plantings_of_one_fault_do_not_share_a_probe(tiny: Model) -> None:
    first, second = Probe(), Probe()
    decoder = DecoderFactory(tiny, FAULTS["heads-share"].plant(probe=first)).open({})
    FAULTS["heads-share"].plant(probe=second)
    submit(decoder, request(1))
    drain(decoder)
    assert first.reached
    assert not second.reached


@pytest.mark.parametrize("outer", ["global-cache-overwritten", "expanded-prompt"])
def test_faults_that_move_slots_act_on_top_of_each_other(tiny: Model, outer: str) -> None:
    probes = {"global-cache-overwritten": Probe(honest=True), "expanded-prompt": Probe()}
    parts = None
    for name in sorted(probes, key=lambda name: name == outer):
        parts = FAULTS[name].plant(parts, probes[name])
    decoder = DecoderFactory(tiny, parts).open({"slots": 3, "sanitize": True})
    submit(decoder, request(1, 2, new=2), request(1, 3, new=2))
    decoder.step()
    first, second = decoder.audit().held
    assert first.storage == second.storage, "the prompt was expanded"
    size = first.storage[0][2] - first.storage[0][1]
    assert first.storage[0][1] == 2 * size, "and stands where slot 0 is turned to"
    for who, row in enumerate((2, 2, 0)):
        assert decoder.store.row_of(who) == row
    assert all(probe.reached for probe in probes.values())
    assert probes["expanded-prompt"].changed


def test_two_stores_that_share_everything_are_planted_together_and_both_are_reached(tiny: Model) -> None:
    probes = {name: Probe() for name in ("global-cache-overwritten", "global-cache-locked", "global-cache-appended")}
    parts = None
    for name, probe in probes.items():
        parts = FAULTS[name].plant(parts, probe)
    decoder = DecoderFactory(tiny, parts).open({})
    submit(decoder, request(1, new=2), request(2, new=3))
    drain(decoder)
    assert all(probe.changed for probe in probes.values())


def test_two_faults_of_one_pool_are_planted_together_and_both_are_reached(tiny: Model) -> None:
    probes = {name: Probe() for name in ("freed-still-found", "evicted-still-found")}
    parts = None
    for name, probe in probes.items():
        parts = FAULTS[name].plant(parts, probe)
    decoder = DecoderFactory(tiny, parts, "pages").open({"page_size": 1, "pool_tokens": 2})
    clean = DecoderFactory(tiny, name="pages").open({})
    for name, prompt in enumerate(((1,), (3, 4), (1, 2))):
        decoder.submit(name, request(*prompt, new=1))
    drain(decoder)
    assert probes["freed-still-found"].changed
    assert isinstance(decoder.store, PageStore)
    assert isinstance(clean.store, PageStore)
    assert len(type(decoder.store.pool).__mro__) == len(Pool.__mro__) + 4, "each stands in front of what was there"
    assert type(clean.store.pool) is Pool, "and the pool's own class is as it was"
