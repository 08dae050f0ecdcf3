"""Automaton: which grams of life-cycle events are feasible at all, by enumeration.

Three abstract requests, as many as a gram of three events can name, and the phase of the step that the target is in. They
stand for any three of a real trace: whatever happens to the others leaves no mark on what these three may do next, so each
gram of a correct target is one of the automaton's. The others are in the enumeration only where they take part in TOKENS,
the one event that may name nobody.

A phase in which nothing happens shows nothing, nor does a step; so either may be passed over, except where something is
due: a request that ended must be said to have ended before the step is over; what retired while it was in flight is freed
when that lands; and behind an admission there is a forward, whose results must show.

Left out, so that a few grams count as feasible that are not: the order of rows and of ages among the requests of a
forward, and that a pool must be crowded before somebody is preempted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from fuzz.lifecycle import Turn
from targets.protocol import LifeCycle

REQUESTS = 3


class At:
    """Where a request is in its life; from JOINED on, moments within one step, and from DONE on, between two events."""

    NEW = 0
    GONE = 1
    QUEUED = 2
    PREEMPTED = 3
    """Without a token yet; ..."""
    PREEMPTED_LATER = 4
    """... with some."""
    PREFILLING = 5
    REFILLING = 6
    """Resumed, with tokens that have to go through the network again."""
    DECODING = 7
    RETIRED = 8
    """Ended in flight; freed when that lands, which is in the next step that comes."""
    JOINED = 9
    """Admitted in this step, and so in no forward that lands in it, where results come a step late; without a token, ..."""
    REJOINED = 10
    """... or with some."""
    PREFILLED = 11
    """Had its share of this step's results; ..."""
    REFILLED = 12
    SPOKEN = 13
    ENDING = 14
    """... and its token was the last one. What follows it ended behind others: the end is told in the order of tokens."""
    ENDING_LAST = ENDING + REQUESTS - 1
    RETIRING = ENDING_LAST + 1
    """Ended in this step, and is in the forward that this step launched."""
    DONE = RETIRING + 1
    """Must be freed at once."""
    TURNED_AWAY = DONE + 1
    """Must be refused at once."""
    ANSWERED = TURNED_AWAY + 1
    """Asked for nothing: must end at once."""


class Phase:
    """What a step does, in order, and what is asked before it."""

    OPS = 0
    DEADLINES = 1
    ADMISSIONS = 2
    PREEMPTIONS = 3
    CHUNKS = 4
    TOKENS = 5
    ENDS = 6
    RETIREMENTS = 7
    MORE_PREEMPTIONS = LAST = 8


Lives = tuple[int, ...]
Moves = dict[int, tuple[tuple[str, int], ...]]

AT_ONCE: Moves = {
    At.DONE: ((Turn.FREED, At.GONE),),
    At.TURNED_AWAY: ((Turn.REFUSED, At.GONE),),
    At.ANSWERED: ((Turn.LENGTH, At.GONE),),
}
AFTERWARDS = {
    At.JOINED: At.PREFILLING,
    At.REJOINED: At.REFILLING,
    At.PREFILLED: At.PREFILLING,
    At.REFILLED: At.REFILLING,
    At.SPOKEN: At.DECODING,
    At.RETIRING: At.RETIRED,
}
"""What becomes of the moments of a step when it is over."""
HOLDING = frozenset(range(At.PREFILLING, At.DONE + 1))
ENDING = range(At.ENDING, At.ENDING_LAST + 1)


class State(NamedTuple):
    """Where everybody is.

    Attributes:
        joined: Somebody was admitted in this step: its forward is not empty.
        flying: The forward in flight is not empty, and nothing of it has shown yet.
    """

    phase: int
    joined: bool
    flying: bool
    lives: Lives


class Shown(NamedTuple):
    """A move that shows: what, whose (the place among the lives; None for another request's token), and the state then."""

    turn: str
    who: int | None
    then: State


