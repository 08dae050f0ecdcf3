"""Benches of the serving endpoint: what HTTP costs, and what hostile clients can do.

`slotfuzz bench` finds them by the entry-point group `slotfuzz.benches`.

    command ──> http   (streams through HTTP against the same requests in process)
       └──────> siege ──> attacks
    both on wire (a client that knows just enough of HTTP) and served (`slotfuzz serve` in a process of its own)

Imports `targets`, `fuzz.strategies` and `fuzz.commandline`.
"""
