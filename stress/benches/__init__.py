"""Benches of the serving endpoint: what HTTP and judging cost, what hostile clients can do, and which bugs a load finds.

`slotfuzz bench` finds them by the entry-point group `slotfuzz.benches`.

    command ──> http   (streams through HTTP against the same requests in process)
       └──────> siege ──> attacks
    load_command ──> verification, load_faults, soak ──> runs   (locust and a judge in processes of their own)
       └───────────> rival   (`transformers serve`) ──> byte_model
    all on served (`slotfuzz serve` in a process of its own) and some on wire (a client that knows just enough of HTTP) and
    paired (by what factor two ways differ)

Imports `targets`, `fuzz.strategies`, `fuzz.commandline`, and of `stress` what says what a run's folder holds.
"""
