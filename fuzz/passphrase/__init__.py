"""The pass-phrase experiment: may what somebody said a while ago, or says just now, change what I am told?

    command ──> serving (repeat, concurrent: schedules, judged by the oracle)
        ├─────> prefix  (texts before a task: how far the answer drifts, and where the attention goes)
        └─────> claims, tables, picture (what holds of what was claimed; rendering)

Imports `oracle`, `targets` and the rest of `fuzz`; nothing but `fuzz.__main__` imports it.
"""
