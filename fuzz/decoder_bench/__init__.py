"""`slotfuzz bench decoder`: how fast the built-in decoder is, and which of the usual claims about batching hold on it.

    measure    things that are compared take turns; ratios are of one round, never of two runs
    workload   requests of a given spread of lengths, and a target that serves them
    inside     what goes on inside forwards: seconds, cells read, tokens fed, memory allocated
    throughput, rivals, caching, stores    the measurements, each a function that returns a table
    claims     what the tables say of what is usually claimed
    tables     how they look in a terminal

It drives a target by `submit` and `step` alone: no trio, no oracle. Imports `targets`, and is imported by `fuzz.benches`.
"""
