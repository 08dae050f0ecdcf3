"""Where a failure began: every planted bug has one site, and looking for it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
import torch

from fuzz.conductor import play, replay, run_trio
from fuzz.judge import Judge
from fuzz.locate import Located, locate, shares_cells, watched
from fuzz.probe import Probe
from fuzz.watch import Watch
from fuzz.watching import Watching
from oracle.finding import Finding
from targets import attention
from targets.attention import AttentionFactory, Server
from targets.decoder import DecoderFactory
from targets.faults import FAULTS
from targets.models import Model, find_model
from targets.protocol import (
    Cancel,
    CheckName,
    Factory,
    Kind,
    Request,
    Schedule,
    Setting,
    Step,
    Submit,
    Trace,
    digest,
    emitted_by_submission,
    submissions,
)
from tests.fuzz.scripted import honest
from tests.quality.planting import SMALLEST, plant, smallest

MODELS = ["tiny", "tiny-qwen3", "tiny-gemma3", "tiny-mistral", "tiny-gpt2", "tiny-bloom", "tiny-mixtral"]
SHARED = ", in storage that requests share"
STATE = "query: position, or a recurrent state before it"
ANOTHERS = "K,V: its cells hold another request's"
UNWRITTEN = "K,V: its cells hold nothing that was ever written"
NOBODYS = "K,V: its cells hold what the reference computes for nobody"
INPUT = "input: another token than its own"
FOREIGN = "mask: cells that are not its own"
FUTURE = "mask: own cells that it should not see"
MISSING = "mask: own cells missing"

SITES = {
    ("global-cache-overwritten", Kind.LEAK): ANOTHERS + SHARED,
    ("global-cache-appended", Kind.LEAK): "length: more cells than its tokens" + SHARED,
    ("global-cache-appended", Kind.OWNERSHIP): "slots: length: more cells than its tokens" + SHARED,
    ("global-cache-locked", Kind.LEAK): ANOTHERS + SHARED,
    ("expanded-prompt", Kind.LEAK): ANOTHERS + ", in storage that requests that begin alike share",
    ("layer-off-by-one", Kind.WRONG_ALONE): "K,V: its cells hold those of another layer",
    ("heads-share", Kind.WRONG_ALONE): "K,V: its cells hold those of another head",
    ("mask-to-longest", Kind.INTERFERENCE): "mask: cells that are not its own",
    ("mask-to-longest", Kind.LEAK): "mask: cells that are not its own",
    ("padding-visible", Kind.INTERFERENCE): "length: more cells than its tokens",
    ("padding-visible", Kind.OWNERSHIP): "slots: length: more cells than its tokens",
    ("position-of-longest", Kind.INTERFERENCE): "query: position",
    ("position-restarts", Kind.WRONG_ALONE): "query: position",
    ("swap-through-views", Kind.LEAK): "row: stands in a slot that it was not given",
    ("swap-through-views", Kind.OWNERSHIP): "slots: slot … is held and free",
    ("result-by-row", Kind.LEAK): "result: another request's, of the same step",
    ("state-by-client-id", Kind.LEAK): "input: another token than its own",
    ("late-token", Kind.LEAK): "result: another request's, of an earlier step",
    ("stale-length", Kind.LEAK): "length: it begins behind cells that are not its own",
    ("stale-length", Kind.OWNERSHIP): "slots: length: it begins behind cells that are not its own",
    ("cancel-frees-twice", Kind.OWNERSHIP): "slots: slot … is free twice",
    ("cancel-frees-twice", Kind.LEAK): "row: its slot is another live request's as well",
    ("cancel-never-frees", Kind.OWNERSHIP): "slots: slot … is held by request …, which is not running",
    ("cancel-never-frees", Kind.STALLED): "stalled: is never admitted: ended requests hold every slot",
    ("token-lost-on-finish", Kind.BOOKKEEPING): "stream: request … streamed … but ends with …",
    ("starved", Kind.STALLED): "stalled: is never admitted though slots are free",
    ("unaligned-lengths", Kind.CRASHED): "raised: step raised RuntimeError: stack expects each tensor to be equal size",
    ("mask-too-short", Kind.WRONG_ALONE): "mask: own cells missing",
    ("scratch-shared", Kind.LEAK): ANOTHERS,
    ("padding-starves", Kind.STALLED): "stalled: is never admitted though slots are free",
    ("state-not-reset", Kind.LEAK): STATE,
    ("one-token-prompt-decodes", Kind.LEAK): STATE,
    ("state-shared", Kind.LEAK): STATE,
    ("state-of-padding", Kind.INTERFERENCE): STATE,
    ("state-of-padding", Kind.LEAK): STATE,
    ("state-of-neighbour", Kind.LEAK): STATE,
    ("state-by-row", Kind.LEAK): STATE,
    ("freed-still-found", Kind.LEAK): ANOTHERS,
    ("evicted-still-found", Kind.LEAK): ANOTHERS,
    ("copy-one-cell-short", Kind.STALE_HIT): UNWRITTEN,
    ("copy-one-cell-short", Kind.LEAK): UNWRITTEN,
    ("tables-of-misses-zero", Kind.LEAK): ANOTHERS,
    ("page-tail-seen", Kind.WRONG_ALONE): FOREIGN,
    ("page-tail-seen", Kind.LEAK): FOREIGN,
    ("match-rounded-up", Kind.LEAK): ANOTHERS,
    ("hash-not-verified", Kind.STALE_HIT): ANOTHERS,
    ("hash-not-verified", Kind.LEAK): ANOTHERS,
    ("prefix-left-out", Kind.STALE_HIT): ANOTHERS,
    ("prefix-left-out", Kind.LEAK): ANOTHERS,
    ("published-at-allocation", Kind.STALE_HIT): UNWRITTEN,
    ("published-at-allocation", Kind.LEAK): UNWRITTEN,
    ("published-by-tokens", Kind.STALE_HIT): UNWRITTEN,
    ("published-by-tokens", Kind.LEAK): UNWRITTEN,
    ("slot-freed-in-flight", Kind.LEAK): "length: it begins behind cells that are not its own",
    ("late-result-by-client-id", Kind.LEAK): "row: stands in a slot that it was not given",
    ("token-of-wrong-row", Kind.LEAK): INPUT,
    ("cells-by-live-view", Kind.LEAK): ANOTHERS,
    ("cells-by-live-view", Kind.INTERFERENCE): UNWRITTEN,
    ("token-not-known-yet", Kind.WRONG_ALONE): INPUT,
    ("recompute-off-by-one", Kind.INTERFERENCE): INPUT,
    ("resume-taken-for-decode", Kind.LEAK): ANOTHERS,
    ("resumed-row-stale", Kind.LEAK): INPUT,
    ("host-place-shared", Kind.LEAK): ANOTHERS,
    ("moved-back-one-off", Kind.INTERFERENCE): "K,V: its cells hold its own of another position",
    ("chunk-off-by-one", Kind.WRONG_ALONE): INPUT,
    ("chunk-off-by-one", Kind.INTERFERENCE): INPUT,
    ("last-chunk-taken-for-decode", Kind.WRONG_ALONE): INPUT,
    ("last-chunk-taken-for-decode", Kind.LEAK): INPUT,
    ("future-of-chunk-seen", Kind.WRONG_ALONE): FUTURE,
    ("future-of-chunk-seen", Kind.INTERFERENCE): FUTURE,
    ("triangle-top-left", Kind.WRONG_ALONE): MISSING,
    ("triangle-top-left", Kind.INTERFERENCE): MISSING,
    ("ring-taken-for-full", Kind.INTERFERENCE): FOREIGN,
    ("ring-taken-for-full", Kind.LEAK): FOREIGN,
    ("ring-read-from-front", Kind.WRONG_ALONE): "K,V: its cells hold its own of another position",
    ("window-one-more", Kind.WRONG_ALONE): FUTURE,
    ("ring-trimmed-for-one", Kind.WRONG_ALONE): MISSING,
    ("ring-phase-of-longest", Kind.INTERFERENCE): FOREIGN,
    ("ring-phase-of-longest", Kind.LEAK): FOREIGN,
    ("chunk-of-longest", Kind.INTERFERENCE): MISSING,
    ("chunk-of-longest", Kind.WRONG_ALONE): MISSING,
    ("chunk-from-forward", Kind.WRONG_ALONE): MISSING,
    ("chunk-from-forward", Kind.INTERFERENCE): MISSING,
    ("padding-in-slot-zero", Kind.INTERFERENCE): NOBODYS,
    ("padding-in-slot-zero", Kind.LEAK): NOBODYS,
    ("padding-in-old-slots", Kind.INTERFERENCE): NOBODYS,
    ("padding-in-old-slots", Kind.LEAK): NOBODYS,
    ("padding-counted", Kind.LEAK): "result: nobody's",
    ("padding-counted", Kind.INTERFERENCE): "result: nobody's",
    ("write-lost", Kind.WRONG_ALONE): UNWRITTEN,
    ("write-lost", Kind.LEAK): UNWRITTEN,
    ("split-with-wrong-stride", Kind.WRONG_ALONE): NOBODYS,
    ("mask-added", Kind.WRONG_ALONE): FUTURE,
    ("rejected-cells-counted", Kind.WRONG_ALONE): "length: more cells than its tokens",
    ("draft-of-neighbour", Kind.LEAK): INPUT,
    ("draft-sees-later-drafts", Kind.WRONG_ALONE): FUTURE,
    ("bonus-behind-last-draft", Kind.WRONG_ALONE): "result: nobody's",
}
"""Of the faults that have one here; a fault with a schedule beside these is tested with its own."""
EQUAL = {("copy-skipped-at-two", Kind.LEAK), ("grouped-decrement-first", Kind.LEAK), ("salt-left-out", Kind.LEAK)}
"""Cells of another's that hold the very same K and V: only who wrote them tells."""

