"""Knobs: the settings that a target declares about itself.

There is no universal bag of engine limits. Each target names its own knobs, with their values, edges and defaults, and
everything else (strategies, command line, shrinker, repros) works from that declaration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from targets.protocol.errors import BadInput, among

Setting = bool | int | float | str
"""The value of a knob."""


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a target.

    Attributes:
        values: Every value a strategy draws, edges included, simplest first.
        low, high: Where the knob is a number: the inclusive range in which a user may set it.
        build_time: Whether a change needs a fresh target (True) or can be made between requests.
        may_change_outputs: Whether an honest target may answer differently under another value.
        drawn: Whether strategies draw it; the others keep the default unless the user sets them.
        unit: The unit of a number, for printing.
    """

    name: str
    default: Setting
    values: tuple[Setting, ...]
    low: int | None = None
    high: int | None = None
    build_time: bool = True
    may_change_outputs: bool = False
    drawn: bool = True
    unit: str = ""
    doc: str = ""

    def check(self, value: object, where: str = "") -> Setting:
        """Returns `value` if this knob takes it.

        Raises:
            BadInput: with the knob's name, its rule and the value.
        """
        if self.low is not None and self.high is not None:
            if isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high:
                return value
            raise BadInput(self.name, f"a whole number in {self.low}..{self.high}", value, where)
        for allowed in self.values:
            if type(value) is type(allowed) and value == allowed:
                return allowed
        raise BadInput(self.name, "one of " + ", ".join(map(str, self.values)), value, where)

    def parse(self, text: str, where: str = "") -> Setting:
        """Reads a value that was typed; raises BadInput as `check` does."""
        known = {str(value): value for value in self.values}
        if self.low is not None and re.fullmatch(r"-?[0-9]{1,18}", text):
            return self.check(int(text), where)
        return self.check(known.get(text, text), where)


def check_settings(knobs: tuple[Knob, ...], settings: Mapping[str, object], where: str = "") -> None:
    """Raises BadInput at the first setting that no knob declares or whose value its knob refuses."""
    by_name = {knob.name: knob for knob in knobs}
    for name, value in settings.items():
        if name not in by_name:
            raise BadInput("knob", among(sorted(by_name), name), name, where)
        by_name[name].check(value, where)


def with_defaults(knobs: tuple[Knob, ...], settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Every knob's value: what `settings` says, else the default."""
    return {knob.name: settings.get(knob.name, knob.default) for knob in knobs}
