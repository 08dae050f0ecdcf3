"""The fuzzer: strategies make schedules, the conductor replays them, checks judge, failures shrink and are kept.

Imports `targets` and `oracle`, never `stress`.
"""
