"""The suite that every Target passes, ours and the adapters' alike.

Each claim is a plain function of a factory. It plays schedules through the conductor, needs nothing but what the protocol
promises, and raises an AssertionError that names what broke. `CLAIMS` has them all; a test file parametrises over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fuzz.conductor import replay
from targets.protocol import (
    Asked,
    Audited,
    BadInput,
    Cancel,
    Crashed,
    Emitted,
    Factory,
    Finished,
    Inspectable,
    Inspection,
    Op,
    Refused,
    Request,
    Schedule,
    Setting,
    Stalled,
    Step,
    Submit,
    Trace,
    first_departure,
    submissions,
)

LADDER = (1, 2, 4, 8)
INSPECTED_STEPS = 12
_LENGTHS = (3, 9, 1, 17, 6, 2, 12, 4)
_BUDGETS = (6, 3, 8, 5, 2, 7, 4, 6)


def the_ladder_is_climbed(factory: Factory) -> None:
    """1, 2, 4 and 8 requests, at once and a step apart, each answered as alone; the first size that breaks is named."""
    asked = requests(factory)
    expected = [alone(factory, request) for request in asked]
    for size in LADDER:
        at_once: list[Op] = [Submit(request) for request in asked[:size]]
        for way, ops in (("at once", at_once), ("a step apart", a_step_apart(asked[:size]))):
            assert_as_alone(play(factory, ops), expected[:size], f"{size} requests {way}")


def two_replays_are_the_same(factory: Factory) -> None:
    """The same schedule on two fresh targets gives the same events and bits; the same answers if it is not stepped."""
    ops = [*a_step_apart(requests(factory)), Cancel(7)]
    if not factory.control.stepped:  # it decides by itself what runs together
        once, again = play(factory, ops), play(factory, ops)
        for submission in range(7):
            both = answer_of(once, submission), answer_of(again, submission)
            assert both[0] == both[1], f"two replays of one schedule differ: #{submission} answers {both[0]}, then {both[1]}"
        return
    departure = first_departure(play(factory, ops), play(factory, ops))
    assert departure is None, f"two replays of one schedule differ: {departure}"


def a_cancel_leaves_the_others_alone(factory: Factory) -> None:
    """Whoever gives up, and whenever: the others are answered as alone, and the victim's answer is the start of its own."""
    asked = requests(factory)
    expected = [alone(factory, request) for request in asked]
    for victim in range(4):
        for steps in (0, 1, 2, 5, 9):
            ops: list[Op] = [*map(Submit, asked[:4]), Step(steps), Cancel(victim), *map(Submit, asked[4:])]
            what = f"a cancel of #{victim} after {steps} steps"
            answers = play(factory, ops)
            heard = answer_of(answers, victim)
            assert heard == expected[victim][: len(heard)], f"{what}: its answer so far is {heard}, not as alone"
            assert_as_alone(answers, expected, what, but=victim)


def a_refusal_leaves_the_others_alone(factory: Factory) -> None:
    """What can never be served is refused, holds nothing, and harms nobody."""
    ordinary = requests(factory)[:4]
    expected = [alone(factory, request) for request in ordinary]
    some = ordinary[0].prompt[0]
    impossible = {
        "an empty prompt": Request(prompt=(), max_new_tokens=4),
        "a token id past the vocabulary": Request(prompt=(some, factory.vocabulary), max_new_tokens=4),
        "a prompt as long as the context": Request(prompt=(some,) * factory.context_tokens_max({}), max_new_tokens=4),
    }
    for what, request in impossible.items():
        trace = play(factory, [*map(Submit, ordinary), Step(), Submit(request), Step(), Submit(request)])
        refused = [event.submission for event in trace if isinstance(event, Refused)]
        assert sorted(refused) == [4, 5], f"{what}: of #4 and #5, {refused} were refused"
        assert_as_alone(trace, expected, what)


def ids_may_be_reused(factory: Factory) -> None:
    """Requests are told apart though their clients call themselves the same, at the same time and one after another."""
    named = [with_id(request, 7) for request in requests(factory)[:6]]
    expected = [alone(factory, request) for request in named]
    for way, gap in (("live together", ()), ("one after another", (Step(9),)), ("after a cancel", (Step(2), Cancel(0)))):
        first, *rest = map(Submit, named)
        trace = play(factory, [first, *gap, *rest])
        assert_as_alone(trace, expected, f"six requests of one id, {way}", but=0 if "cancel" in way else None)


