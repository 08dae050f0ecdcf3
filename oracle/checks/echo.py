"""Echo: each token is the one that the request's own parameters choose from its own logits, and from nobody else's.

Nothing but the rounding of the few operations in between is allowed for: the logits are those that the target shows. A
target that shows none is asked here only what needs none (allowed ids, stop ids that come too soon); isolation asks the
rest. Whether an answer ends where it must is bookkeeping's question.

Where a token is another one, the parameters that do choose it are looked for: a neighbour's in place of one's own, one's own
left out, a neighbour's tokens counted as one's own, the noise of another place.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from oracle.case import Case
from oracle.finding import Finding, Report
from oracle.sampling import Scores, is_judged, is_plain, scores
from targets.protocol import GREEDY, CheckName, Emitted, Kind, Request, Schedule, Stepped, Trace

TOGETHER = (
    ("temperature",),
    ("seed",),
    ("repetition_penalty",),
    ("presence_penalty",),
    ("frequency_penalty",),
    ("bias",),
    ("allowed",),
    ("min_new_tokens",),
    ("temperature", "seed"),
)
"""Parameters that are handed to the wrong request, or forgotten, as one."""
_GREEDY = Request(prompt=(), max_new_tokens=0)


def echo(case: Case) -> Generator[Schedule, Trace, Report]:
    """ECHO at each request's first token or log-probability that is not its own. Asks for no variants."""
    report = Report()
    largest = _takes_largest(case)
    start = 0
    for who, events in case.sound.items():
        odd = list(_odd(case, who, events, largest[start : start + len(events)]))
        if odd:
            report.findings.append(_finding(case, who, odd))
        elif case.control.sampling:
            report.findings += _logprobs(case, who, events)
        start += len(events)
    return report
    yield


def _takes_largest(case: Case) -> list[bool]:
    """For each sound emission, in order, whether its token has the largest logit. False where that can't be told at once."""
    tokens = [event.token for events in case.sound.values() for event in events]
    if case.logits is None:
        return [False] * len(tokens)
    taken = case.logits.gather(1, torch.tensor(tokens, device=case.logits.device)[:, None])[:, 0]
    largest: list[bool] = (taken == case.logits.amax(-1)).tolist()
    return largest


def _odd(case: Case, who: int, events: list[Emitted], largest: list[bool]) -> Iterator[int]:
    """The places in a request's answer whose tokens its own parameters do not choose; what is forced is left out."""
    request = case.requests[who]
    plain, judged = is_plain(request), is_judged(request, case.control)
    for position in range(len(request.forced), len(events)):
        event = events[position]
        if plain and (largest[position] or event.logits is None):
            continue
        if case.control.sampling and _barred(request, position, event.token):
            yield position
        elif judged and event.logits is not None and event.logits.isfinite().all():
            given = scores(request, case.answers[who][:position], event.logits)
            if not given.regret(event.token) <= given.rounding(event.token):
                yield position


def _barred(request: Request, position: int, token: int) -> str:
    """Why a token can't be chosen there whatever the logits are; empty if it can."""
    asked = request.sampling
    if asked.allowed and token not in asked.allowed:
        return "which is not among its allowed ids"
    if position < asked.min_new_tokens and token in request.stop:
        return f"a stop id, before {asked.min_new_tokens} tokens stand"
    return ""


def _finding(case: Case, who: int, odd: list[int]) -> Finding:
    request, answer = case.requests[who], case.answers[who]
    position = odd[0]
    token, logits = answer[position], case.sound[who][position].logits
    given = None if logits is None else scores(request, answer[:position], logits)
    barred = _barred(request, position, token)
    what = f"request #{who} gets {token} as token {position}, " + (
        barred or f"where its own parameters choose {'another' if given is None else given.choice} from its own logits"
    )
    explained = _explained(case, who, odd)
    return Finding(
        kind=Kind.ECHO,
        check=CheckName.ECHO,
        what=what,
        submission=who,
        position=position,
        expected=None if given is None else given.choice,
        actual=token,
        answer=answer,
        size=None if given is None or barred else given.regret(token),
        bound=None if given is None or barred else given.rounding(token),
        sources=tuple(found.source for found in explained if found.source is not None),
        evidence=(
            f"echo: {len(odd)} of {len(answer)} tokens of request #{who} are not what its own parameters choose",
            *(f"echo: {found.sentence}" for found in explained),
        ),
    )