def phases(cycle: LifeCycle) -> dict[int, Moves]:
    """What may happen to a request in each phase of a step."""
    running = (At.PREFILLING, At.REFILLING, At.DECODING)

    def ended(turn: str) -> Moves:
        waiting = dict.fromkeys((At.QUEUED, At.PREEMPTED, At.PREEMPTED_LATER), ((turn, At.GONE),))
        ways = ((turn, At.DONE), *(((turn, At.RETIRED),) if cycle.pipelined else ()))
        return {**waiting, **dict.fromkeys(running, ways)}

    submitted: tuple[tuple[str, int], ...] = tuple((Turn.SUBMIT, at) for at in (At.QUEUED, At.TURNED_AWAY, At.ANSWERED))
    begun, resumed = (At.JOINED, At.REJOINED) if cycle.pipelined else (At.PREFILLING, At.REFILLING)
    early: Moves = dict.fromkeys((At.PREFILLING, At.JOINED, At.PREFILLED), ((Turn.PREEMPTED, At.PREEMPTED),))
    held = (At.REFILLING, At.REJOINED, At.REFILLED, At.DECODING, At.SPOKEN)
    late: Moves = dict.fromkeys(held, ((Turn.PREEMPTED, At.PREEMPTED_LATER),))
    preempted: Moves = {**early, **late} if cycle.preempts else {}
    chunks: Moves = {At.PREFILLING: ((Turn.CHUNK, At.PREFILLED),), At.REFILLING: ((Turn.CHUNK, At.REFILLED),)}
    ends = [(turn, At.DONE) for turn in (Turn.LENGTH, Turn.STOP, Turn.CONTEXT)]
    stops = [(Turn.STOP, At.RETIRING)] if cycle.pipelined else []  # that it was the last token was not known at the launch
    spoken = ((Turn.TOKENS, At.SPOKEN), (Turn.TOKENS, At.ENDING))
    return {
        Phase.OPS: {At.NEW: submitted, **ended(Turn.CANCELLED)},
        Phase.DEADLINES: ended(Turn.DEADLINE),
        Phase.ADMISSIONS: {
            At.QUEUED: ((Turn.ADMITTED, begun),),
            At.PREEMPTED: ((Turn.RESUMED, begun),),
            At.PREEMPTED_LATER: ((Turn.RESUMED, resumed),),
        },
        Phase.PREEMPTIONS: {} if cycle.pipelined else preempted,
        Phase.CHUNKS: chunks if cycle.chunks else {},
        Phase.TOKENS: {
            At.PREFILLING: ((Turn.FIRST, At.SPOKEN), (Turn.FIRST, At.ENDING)),
            At.REFILLING: spoken,
            At.DECODING: spoken,
        },
        Phase.ENDS: dict.fromkeys(ENDING, (*ends, *stops)),
        Phase.RETIREMENTS: {At.RETIRED: ((Turn.FREED, At.GONE),)},
        Phase.MORE_PREEMPTIONS: preempted if cycle.pipelined else {},
    }


