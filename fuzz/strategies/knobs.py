"""Settings drawn from what a target declares."""

from __future__ import annotations

from hypothesis import strategies as st

from targets.protocol import Knob, Setting


def knobs(declared: tuple[Knob, ...]) -> st.SearchStrategy[dict[str, Setting]]:
    """Settings that differ from the defaults in a few knobs; only the different ones are in the dict."""
    drawn = [knob for knob in declared if knob.drawn and len(knob.values) > 1]
    if not drawn:
        return st.just({})
    choices = [(knob.name, value) for knob in drawn for value in knob.values if value != knob.default]
    # One draw says how many knobs to turn and one each which: far cheaper than a draw for every knob there is.
    return st.lists(st.sampled_from(choices), max_size=3).map(dict)
