"""Recurrent states: a slot's are its owner's from the first token on, whatever stood there and whoever runs beside."""

from __future__ import annotations

import itertools

import pytest
import torch

from targets.decoder import Decoder, DecoderFactory, Feed, Parts, SlotCache, StateCache, StateStore
from targets.decoder.store import POISONS
from targets.models import Model, find_model
from targets.protocol import Event, Request, Setting
from tests.targets.decoder.driving import drain, logits, opened, request, submit, tokens

NAMES = ["tiny-mamba", "tiny-bamba", "tiny-olmo-hybrid"]
"""A selective state space alone, another and a gated delta rule below a layer with attention."""
BOUND = 1e-4
"""Of logits in float64: both compute their states in float32, and in another way for one token than for several."""
PROMPT = (3, 50, 7, 7, 120, 9, 31, 200, 5)


class KeptStates(StateStore):
    """A store whose slots keep the states of their last owners."""

    def begin(self, slot: int) -> None:
        pass


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> Model:
    return find_model(request.param)


@pytest.fixture(scope="module")
def bamba() -> Model:
    return find_model("tiny-bamba")


def careless(model: Model, **settings: Setting) -> Decoder:
    """A decoder that never sets a state to zero."""
    return DecoderFactory(model, Parts(decoder=Decoder, states=KeptStates)).open(settings)


def alone(model: Model, asked: Request) -> torch.Tensor:
    """The logits of a request that has a fresh decoder to itself."""
    decoder = opened(model, slots=1)
    return logits(submit(decoder, asked) + drain(decoder), 0)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) < BOUND


def second_owner(decoder: Decoder, first: Request, second: Request) -> list[Event]:
    """What the decoder streams to a request whose only slot another one has just left."""
    submit(decoder, first)
    drain(decoder)
    return submit(decoder, second, start=1) + drain(decoder)


def test_there_is_a_slab_for_each_state_in_the_dtype_in_which_the_network_keeps_it_and_it_starts_dirty(bamba: Model) -> None:
    states = opened(bamba, slots=3, dtype="bfloat16").states
    shapes = {key: (tuple(slab.shape), slab.dtype) for key, slab in states.slabs.items()}
    assert shapes == {
        (0, "conv", 0): ((3, 160, 4), torch.bfloat16),
        (0, "recurrent", 0): ((3, 8, 16, 16), torch.float32),
    }
    assert all(slab.isfinite().all() and (slab != 0).all() for slab in states.slabs.values())
    assert states.allocated == 3 * (160 * 4 * 2 + 8 * 16 * 16 * 4)
    assert opened(bamba).states.slabs[0, "conv", 0].dtype is torch.float64


def test_a_layer_with_states_alone_has_no_cells(bamba: Model) -> None:
    decoder = opened(bamba, slots=1, sanitize=True)
    events = submit(decoder, request(*PROMPT))
    decoder.step()
    assert [slab.numel() > 0 for slab in decoder.store.keys] == [False, True]
    (report,) = [event for event in (events + decoder.step()) if hasattr(event, "layers")]
    assert report.layers == (1,)
    assert len(decoder.inspect().cells[0].keys) == 1


def test_a_model_without_states_has_no_slabs_and_its_cache_knows_of_none(tiny: Model, bamba: Model) -> None:
    kinds = []
    for decoder in (opened(tiny), opened(bamba)):
        rows = decoder.runner.place([Feed(0, [1], 0)], [0])
        kinds.append((len(decoder.states.slabs), type(decoder.runner.cache(rows))))
    assert kinds == [(0, SlotCache), (2, StateCache)]


@pytest.mark.parametrize("prompt", [PROMPT, (9,)], ids=["a prompt", "one token"])
def test_a_slot_that_is_used_again_begins_without_a_state(model: Model, prompt: tuple[int, ...]) -> None:
    asked = request(*prompt, new=4)
    expected = alone(model, asked)
    events = second_owner(opened(model, slots=1), request(*range(40), new=3), asked)
    assert torch.equal(logits(events, 1), expected)
    kept = second_owner(careless(model, slots=1), request(*range(40), new=3), asked)
    assert not close(logits(kept, 1), expected), "without the reset it would show"


