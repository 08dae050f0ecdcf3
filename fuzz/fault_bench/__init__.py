"""`slotfuzz bench faults`: what the fuzzer finds, measured on planted bugs whose truth is known.

    baselines  other ways to make up schedules, frozen: what ours is held against
    ways       all ways by name, ours among them
    attempts   one trial: a planted bug, a way, a seed; what was reached, found, shrunk
    twins      the same decoder with the bug's honest twin: whatever is found there is a false alarm
    exchanges  two requests exchange one field of their state: is there any that nobody watches?
    pairs      two bugs at once: does each failure have one cause?
    ledger     a file to which each result is added when it is there; what it has is not done again
    figures    what the results come to
    tables, picture    how that looks

Imports what `slotfuzz run` does, and is imported by `fuzz.bench_faults`.
"""
