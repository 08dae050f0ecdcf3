"""The serving endpoint: any stepped target behind an OpenAI-compatible API. Imports `targets` and `fuzz.commandline` only.

    server ──> app ──> reception   (one request's body and whether its client is still there)
       │        ├────> asking      (a body to requests of a target)
       │        ├────> answers     (what a target said to bodies, whole or streamed) ──> text, tokens
       │        └────> metrics
       └─────> driver ──> Target   (the one task that touches it)

Everything runs on one trio thread. What a client asks reaches the target, and what the target says reaches the client, by
way of the driver alone.
"""