def test_a_one_token_prompt_shares_a_forward_with_decodes_and_none_of_them_notices(model: Model) -> None:
    asked = [request(*PROMPT, new=6), request(4, new=5), request(77, new=4)]
    decoder = opened(model, slots=3)
    events = submit(decoder, asked[0]) + decoder.step() + submit(decoder, *asked[1:], start=1) + decoder.step()
    assert [len(feeds) for feeds, _ in decoder.runner.forwards] == [3]
    events += drain(decoder)
    for who, wanted in enumerate(asked):
        assert close(logits(events, who), alone(model, wanted))


def test_a_request_that_joins_while_others_decode_changes_no_bit_of_theirs(model: Model) -> None:
    answers = []
    for joins in ((80, 81, 82), (90, 91, 92)):
        decoder = opened(model, slots=2)
        events = submit(decoder, request(*PROMPT, new=6)) + decoder.step()
        events += submit(decoder, request(*joins, new=3), start=1) + drain(decoder)
        answers.append(events)
    assert torch.equal(logits(answers[0], 0), logits(answers[1], 0))
    assert not torch.equal(logits(answers[0], 1), logits(answers[1], 1))


def test_the_state_of_a_row_that_stands_still_stays_as_it_is(model: Model) -> None:
    decoder = opened(model, slots=2)
    submit(decoder, request(*PROMPT, new=6), request(4, 5, new=6))
    decoder.step()
    before = [decoder.states.snapshot(slot) for slot in range(2)]
    decoder.step((1,))
    after = [decoder.states.snapshot(slot) for slot in range(2)]
    same = [all(map(torch.equal, old, new)) for old, new in zip(before, after, strict=True)]
    assert same == [True, False]


def test_equal_prompts_have_equal_states_of_their_own(model: Model) -> None:
    decoder = opened(model, slots=2)
    submit(decoder, request(*PROMPT), request(*PROMPT))
    decoder.step()
    decoder.step()
    first, second = (decoder.states.snapshot(slot) for slot in range(2))
    assert all(map(torch.equal, first, second))
    before = decoder.states.snapshot(1)
    decoder.states.begin(0)
    assert all(map(torch.equal, before, decoder.states.snapshot(1)))


def test_the_state_matters(model: Model) -> None:
    asked = request(*PROMPT, new=12)
    decoder = opened(model, slots=1)
    events = submit(decoder, asked) + decoder.step()
    decoder.states.begin(0)
    events += drain(decoder)
    expected = tuple(alone(model, asked).argmax(-1).tolist())
    assert tokens(events)[0][0] == expected[0]
    assert tokens(events)[0][1:6] != expected[1:6]


@pytest.mark.parametrize("cut", [1, 3, len(PROMPT) - 1])
def test_a_forward_of_several_tokens_goes_on_from_the_state_that_is_there(model: Model, cut: int) -> None:
    """Where the network can't, its tokens go one by one."""
    runner = opened(model, slots=2).runner
    runner.states.begin(0)
    runner.states.begin(1)
    with torch.inference_mode():
        whole = runner.run([Feed(0, PROMPT, 0)])
        runner.run([Feed(1, PROMPT[:cut], 1)])
        parts = runner.run([Feed(1, PROMPT[cut:], 1)])
        assert close(parts, whole)
        runner.states.begin(1)
        runner.store.begin(1)
        runner.run([Feed(1, PROMPT[:cut], 1)])
        runner.states.begin(1)
        assert not close(runner.run([Feed(1, PROMPT[cut:], 1)]), whole), "from no state it would show"


