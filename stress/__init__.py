"""Load tests: the top floor. May import `targets`, `oracle` and `fuzz`; nothing imports it.

endpoint/   what `slotfuzz serve` starts: any stepped target behind an OpenAI-compatible API
load/       users who ask as the fuzzer does, for locust; `locustfile` is what it loads
benches/    what serving costs, and what hostile clients can do
command     the command line of this floor, which `fuzz` finds by the entry-point group `slotfuzz.commands`
"""
