"""Recording: from a wrong answer under load to a schedule that shows it again, and to a repro.

    account    the target's own account of what it was asked: an exact schedule
    timeline   what clients saw, as a schedule in logical time
    narrowing  the part of a long schedule that still goes wrong
    repros     judged, shrunk, stored

Imports `fuzz` and what stands below it, and `stress.transcript`.
"""
