"""Certificate: what a campaign with a budget says about a target, and what it leaves open.

What was exercised and what was not, the rounding envelope, how small a leak would have been seen. Figures only; that nothing
was found is never said to be more than it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from fuzz.coverage import Figures
from fuzz.dose import Response, responses
from fuzz.feasible import SIZES
from fuzz.mechanisms import possible
from fuzz.pages.campaign import State
from fuzz.pages.render import render
from fuzz.report import failing_share_max
from fuzz.repro import versions
from oracle.finding import Verdict
from oracle.reference import Reference
from targets.models import find_model
from targets.protocol import Factory, Setting
from targets.registry import CAUSAL, TargetSpec


class Envelope(msgspec.Struct, frozen=True):
    """The rounding envelope: beyond it a request is a suspect, and an experiment decides."""

    precision: str
    logits_may_differ_by: float


class Residual(msgspec.Struct, frozen=True):
    """What a pass leaves open.

    Attributes:
        failing_share_max_95: With 95% confidence at most this share of schedules drawn like these fails; None if any did.
        new_grams_a_schedule, grams_within_reach: By size: what the next schedule is expected to show, and what more of them
            would show at least.
        open: Sentences.
    """

    failing_share_max_95: float | None
    new_grams_a_schedule: dict[str, float]
    grams_within_reach: dict[str, float]
    open: tuple[str, ...]


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        exercised: How often each mechanism fired; `never` names those that did not.
        grams: Runs of life-cycle events that were seen, of those that are feasible, by size.
        dose: How many planted leaks of each size each way of looking saw, in the built-in decoder; empty where a leak can't
            be planted, and `dose_why` says why.
    """

    target: TargetSpec
    identity: str
    settings: dict[str, Setting]
    versions: dict[str, str]
    made_s: float
    verdict: str
    schedules: int
    tokens_checked: int
    seconds: float
    exercised: dict[str, int]
    never: tuple[str, ...]
    grams: dict[str, Figures]
    swaps_compared: int
    swaps_undecided: int
    suspects: int
    refuted: int
    envelope: Envelope
    dose: tuple[Response, ...]
    dose_why: str
    residual: Residual
    signatures: dict[str, str]


def certificate(state: State, factory: Factory, reference: Reference, dose_schedules: int) -> Certificate:
    """What the last session of a campaign, and the ones before it, come to; the dose is measured now."""
    campaign, tally = state.campaign, state.last.tally
    fired = {name: tally.mechanisms[name] for name in [*possible(factory.control), *sorted(tally.mechanisms)]}
    grams = {str(size): tally.coverage.figures(size) for size in SIZES}
    never = tuple(name for name, count in fired.items() if not count)
    dose, why = _dose(campaign.target, dose_schedules)
    return Certificate(
        target=campaign.target,
        identity=factory.identity,
        settings=campaign.settings,
        versions=versions(),
        made_s=time.time(),
        verdict=state.verdict.name,
        schedules=tally.schedules,
        tokens_checked=tally.tokens_checked,
        seconds=campaign.sessions[-1].seconds,
        exercised={name: count for name, count in fired.items() if count},
        never=never,
        grams=grams,
        swaps_compared=tally.report.pairs,
        swaps_undecided=tally.report.pairs_undecided,
        suspects=tally.report.suspects,
        refuted=tally.report.refuted,
        envelope=Envelope(reference.precision, reference.bound),
        dose=dose,
        dose_why=why,
        residual=Residual(
            failing_share_max_95=failing_share_max(tally) if state.verdict is Verdict.PASS else None,
            new_grams_a_schedule={size: figures.new_a_schedule for size, figures in grams.items()},
            grams_within_reach={size: figures.within_reach for size, figures in grams.items()},
            open=tuple(_open(state, factory, never)),
        ),
        signatures={bug.signature: bug.status for bug in campaign.bugs},
    )


def _dose(spec: TargetSpec, schedules: int) -> tuple[tuple[Response, ...], str]:
    """The dose-response of the built-in decoder over the same model; why there is none for others."""
    if spec.target not in CAUSAL:
        return (), "leaks are planted in the built-in decoder of causal LMs only"
    if not schedules:
        return (), "it was not asked for"
    return tuple(responses(find_model(spec.model), schedules, ("float64",))), ""


def _open(state: State, factory: Factory, never: Sequence[str]) -> list[str]:
    """What a reader must not take for shown."""
    control, tally = factory.control, state.last.tally
    said = [f"never happened, so nothing is known of it: {', '.join(never)}"] if never else []
    absent = {
        "logits are not shown: only tokens are compared, and a leak that changes none is missed": control.logits,
        "tokens can't be forced: swaps are undecided wherever answers change": control.forced,
        "slots are not accounted for: what they hold is not checked": control.audit,
        "no shadow tags: whose cells are read is not checked": control.tags,
        "it is not stepped: what depends on its own timing may not come again": control.stepped,
        "which life cycles are feasible is not known: there is no share of them": control.life_cycles,
    }
    said += [sentence for sentence, there in absent.items() if not there]
    said += [f"undecided: {each}" for each in (*state.campaign.sessions[-1].undecided, *tally.unknown, *tally.unstable)[:10]]
    if not tally.sanitized and control.tags:
        said.append("it was not sanitized: cells were not checked one by one (--sanitize)")
    return [*said, "your own traffic: schedules were drawn, not recorded from it"]


def certificate_page(made: Certificate) -> str:
    """The certificate as one HTML file."""
    return render("certificate.html", made=made)