@dataclass(frozen=True)
class _Explanation:
    """Other circumstances under which the odd tokens might have been chosen.

    Attributes:
        sentence: Says what they would be, if they are.
        request: With other parameters.
        source: The neighbour they are taken from, if they are.
        before: Tokens that are counted as if they stood before the answer.
        shift: By how many places the noise is another one's.
    """

    sentence: str
    request: Request
    source: int | None = None
    before: tuple[int, ...] = ()
    shift: int = 0

    def explains(self, case: Case, who: int, odd: list[int]) -> bool:
        """Whether every odd token would be chosen so."""
        return all(self._chooses(case, who, position) for position in odd)

    def _chooses(self, case: Case, who: int, position: int) -> bool:
        event = case.sound[who][position]
        if event.logits is None or not event.logits.isfinite().all() or position + self.shift < 0:
            return False
        counted = (*self.before, *case.answers[who][:position])
        prompt = case.requests[who].prompt
        # What is counted before the answer makes it no longer: a stop id is barred by the answer's own length.
        early = msgspec.structs.replace(
            self.request.sampling, min_new_tokens=self.request.sampling.min_new_tokens + len(self.before)
        )
        asked = msgspec.structs.replace(self.request, prompt=prompt, sampling=early)
        given: Scores = scores(asked, counted, event.logits, index=position + self.shift)
        return given.regret(event.token) <= given.rounding(event.token)


def _explained(case: Case, who: int, odd: list[int]) -> list[_Explanation]:
    """The simplest explanation by each neighbour that has one; where none has, one by the request's own parameters."""
    found: dict[int | None, _Explanation] = {}
    for candidate in _explanations(case, who, odd):
        if candidate.source not in found and candidate.explains(case, who, odd):
            found[candidate.source] = candidate
    return [each for each in found.values() if each.source is not None] or list(found.values())


def _explanations(case: Case, who: int, odd: list[int]) -> Iterator[_Explanation]:
    """The simplest first. What a neighbour does not ask for is not taken from it: that is one's own left out."""
    own = case.requests[who]
    counts = own.sampling.repetition_penalty != 1 or own.sampling.presence_penalty or own.sampling.frequency_penalty
    for other, theirs in enumerate(case.requests):
        if other == who or other not in case.sound or not is_judged(theirs, case.control):
            continue
        for names in TOGETHER:
            changed = _with(own, theirs, names)
            if changed is not None and _with(theirs, _GREEDY, names) is not None:
                yield _Explanation(f"with the {_named(names)} of request #{other} they are", changed, other)
        if theirs.sampling not in (own.sampling, GREEDY):
            every = msgspec.structs.replace(own, sampling=theirs.sampling, stop=theirs.stop)
            yield _Explanation(f"with all parameters of request #{other} they are", every, other)
        if counts:
            counted = f"with the tokens of request #{other} counted as well they are"
            yield _Explanation(counted, own, other, case.answers[other])
            yield _Explanation(counted, own, other, (*theirs.prompt, *case.answers[other]))
    if own.sampling.temperature:
        for shift in dict.fromkeys((*_steps_behind(case, who, odd[0]), -1, 1)):
            yield _Explanation(f"with the noise of the place {shift:+d} from their own they are", own, shift=shift)
    for names in TOGETHER:
        changed = _with(own, msgspec.structs.replace(_GREEDY, stop=own.stop), names)
        if changed is not None:
            yield _Explanation(f"without its own {_named(names)} they are", changed)


