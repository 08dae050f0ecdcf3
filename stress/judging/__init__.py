"""Judging: every response of a load run held against what the same request gets alone.

    following   transcripts, read while they grow or afterwards
    streams     what is wrong with a response by itself: pieces, counts, reasons, bounds
    network     its tokens against a local reference
    idle        its tokens against the endpoint's own answers while nobody else asks
    panel       judges in processes of their own
    ledger      what was judged, on disk: a judge that is killed goes on where it was
    verdicts    the sum of it all

    following ──> panel ──> (streams, network) ──> ledger ──> verdicts

Imports `oracle`, `targets`, `fuzz`, and what loading and judging share: `stress.transcript`, `stress.wording` and
`stress.chunks`; nothing of the endpoint but its tokenizer.
"""