BEHIND = {("state-left-behind", Kind.LEAK), ("mask-kept", Kind.LEAK), ("counts-kept", Kind.LEAK)}
"""Tokens chosen by another's parameters, from logits that are right."""

MIXED = Schedule(
    ops=(
        Submit(Request(prompt=tuple(range(3, 23)), max_new_tokens=4)),
        Submit(Request(prompt=(9, 8, 7), max_new_tokens=6)),
        Step(2),
        Submit(Request(prompt=tuple(range(40, 58)), max_new_tokens=3)),
        Step(),
        Cancel(0),
        Submit(Request(prompt=(5,), max_new_tokens=20)),
    ),
    settings={"slots": 3},
)
"""Prompts and answers on both sides of the tiny models' window of 16, a cancel, and a slot that is used again."""


def watch(factory: Factory, schedule: Schedule, victim: int) -> Watch:
    """One request followed to its end."""
    judge = Judge(factory)

    async def follow() -> Watch:
        return await watched(factory, judge.reference, schedule, victim, to_the_end=True)

    return run_trio(follow)


def located(factory: Factory, schedule: Schedule, kind: Kind, settings: Mapping[str, Setting] | None = None) -> Located:
    """Where the first finding of this kind began."""
    judge = Judge(factory)
    whole = msgspec.structs.replace(schedule, settings={**schedule.settings, **(settings or {})})

    async def look() -> Located:
        judgement = await judge.judge(whole, thorough=True)
        finding = next(finding for finding in judgement.findings if finding.kind is kind)
        return await locate(factory, judge.reference, whole, finding, judgement.trace)

    return run_trio(look)