def _with(own: Request, theirs: Request, names: tuple[str, ...]) -> Request | None:
    """A request with some of another's parameters; None where they are its own."""
    changed = msgspec.structs.replace(
        own,
        sampling=msgspec.structs.replace(own.sampling, **{name: getattr(theirs.sampling, name) for name in names}),
        stop=theirs.stop if names == ("min_new_tokens",) and theirs.sampling.min_new_tokens else own.stop,
    )
    return None if changed == own else changed


def _named(names: tuple[str, ...]) -> str:
    if names == ("allowed",):
        return "allowed ids"
    return " and ".join(name.replace("_", " ") for name in names)


def _steps_behind(case: Case, who: int, position: int) -> Iterator[int]:
    """How far the number of the step, and of all tokens so far, are from a token's place in its answer."""
    step = tokens = place = 0
    for event in case.trace:
        if isinstance(event, Stepped):
            step = event.step
        elif isinstance(event, Emitted):
            if event.submission == who and place == position:
                yield from (step - position, step + 1 - position, tokens - position)
                return
            place += event.submission == who
            tokens += 1


def _logprobs(case: Case, who: int, events: list[Emitted]) -> Iterator[Finding]:
    """The first of a request's log-probabilities that are not those of its own logits."""
    asked = case.requests[who].sampling.logprobs
    for position, event in enumerate(events):
        complaint = _complaint(event, min(asked, case.alphabet.vocabulary))
        if complaint:
            others = {other: told for other, told in case.sound.items() if other != who}
            sources = [other for other, told in others.items() if any(map(partial(_told_of, event), told))]
            yield Finding(
                kind=Kind.ECHO,
                check=CheckName.ECHO,
                what=f"request #{who} is told {complaint} with token {position}",
                submission=who,
                position=position,
                actual=event.token,
                answer=case.answers[who],
                sources=tuple(sources),
                evidence=tuple(
                    f"echo: under logits of request #{other} the token is as likely as it was told" for other in sources
                ),
            )
            return


def _complaint(event: Emitted, asked: int) -> str:
    """What is amiss with the log-probabilities that came with a token, where so many were asked for; empty if nothing is."""
    told, wanted = event.logprobs, 1 + asked if asked else 0
    if len(told) != wanted:
        return f"{len(told)} log-probabilities instead of {wanted}"
    if not told:
        return ""
    ids = [token for token, _ in told]
    if ids[0] != event.token:
        return f"the log-probability of {ids[0]} instead of {event.token}"
    if len(set(ids[1:])) < asked:
        return "the log-probability of one id twice"
    if event.logits is None or not event.logits.isfinite().all():
        return ""
    right, bound = _log_softmax(event.logits)
    if not all(0 <= token < len(right) for token in ids):
        return "the log-probability of an id that does not exist"
    likeliest = right.topk(asked).values.tolist()
    for place, (token, value) in enumerate(told):
        if not abs(value - float(right[token])) <= bound:
            return f"a log-probability of {value:.6g} for {token} instead of {float(right[token]):.6g}"
        if place and not abs(value - likeliest[place - 1]) <= bound:
            return f"{token} as likeliest id number {place}, which it is not"
    return ""


def _told_of(event: Emitted, other: Emitted) -> bool:
    """Whether the log-probability told of a token is the one that it has under another emission's logits."""
    if not event.logprobs or other.logits is None or not other.logits.isfinite().all():
        return False
    token, value = event.logprobs[0]
    right, bound = _log_softmax(other.logits)
    return abs(value - float(right[token])) <= bound


def _log_softmax(logits: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Log-probabilities float64 [V], and how much another order of the sum can move one."""
    exact = logits.double()
    scale = len(exact) + 4 * float(exact.abs().max())
    return exact.log_softmax(-1), torch.finfo(torch.float64).eps * scale
