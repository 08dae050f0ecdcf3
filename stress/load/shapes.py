"""Shapes: how many users there are as time goes by, of those that there may be."""

from __future__ import annotations

from stress.load.plan import ShapeName

STEPS = 5
QUIET_SHARE = 0.2
"""Of the users, between bursts."""
BURST_SHARE = 0.3
"""Of a period, for the burst."""


def users_at(shape: ShapeName, at_s: float, users: int, run_s: float, period_s: float) -> int:
    """How many of `users` there are `at_s` seconds after the start.

    ramp: evenly more until half of the run, then all. step: a fifth more each period. burst: all at the beginning of each
    period, a fifth in the rest of it. on-off: all for half of a period, nobody for the other half.
    """
    phase = at_s % period_s / period_s
    if shape == "ramp":
        return max(1, min(users, round(users * 2 * at_s / run_s)))
    if shape == "step":
        return max(1, min(users, users * (1 + int(at_s / period_s)) // STEPS))
    if shape == "burst":
        return users if phase < BURST_SHARE else max(1, round(users * QUIET_SHARE))
    if shape == "on-off":
        return users if phase < 0.5 else 0
    return users
