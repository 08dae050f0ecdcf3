"""The judge: references, rounding, checks, kinds.

Imports `targets.protocol` and nothing else of slotfuzz: a judge must not share the defendant's code. It cannot replay;
every check is a generator that yields the schedules it wants replayed and receives their traces.
"""