def everything_ends(factory: Factory) -> None:
    """Every request ends once, with the answer that was streamed, and hears nothing afterwards."""
    asked = [*requests(factory), Request(prompt=requests(factory)[0].prompt, max_new_tokens=0)]
    asked.append(with_id(asked[2], 0))
    play(factory, [*a_step_apart(asked), Cancel(3), Cancel(3), Cancel(9)])


def nothing_is_held_at_the_end(factory: Factory) -> None:
    """Where a target accounts for its storage: when all have ended, no slot is held, and each is free once.

    Two steps more, so that what was in flight when its request was cancelled has come to its end.
    """
    asked = requests(factory)
    for cancels in ((), (0,), (1, 5), tuple(range(8))):
        trace = play(factory, [*map(Submit, asked), Step(2), *map(Cancel, cancels), Step(2)])
        audits = [event.audit for event in trace if isinstance(event, Audited)]
        assert bool(audits) == factory.control.audit, "audits come exactly where the target declares them"
        for last in audits[-1:]:
            assert (last.held, last.queued) == ((), ()), f"held at the end: {last}"
            assert sorted(last.free) == list(range(last.slots)), f"not each slot is free once: {last}"


def what_is_declared_is_kept(factory: Factory) -> None:
    """Logits, forced tokens and named rows, as far as the target declares them; settings as its knobs say."""
    control, asked = factory.control, requests(factory)[:3]
    assert not accepts(factory, {"no_such_knob": 1}), "a setting that no knob takes was accepted"
    for event in play(factory, [*map(Submit, asked)]):
        if isinstance(event, Emitted):
            assert (event.logits is not None) == control.logits, "logits come exactly where the target declares them"
            if event.logits is not None:
                assert event.logits.shape == (factory.vocabulary,)
                assert int(event.logits.argmax()) == event.token, f"#{event.submission} got a token that is not greedy"
    if control.forced:
        forced = requests(factory)[3].prompt[: asked[0].max_new_tokens - 1]
        trace = play(factory, [Submit(Request(prompt=asked[0].prompt, max_new_tokens=6, forced=forced))])
        heard = answer_of(trace, 0)
        assert heard[: len(forced)] == forced, f"{forced} were forced and {heard} came"
    if control.rows:
        trace = play(factory, [*map(Submit, asked), *[Step(1, rows=(2,))] * 4, *[Step(1, rows=(0, 1))] * 4])
        heard_by = heard_by_op(trace)
        alone_, together = (set().union(*heard_by[start : start + 4]) for start in (3, 7))
        assert alone_ == {2}, f"#2 alone was named, and {sorted(alone_)} got tokens"
        assert {0, 1} <= together, f"#0 and #1 were named, and {sorted(together)} got tokens"
        late = set().union(*heard_by[8:11])  # what was in flight has come by then
        assert late <= {0, 1}, f"#0 and #1 were named, and {sorted(late)} got tokens"


def an_inspection_is_of_the_last_step(factory: Factory) -> None:
    """Where a target says whose its rows are: each is a piece of its request's tokens, behind the cells that it has.

    Whoever gets a token has a row, and that ends with the last of the tokens before it.
    """
    target = factory.open({})
    assert factory.control.inspect == isinstance(target, Inspectable), "`inspect` is there exactly where it is declared"
    if not isinstance(target, Inspectable):
        return
    asked = requests(factory)[:3]
    known = {submission: list(request.prompt) for submission, request in enumerate(asked)}
    for submission, request in enumerate(asked):
        target.submit(submission, request)
    for _ in range(INSPECTED_STEPS):
        given = [event for event in target.step() if isinstance(event, Emitted)]
        told = target.inspect()
        for submission in known:
            rows = rows_of(told, submission)
            assert len(rows) <= 1, f"#{submission} has {len(rows)} rows in the last step"
            for first, tokens in rows:
                own = tuple(known[submission][first : first + len(tokens)])
                assert tokens == own, f"#{submission} runs {own} behind {first} cells, and {tokens} is told"
                length = told.cells[submission].keys[0].shape[1] if submission in told.cells else first + len(tokens)
                run = first + len(tokens)
                assert length == run, f"#{submission} has {length} cells, and {run} of its tokens were run"
        for event in given:
            rows = rows_of(told, event.submission)
            assert rows, f"#{event.submission} gets a token and has no row"
            ((first, tokens),) = rows
            due, run = len(known[event.submission]), first + len(tokens)
            assert run == due, f"#{event.submission} gets a token behind {due}, and {run} of its tokens were run"
            known[event.submission].append(event.token)


