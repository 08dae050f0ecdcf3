"""Public Hypothesis strategies: `requests()`, `knobs()`, `schedules()`; and `batches`, which only generates.

Life cycles are generated, a list of ops is stored: each request has an arrival and perhaps an end, and the ops follow
from them. That is where the edges lie (a cancel on the last step, a join in the step of a leave), and where a uniform
list of ops hardly ever comes.

Imports `targets.protocol` only; usable in a plain `@given` test, where it shrinks as strategies do.
"""

from fuzz.strategies.batches import batches
from fuzz.strategies.knobs import knobs
from fuzz.strategies.lives import Life, to_ops
from fuzz.strategies.requests import Space, requests
from fuzz.strategies.schedules import FEATURES, schedules

__all__ = ["FEATURES", "Life", "Space", "batches", "knobs", "requests", "schedules", "to_ops"]
