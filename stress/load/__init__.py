"""Loading: users of an OpenAI-compatible endpoint, who ask as the fuzzer does and write down all that they hear.

    locustfile ──> users ──> client   (one connection; server-sent events) ──> chunks, wording
        │            └─────> mixes, traces   (what is asked, by a seed or from a file)
        ├────────> shapes    (how many users there are)
        └────────> hooks     (locust's events) ──> desk (what one process knows), gauges, ending ──> figures

`client`, `users`, `hooks` and `gauges` import gevent or locust, which patches the whole process: only `stress/locustfile.py`
imports them, and trio never runs where they are. The others are plain. Imports `targets.protocol`, `fuzz.strategies` and
`stress.transcript`.
"""