def test_a_snapshot_continues_in_any_slot_as_its_owner_would_have(model: Model) -> None:
    decoder = opened(model, slots=3)
    runner, states, store = decoder.runner, decoder.states, decoder.store
    states.begin(0)
    with torch.inference_mode():
        runner.run([Feed(0, PROMPT, 0)])
        taken = states.snapshot(0)
        expected = runner.run([Feed(0, (8, 9, 10), 0)])
        for slot in (2, 0):
            for slab in (*store.keys, *store.values):
                slab[slot] = slab[0].clone()
            store.lengths[slot] = len(PROMPT)
            states.restore(slot, taken)
            assert torch.equal(runner.run([Feed(slot, (8, 9, 10), 0)]), expected)
        store.lengths[0] = len(PROMPT)
        assert not close(runner.run([Feed(0, (8, 9, 10), 0)]), expected), "what ran since has changed the state"


@pytest.mark.parametrize("poison", POISONS)
def test_poison_stands_in_the_states_of_every_slot_that_nobody_holds_and_changes_no_bit(bamba: Model, poison: str) -> None:
    _, constant = POISONS[poison]
    asked = [request(1, 2, 3, new=6), request(4, new=2), request(5, 6, new=3)]
    clean, poisoned = opened(bamba, slots=2), opened(bamba, slots=2, poison=poison)
    assert all((slab == constant).all() for slab in poisoned.states.slabs.values())
    ours, theirs = (submit(decoder, *asked) + drain(decoder) for decoder in (poisoned, clean))
    assert all(torch.equal(logits(ours, who), logits(theirs, who)) for who in range(3))
    assert all((slab == constant).all() for slab in poisoned.states.slabs.values())
    kept = careless(bamba, slots=2, poison=poison)
    assert not torch.equal(logits(submit(kept, *asked) + drain(kept), 0), logits(theirs, 0))


def test_no_two_slots_states_share_memory_and_none_shares_any_with_cells(bamba: Model) -> None:
    decoder = opened(bamba, slots=2, sanitize=True)
    submit(decoder, request(1, 2, 3), request(4))
    decoder.step()
    first, second = (holding.storage for holding in decoder.audit().held)
    assert len(first) == 3, "K and V together, and two states"
    assert len({slab for slab, _, _ in first}) == 3
    ranges = sorted((*first, *second))
    assert all(a[0] < b[0] or a[2] <= b[1] for a, b in itertools.pairwise(ranges))
    plain = opened(bamba, slots=2)
    submit(plain, request(1))
    plain.step()
    assert [holding.storage for holding in plain.audit().held] == [()]


def test_a_resumed_answer_that_is_run_again_token_by_token_is_fed_its_own_tokens(bamba: Model) -> None:
    # 1. In a pool of four cells #1 is preempted with two tokens given. 2. Resumed behind its prompt, it goes on by single
    # tokens, as its states are kept at every page's end. 3. A share of one token was taken for a decode there, and fed the
    # row's newest token. Found by 3,300 schedules; the reference is the same request in a pool that is large enough.
    asked = [request(1, new=3), request(2, new=3)]
    found = {}
    for pool in (4, 64):
        decoder = DecoderFactory(bamba, name="pages").open({"page_size": 1, "pool_tokens": pool})
        found[pool] = submit(decoder, *asked) + drain(decoder)
        assert decoder.audit().counts["preempted"] == (pool == 4)
    assert tokens(found[4]) == tokens(found[64])


def test_states_are_told_as_the_same_memory_whether_or_not_a_slot_has_cells_of_its_own(bamba: Model) -> None:
    # 1. #0 publishes its only page; #1's holds the same and stays its own. 2. Told by how many slabs of K and V a slot
    # itself has, the states of #0 would have the number of #1's cells, and the two would seem to overlap.
    decoder = DecoderFactory(bamba, name="pages").open({"page_size": 1, "sanitize": True})
    submit(decoder, request(1), request(1))
    decoder.step()
    first, second = ({slab for slab, _, _ in holding.storage} for holding in decoder.audit().held)
    assert first < second, "the states of both, and cells of the second"


def test_prompts_never_share_a_forward(bamba: Model) -> None:
    decoder = opened(bamba)
    assert decoder.runner.prefill == "alone"
    submit(decoder, request(1, 2, 3), request(4), request(5, 6), request(7))
    decoder.step()
    assert [[feed.submission for feed in feeds] for feeds, _ in decoder.runner.forwards] == [[0], [2], [1, 3]]
