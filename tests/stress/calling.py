"""Calls an endpoint once as locust's users do, in a process of its own, and says how that ended.

`python -m tests.stress.calling HOST CONNECT_S SILENCE_S`
"""

from __future__ import annotations

import sys

from stress.load import client
from stress.load.asks import Ask
from stress.load.hearing import Hearing
from targets.protocol import Request


def main(host: str, connect_s: float, silence_s: float) -> None:
    """Prints the outcome and the reason."""
    client.CONNECT_S = connect_s
    ask = Ask(request=Request(prompt=(1,), max_new_tokens=1))
    hearing = Hearing(0, "caller", ask, ask.request)
    client.Client(host, None, silence_s).ask("/v1/completions", b"{}", hearing)
    exchange = hearing.exchange()
    print(exchange.outcome, exchange.error, sep=": ")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