CLAIMS: tuple[Callable[[Factory], None], ...] = (
    the_ladder_is_climbed,
    two_replays_are_the_same,
    a_cancel_leaves_the_others_alone,
    a_refusal_leaves_the_others_alone,
    ids_may_be_reused,
    everything_ends,
    nothing_is_held_at_the_end,
    what_is_declared_is_kept,
    an_inspection_is_of_the_last_step,
)


def requests(factory: Factory) -> list[Request]:
    """Eight requests of unequal lengths and budgets, of ordinary ids; no prompt is the beginning of another."""
    ids = [token for token in range(factory.vocabulary) if token not in factory.special_ids]
    return [
        Request(
            prompt=tuple(ids[(11 * number + 29 * place + 1) % len(ids)] for place in range(length)), max_new_tokens=budget
        )
        for number, (length, budget) in enumerate(zip(_LENGTHS, _BUDGETS, strict=True))
    ]


def a_step_apart(asked: Sequence[Request]) -> list[Op]:
    """Each request handed in a step after the one before."""
    return [op for request in asked for op in (Submit(request), Step())]


def rows_of(inspection: Inspection, submission: int) -> list[tuple[int, tuple[int, ...]]]:
    """How many cells stood before each of a request's rows, and its new tokens."""
    return [(row.first, row.tokens) for forward in inspection.forwards for row in forward if row.submission == submission]


def accepts(factory: Factory, settings: Mapping[str, Setting]) -> bool:
    """Whether a target can be opened with these settings."""
    try:
        factory.open(settings).close()
    except BadInput:
        return False
    return True


def with_id(request: Request, client_id: int) -> Request:
    """The same request from a client of that name."""
    return Request(prompt=request.prompt, max_new_tokens=request.max_new_tokens, client_id=client_id)


def play(factory: Factory, ops: Sequence[Op]) -> Trace:
    """The trace of these ops on a fresh target, in which everybody ended well."""
    schedule = Schedule(ops=tuple(ops))
    trace = replay(factory, schedule)
    assert_ended_well(schedule, trace)
    return trace


def alone(factory: Factory, request: Request) -> tuple[int, ...]:
    """The answer of a request that has a fresh target to itself."""
    return answer_of(play(factory, [Submit(request)]), 0)


def answer_of(trace: Trace, submission: int) -> tuple[int, ...]:
    """The tokens that a submission was streamed."""
    return tuple(event.token for event in trace if isinstance(event, Emitted) and event.submission == submission)


def heard_by_op(trace: Trace) -> list[set[int]]:
    """Who got tokens during each op."""
    heard: list[set[int]] = []
    for event in trace:
        if isinstance(event, Asked):
            heard.append(set())
        elif isinstance(event, Emitted):
            heard[-1].add(event.submission)
    return heard


def assert_as_alone(trace: Trace, expected: Sequence[tuple[int, ...]], what: str, but: int | None = None) -> None:
    """Raises where a submission, `but` for one, was not answered as alone."""
    for submission, answer in enumerate(expected):
        heard = answer_of(trace, submission)
        assert heard == answer or submission == but, f"{what}: #{submission} answers {heard}, alone {answer}"


def assert_ended_well(schedule: Schedule, trace: Trace) -> None:
    """Raises where the target crashed or stalled, or a request did not end once, last, and with what it was streamed."""
    size = len(submissions(schedule))
    for event in trace:
        assert not isinstance(event, Crashed | Stalled), f"{size} requests: {event}"
    for submission in range(size):
        told = [event for event in trace if isinstance(event, Emitted | Finished | Refused)]
        heard = [event for event in told if event.submission == submission]
        ends = [event for event in heard if not isinstance(event, Emitted)]
        assert len(ends) == 1, f"{size} requests: #{submission} ended {len(ends)} times"
        assert heard[-1] is ends[0], f"{size} requests: #{submission} hears more after its end"
        answer = ends[0].tokens if isinstance(ends[0], Finished) else ()
        streamed = answer_of(trace, submission)
        assert answer == streamed, f"{size} requests: #{submission} was streamed {streamed} and ends with {answer}"