class Automaton:
    """The states of one life cycle, and what may be seen next in each."""

    def __init__(self, cycle: LifeCycle) -> None:
        self.cycle = cycle
        self.phases = phases(cycle)
        self.shown = functools.cache(self._shown)
        self.next = functools.cache(self._next)
        self._in_this_step = functools.cache(self._rest_of_the_step)

    def _shown(self, state: State) -> frozenset[Shown]:
        """All that may be seen next, in this step or, if nothing is, in the next one; a third one is as the second."""
        found, end = self._in_this_step(state)
        return found if end is None else found | self._in_this_step(self.over(end))[0]

    def _rest_of_the_step(self, state: State) -> tuple[frozenset[Shown], State | None]:
        """All that may be seen next in this step, and the state at its end if nothing is; None where something is due."""
        moves = frozenset(self.moves(state))
        if self.is_due(state):
            return moves, None
        if state.phase == Phase.LAST:
            return moves, state
        found, end = self._in_this_step(State(state.phase + 1, state.joined, state.flying, state.lives))
        return (moves | found if moves else found), end

    def moves(self, state: State) -> Iterator[Shown]:
        """What may happen in this very phase."""
        at_once = any(at in AT_ONCE for at in state.lives)
        table = AT_ONCE if at_once else self.phases[state.phase]
        others = _holding(state) < self.cycle.slots and not (self.cycle.together and state.joined)
        if state.phase == Phase.TOKENS and not at_once and others:
            yield Shown(Turn.TOKENS, None, self.after(state, Turn.TOKENS, state.lives))
        for who, at in enumerate(state.lives):
            for turn, then in table.get(at, ()):
                if self.may(state, at, turn):
                    behind = sum(other in ENDING for other in state.lives) if then == At.ENDING else 0
                    lives = (*state.lives[:who], then + behind, *state.lives[who + 1 :])
                    yield Shown(turn, who, self.after(state, turn, lives))

    def may(self, state: State, at: int, turn: str) -> bool:
        """Whether the others let this happen to a request that is there."""
        if turn in (Turn.ADMITTED, Turn.RESUMED):
            if self.cycle.together and At.DECODING in state.lives:
                return False
            return _holding(state) < self.cycle.slots
        if turn == Turn.PREEMPTED:  # not while something is in flight
            return At.RETIRED not in state.lives and At.RETIRING not in state.lives
        return at not in ENDING or at == min(other for other in state.lives if other in ENDING)

    def after(self, state: State, turn: str, lives: Lives) -> State:
        """The state behind a move that shows."""
        joined, flying = state.joined, state.flying
        if turn in (Turn.ADMITTED, Turn.RESUMED):
            joined = True
        elif turn == Turn.PREEMPTED:
            joined = False
        elif turn in (Turn.CHUNK, Turn.FIRST, Turn.TOKENS):
            joined, flying = joined and self.cycle.pipelined, False
        elif lives.count(At.RETIRED) > state.lives.count(At.RETIRED):
            flying = False  # what is in flight may have been that one's alone
        return State(state.phase, joined, flying, lives)

    def is_due(self, state: State) -> bool:
        """Whether the phase cannot be over yet."""
        if any(at in AT_ONCE for at in state.lives):
            return True
        if state.phase == Phase.TOKENS:
            return state.flying or (state.joined and not self.cycle.pipelined)
        if state.phase == Phase.ENDS:
            return any(at in ENDING for at in state.lives)
        return state.phase == Phase.RETIREMENTS and At.RETIRED in state.lives

    def over(self, state: State) -> State:
        """The state when the step is over."""
        lives = tuple(AFTERWARDS.get(at, at) for at in state.lives)
        return State(Phase.OPS, False, state.joined and self.cycle.pipelined, lives)

    def reached(self) -> set[State]:
        """Every state behind an event that is not TOKENS, and the first one; who is who does not matter, nor who is gone."""
        first = State(Phase.OPS, False, False, (At.NEW,) * REQUESTS)
        known, begins, ahead = {first}, {first}, [first]
        while ahead:
            for shown in self.shown(ahead.pop()):
                lives = tuple(sorted(At.NEW if at == At.GONE else at for at in shown.then.lives))
                then = shown.then._replace(lives=lives)
                if shown.turn != Turn.TOKENS:
                    begins.add(then)
                if then not in known:
                    known.add(then)
                    ahead.append(then)
        return begins

    def _next(self, state: State) -> list[tuple[str, int, State]]:
        """All that may come next as an event: its turn, whose it is, as bits, and the state behind it."""
        found = {(turn, 1 << who, then) for turn, who, then in self.shown(state) if turn != Turn.TOKENS and who is not None}
        runs, ahead = set(), [(0, state)]
        while ahead:  # TOKENS are a run of any length, of anybody
            bits, here = ahead.pop()
            for turn, who, then in self.shown(here):
                further = (bits if who is None else bits | 1 << who, then)
                if turn == Turn.TOKENS and further not in runs:
                    runs.add(further)
                    ahead.append(further)
        return [*found, *((Turn.TOKENS, bits, then) for bits, then in runs)]


def _holding(state: State) -> int:
    return sum(at in HOLDING for at in state.lives)
