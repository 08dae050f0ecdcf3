"""Loading: users of an OpenAI-compatible endpoint, who ask as the fuzzer does and write down all that they hear.

    locustfile ──> users ──> client   (connections; server-sent events) ──> hearing, wording
        │            ├─────> mixes, traces   (what is asked, by a seed or from a file) ──> asks
        │            └─────> tally    (rows of locust's own statistics) ──> latency
        └────────> hooks     (locust's events) ──> plan, desk (what one process knows), shapes, gauges
                     └─────> ending   (account, figures; starts the judge) ──> telling

`client`, `models`, `users`, `hooks` and `gauges` import gevent or locust, which patches the whole process: only
`stress/locustfile.py` imports them, and trio never runs where they are. The others are plain. Imports `targets.protocol`,
`fuzz.strategies`, and what loading and judging share: `stress.transcript`, `stress.wording` and `stress.chunks`.
"""
