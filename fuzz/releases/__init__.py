"""`slotfuzz bisect`: a stored failure in several released versions of the engine, each in an environment of its own.

    command ──> environments (a venv for each version, kept in a folder)
        └─────> trying       (is the failure there? judged by a process of its own, which plays it in that environment)

Imports `oracle`, `targets` and the rest of `fuzz`; nothing but `fuzz.__main__` imports it.
"""