MISNAMED = ("ring-read-from-front", Kind.WRONG_ALONE)
"""Told as cells of another head, since cells of a ring are brought into the order of positions: that name is wrong."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*pair, marks=pytest.mark.xfail(strict=True)) if pair == MISNAMED else pair for pair in SITES],
    ids=str,
)
def test_a_fault_has_its_site_on_the_smallest_schedule(tiny: Model, name: str, kind: Kind) -> None:
    factory, _ = plant(tiny, name)
    found = located(factory, smallest(name, kind), kind)
    assert found.where is not None, found.why
    assert found.where.site.startswith(SITES[name, kind])


@pytest.mark.slow
def test_a_network_without_attention_has_none_to_look_at() -> None:
    factory = DecoderFactory(find_model("tiny-mamba"), FAULTS["state-not-reset"].plant())
    found = located(factory, smallest("state-not-reset", Kind.LEAK), Kind.LEAK)
    assert (found.where, found.why) == (None, "the network has no attention to look at")


def test_every_fault_of_the_bank_that_shows_in_an_attention_has_a_site_here() -> None:
    attended = {(name, kind) for name, kind in SMALLEST if kind in (Kind.LEAK, Kind.INTERFERENCE, Kind.WRONG_ALONE)}
    seen = ("slots", "pages", "private")  # where attention can be looked at
    watched = {name for name, fault in FAULTS.items() if fault.targets[0] in seen}
    ours = {pair for pair in attended if FAULTS[pair[0]].group != "between runs" and pair[0] in watched}
    assert ours - EQUAL - BEHIND <= set(SITES), ours - EQUAL - BEHIND - set(SITES)
    assert not (EQUAL | BEHIND) & set(SITES)


@pytest.mark.slow
@pytest.mark.parametrize("model", [*MODELS, "tiny-bamba"])
def test_nothing_departs_on_a_clean_target(model: str) -> None:
    factory = DecoderFactory(find_model(model))
    for victim in range(len(submissions(MIXED))):
        seen = watch(factory, MIXED, victim)
        assert (seen.found, seen.why) == (None, ""), victim
        assert seen.steps


@pytest.mark.slow
@pytest.mark.parametrize("model", [*MODELS, "tiny-bamba"])
def test_watching_changes_no_bit_of_the_trace(model: str) -> None:
    factory = DecoderFactory(find_model(model))
    plain = replay(factory, MIXED)
    answers = {who: tuple(event.token for event in events) for who, events in emitted_by_submission(plain).items()}
    follow = Watch(1, submissions(MIXED), answers, Judge(factory).reference({}), factory.vocabulary, to_the_end=True)

    async def under_watch() -> Trace:
        return await play(Watching(factory, follow), MIXED)

    assert digest(run_trio(under_watch)) == digest(plain)
    assert follow.steps


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [("layer-off-by-one", Kind.WRONG_ALONE), ("global-cache-overwritten", Kind.LEAK), ("late-token", Kind.LEAK)],
)
def test_a_site_is_the_same_on_every_model(model: str, name: str, kind: Kind) -> None:
    found = located(DecoderFactory(find_model(model), FAULTS[name].plant()), smallest(name, kind), kind)
    assert found.where is not None, found.why
    assert found.where.site == SITES[name, kind]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask-to-longest", "position-of-longest"])
def test_a_mask_is_told_from_a_position_under_learned_positions_and_windows(name: str) -> None:
    for model in ("tiny-gpt2", "tiny-gemma3"):
        factory = DecoderFactory(find_model(model), FAULTS[name].plant())
        found = located(factory, smallest(name, Kind.INTERFERENCE), Kind.INTERFERENCE)
        assert found.where is not None
        assert found.where.site == SITES[name, Kind.INTERFERENCE]


@pytest.mark.slow
def test_a_failure_in_a_narrow_type_is_located_in_float64(tiny: Model) -> None:
    factory, _ = plant(tiny, "global-cache-overwritten")
    schedule = smallest("global-cache-overwritten", Kind.LEAK)
    found = located(factory, schedule, Kind.LEAK, {"dtype": "bfloat16"})
    assert found.where is not None
    assert found.where.site == ANOTHERS + SHARED
    assert found.where.owner is not None


def test_a_place_has_its_numbers(tiny: Model) -> None:
    factory, _ = plant(tiny, "global-cache-locked")
    found = located(factory, smallest("global-cache-locked", Kind.LEAK), Kind.LEAK).where
    assert found is not None
    assert (found.step, found.token, found.layer, found.cell, found.owner) == (1, 1, 0, 0, 1)
    assert found.expected != found.actual


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("global-cache-overwritten", True),
        ("global-cache-appended", True),
        ("expanded-prompt", True),
        ("stale-length", False),
        ("scratch-shared", False),
        ("heads-share", False),
    ],
)
def test_two_requests_have_cells_in_common_only_where_storage_is_shared(tiny: Model, name: str, shares: bool) -> None:
    factory, _ = plant(tiny, name)
    assert shares_cells(factory, {}) is shares
    assert shares_cells(factory, {"slots": 1}) is shares
    assert shares_cells(factory, {}, alike=False) is (shares and name != "expanded-prompt")


def test_a_target_of_ones_own_is_located_too() -> None:
    schedule = Schedule(ops=tuple(Submit(Request(prompt=(token,), max_new_tokens=1)) for token in (1, 2)))
    found = located(attention.shared(), schedule, Kind.LEAK)
    assert found.where is not None, found.why
    assert found.where.site == "length: more cells than its tokens" + SHARED
    seen = watch(attention.honest(), schedule, 1)
    assert (seen.found, seen.why) == (None, "")


class Silent(AttentionFactory):
    """The same attention, whose server does not say whose a row is."""

    control = msgspec.structs.replace(AttentionFactory.control, inspect=False)


@pytest.mark.parametrize(
    ("kept", "site"),
    [(attention.SharedCacheAttention, "mask: cells that are not its own"), (attention.Attention, None)],
)
def test_without_an_inspection_a_row_is_known_by_its_query(kept: type[attention.Attention], site: str | None) -> None:
    schedule = Schedule(ops=tuple(Submit(Request(prompt=(token, 3), max_new_tokens=2)) for token in (1, 2)))
    seen = watch(Silent("silent", kept), schedule, 1)
    assert seen.why == ""
    assert (None if seen.found is None else seen.found.cause) == site


def a_leak(submission: int | None) -> Finding:
    return Finding(kind=Kind.LEAK, check=CheckName.SWAP, what="said so", submission=submission)


@pytest.mark.parametrize(
    ("submission", "why"),
    [(0, "the target's attention can't be seen"), (None, "the finding names no request"), (9, "looking for it raised")],
)
def test_an_odd_target_is_no_error_but_a_reason(submission: int | None, why: str) -> None:
    schedule = Schedule(ops=(Submit(Request(prompt=(1, 2), max_new_tokens=3)),))
    factory = honest()

    async def look() -> Located:
        return await locate(factory, Judge(factory).reference, schedule, a_leak(submission))

    found = run_trio(look)
    assert found.where is None
    assert found.why.startswith(why)


class Boasting(Server):
    """Tells of rows that it did not run."""

    def inspect(self) -> attention.Inspection:
        return attention.Inspection(((*super().inspect().forwards[0], *super().inspect().forwards[0]),), {})


class BoastingFactory(AttentionFactory):
    def open(self, settings: Mapping[str, Setting]) -> Server:
        return Boasting(attention.Network(self.attention), 4)


def test_an_inspection_that_does_not_fit_is_a_reason() -> None:
    schedule = Schedule(ops=(Submit(Request(prompt=(1, 2), max_new_tokens=2)),))
    seen = watch(BoastingFactory("boasting", attention.Attention), schedule, 0)
    assert seen.why == "the rows that the target tells of are not those of its forwards"


def test_the_probe_sees_an_attention_written_out_by_hand() -> None:
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn((2, 3, 4, 8), generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.full((4, 4), -torch.inf, dtype=torch.float64).triu(1)
    with Probe() as probe:
        weights = torch.softmax(query @ key.transpose(-2, -1) * 0.5 + mask, dim=-1)
        output = torch.matmul(weights, value)
    (seen,) = probe.take()
    assert seen.queries is not None
    assert torch.equal(seen.queries, query)
    assert seen.keys is not None
    assert torch.equal(seen.keys, key)
    assert seen.values is not None
    assert torch.equal(seen.values, value)
    assert seen.output is not None
    assert torch.equal(seen.output, output)
    assert torch.equal(seen.visible, torch.ones((2, 3, 4, 4), dtype=torch.bool).tril())
    assert probe.take() == []
