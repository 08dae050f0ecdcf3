"""Targets: the protocol that a system under test fulfils, ours and everybody's.

A `Factory` says what can be set and what can be controlled, and opens fresh targets. A `Target` is one running system.
The smallest useful target implements `submit`, `cancel` and `step`; all else has a declared absence in `Control`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec
from torch import nn

from targets.protocol.events import Audit, Event, Reason
from targets.protocol.knobs import Knob, Setting
from targets.protocol.schedule import Request


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What a target lets us control and see, and what it promises.

    Attributes:
        stepped: It moves only when `step` is called, so that a replay is exact.
        rows: `step` may name the submissions that advance.
        forced: It honours `Request.forced`.
        logits: Emissions carry the logits [V] the token was chosen from.
        audit: `audit` accounts for its slots.
        float64: It has a knob `dtype` that takes "float64", and a knob `weights` that takes the name of the dtype to
            which the weights are rounded first, so that float64 has the same weights upcast. A knob `kv_dtype`, if it has
            one, is the dtype of K and V by name, or "same".
        tags: It has a knob `sanitize` (False or True) under which it reports what its rows attend to, as shadow tags, and
            the memory of what it holds.
        poison: It has a knob `poison` that takes "low" and "high": cells that hold nothing of a live request are filled
            with a finite constant at the scale of the data, another one for each.
        poison_nan: It promises never to gather a cell that its mask hides, and `poison` takes "nan" as well. (Attention
            multiplies what the mask hides by zero, and zero times NaN is NaN.)
        life_cycles: Its factory has a method `life_cycles` (`targets.protocol.lifecycle`) that says how its requests may
            live, and it works in steps of the order that stands there.
        joins: A request may come in while others are in the middle of their answers.
        inspect: It has a method `inspect` (`targets.protocol.inspection`) that says whose the rows of its forwards are.
        shares: Requests that begin alike may have cached state in common. It may use `Request.sample_of`, and says with each
            admission how much was cached.
        salts: It keeps requests of unlike salts apart where it shares.
        told: Emissions carry, in `logprobs`, the log-probability of the token itself under the network's logits, whether or
            not a request asked for it. (For targets that show no logits; under some settings they may leave it out.)
        rounding: By so much its logits may differ from a reference in its own precision though nothing is wrong, as measured
            on requests that were alone; 0 where the reference's own envelope covers it.
        sampling: It honours `Request.sampling` and `Request.stop_sequences`, to the letter but for the noise.
        ends: Token ids that end every answer, as if each request had them among its stop ids.
        gives_up: It may end a request for lack of room (`Reason.ROOM`), by contract.
        noise: The noise as well: with a temperature its choice is the one that `Sampling` defines.
        in_a_row: So many drawn schedules are played one after another on one target, which is drained in between: more than
            one where it is dear to open.
    """

    stepped: bool = True
    rows: bool = False
    forced: bool = False
    logits: bool = False
    audit: bool = False
    float64: bool = False
    tags: bool = False
    poison: bool = False
    poison_nan: bool = False
    life_cycles: bool = False
    inspect: bool = False
    sampling: bool = False
    shares: bool = False
    salts: bool = False
    noise: bool = False
    told: bool = False
    rounding: float = 0.0
    ends: tuple[int, ...] = ()
    gives_up: bool = False
    in_a_row: int = 1
    joins: bool = True


@runtime_checkable
class Target(Protocol):
    """One running system under test. Methods may raise: that is a finding, not an error of ours.

    `submit`, `cancel` and `step` return lists of events. A target that keeps no account returns None from `audit`, and one
    that holds nothing does nothing in `close`.
    """

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Takes a request in; returns what happened at once (usually nothing, or Refused)."""

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Ends a request early, in any state; one that has ended already is left alone."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Advances every request it can, or only the named submissions, and says what happened."""

    def audit(self) -> Audit | None:
        """Who owns which slot now; None where the target cannot say."""

    def close(self) -> None:
        """Gives everything back."""


@runtime_checkable
class Factory(Protocol):
    """Opens fresh targets of one kind.

    Attributes:
        name: As on the command line.
        knobs: Every setting there is.
        control: What a target of this kind lets us do.
        vocabulary: Number of token ids; prompts are drawn below it.
        special_ids: Ids that a bijection of the vocabulary keeps in place.
        identity: Names the weights, so that a repro can tell whether it meets the same model.
    """

    name: str
    knobs: tuple[Knob, ...]
    control: Control
    vocabulary: int
    special_ids: tuple[int, ...]
    identity: str

    def open(self, settings: Mapping[str, Setting]) -> Target:
        """A fresh target, with defaults where `settings` is silent.

        Raises:
            BadInput: for a setting that no knob takes.
        """

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The network for the reference, in the precision that `settings` ask for, never shared with a target.

        Called as `network(input_ids=ids, use_cache=False)` with int64 [B, n]; gives logits [B, n, V], bare or as
        `.logits`. Rows of a batch are equally long and nothing is padded.

        Where the prompt is not simply what comes first, as for an encoder, its forward has an argument `prompt_tokens` as
        well: so many of the n tokens are prompt, the others answer, and the logits wanted are those from the last token of
        the prompt on, [B, n - prompt_tokens + 1, V].
        """

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """The network that targets opened with these settings run, for timing hooks; None where it is out of reach."""

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """The most tokens, prompt and answer together, that one request may hold."""
