"""The plan of a load: locust's command line has these options beside its own; read and checked before anything runs.

Every process of a run reads the same options, so that all have the same plan: locust hands the master's on to its workers.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args
from urllib.parse import urlsplit

import msgspec

from stress.wording import DIALECTS, Dialect
from targets.protocol.errors import BadInput

Route = Literal["completions", "chat"]
Prompts = Literal["ids", "text"]
Arrivals = Literal["closed", "constant", "poisson"]
ShapeName = Literal["none", "constant", "ramp", "step", "burst", "on-off"]
Feature = Literal["lengths", "prefixes", "sessions", "cancels", "sampling"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
SEEDS = 1_000_000_000
RUN_S_MAX = 7 * 86_400
KEY_CHARS_MIN = 8


class Option(NamedTuple):
    """An option of locust's command line. All are read as text; None is what is left out."""

    flag: str
    help: str
    default: str | None = None
    switch: bool = False


OPTIONS = (
    Option("--seed", "Draws everything that is asked; the same seed asks the same.  [default: drawn, and printed]"),
    Option("--out", "The run's folder.  [default: slotfuzz-out/stress/<time>]"),
    Option("--model", "As the endpoint calls it.  [default: the first one that it lists]"),
    Option("--route", "completions or chat.  [default: completions]", "completions"),
    Option("--prompts", "ids, or text of one character an id.  [default: ids; text for chat]"),
    Option("--dialect", "Which fields may be sent: slotfuzz, vllm or openai.  [default: slotfuzz]", "slotfuzz"),
    Option("--vocabulary", "Token ids in prompts lie below it.  [default: 256]", "256"),
    Option("--context", "Tokens of a prompt and its answer, at most.  [default: 256]", "256"),
    Option("--mix", f"What users do: {', '.join(FEATURES)}.  [default: all that can be done]"),
    Option("--answer-tokens", "Each answer has so many tokens at most, not as many as is drawn."),
    Option("--whole-share", "So many requests of one, 0..1, are not streamed.  [default: 0]", "0"),
    Option("--trace", "Ask what a file says: JSON lines with arrivals, or a file of conversations."),
    Option("--trace-speed", "Recorded time passes so much faster.  [default: 1]", "1"),
    Option("--arrivals", "closed (a user asks when it was answered), constant or poisson.  [default: closed]", "closed"),
    Option("--rate", "Open arrivals: requests a second of each user.  [default: 1]", "1"),
    Option("--in-flight-max", "Open arrivals: no user has more requests open.  [default: 64]", "64"),
    Option("--shape", "Users over time: none, constant, ramp, step, burst or on-off.  [default: none]", "none"),
    Option("--period", "Seconds of a step, of a burst's cycle, of on and off together.  [default: 10]", "10"),
    Option("--noise", "So many users are noisy neighbours, every other period; the rest are their victims.", "0"),
    Option("--slo-ttft-ms", "Goodput: the first token comes within so many milliseconds."),
    Option("--slo-itl-ms", "Goodput: no two tokens are further apart."),
    Option("--slo-tpot-ms", "Goodput: a token after the first takes so long, on average."),
    Option("--slo-e2e-ms", "Goodput: the last one comes within so many milliseconds."),
    Option("--silence-seconds", "A request of which nothing is heard for so long is lost.  [default: 60]", "60"),
    Option("--grace-seconds", "At the end, requests have so long to be answered in.  [default: 30]", "30"),
    Option("--watch-seconds", "Between two looks at /metrics; 0 for none.  [default: 1]", "1"),
    Option("--watch-pid", "The server's process, whose memory is watched."),
    Option("--api-key-file", "A file with the key to send."),
    Option("--verify", "More words for `slotfuzz verify`, which judges the answers at the end.", ""),
    Option("--no-verify", "Nobody judges the answers at the end.", switch=True),
    Option("--allow-remote", "The host may be another machine. This is a load gun.", switch=True),
)


class Slo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request must keep to be good; None for no matter."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of whom, how often, for how long.

    Attributes:
        host: The endpoint, as `http://address:port`.
        model: None for the first one that it lists.
        users: How many there are at most.
        run_s: The whole run, after which nobody asks any more.
        answer_tokens: None where answers are as long as they are drawn.
        period_s: Of a shape, and of noisy neighbours.
        noise: Users who are noisy.
        watch_s: 0 for no looks at the gauges.
        verify: Words for the judging command; None where nobody judges.
    """

    host: str
    seed: int
    out: str
    model: str | None
    route: Route
    prompts: Prompts
    dialect: Dialect
    vocabulary: int
    context: int
    mix: tuple[Feature, ...]
    answer_tokens: int | None
    whole_share: float
    trace: str | None
    trace_speed: float
    arrivals: Arrivals
    rate: float
    in_flight_max: int
    shape: ShapeName
    period_s: float
    noise: int
    slo: Slo
    silence_s: float
    grace_s: float
    watch_s: float
    watch_pid: int | None
    api_key: str | None
    verify: tuple[str, ...] | None
    users: int
    run_s: float


def read_plan(options: Mapping[str, Any], host: str | None, users: int, run_s: float | None) -> Plan:
    """Reads locust's options.

    Raises:
        BadInput: with the first thing that is wrong.
    """
    words = _Words(options)
    if not run_s:
        raise BadInput("--run-time", "given, as in `--run-time 60s`: a load is always bounded in time", "nothing")
    if run_s > RUN_S_MAX:
        raise BadInput("--run-time", f"at most {RUN_S_MAX // 86_400} days", f"{run_s} s")
    route = cast(Route, words.one_of("--route", get_args(Route)))
    arrivals = cast(Arrivals, words.one_of("--arrivals", get_args(Arrivals)))
    noise = words.whole("--noise", 0, 100_000) or 0
    if noise >= max(users, 1):
        raise BadInput("--noise", f"fewer than all users ({users}), so that somebody is disturbed", noise)
    slo = {name: words.number(f"--slo-{name.replace('_', '-')}", 0.001, 1e9) for name in Slo.__struct_fields__}
    trace = words.text("--trace")
    if trace is not None and not Path(trace).is_file():
        raise BadInput("--trace", "a file that is there", trace)
    return Plan(
        host=check_host(host, bool(words.text("--allow-remote"))),
        seed=words.surely("--seed", 0, SEEDS - 1),
        out=words.text("--out") or "",
        model=words.text("--model"),
        route=route,
        prompts=cast(Prompts, words.one_of("--prompts", get_args(Prompts)) or ("text" if route == "chat" else "ids")),
        dialect=cast(Dialect, words.one_of("--dialect", DIALECTS)),
        vocabulary=words.surely("--vocabulary", 2, 10_000_000),
        context=words.surely("--context", 2, 10_000_000),
        mix=_mix(words.text("--mix"), arrivals),
        answer_tokens=words.whole("--answer-tokens", 1, 1_000_000),
        whole_share=words.number("--whole-share", 0, 1) or 0.0,
        trace=trace,
        trace_speed=words.number("--trace-speed", 0.001, 1e6) or 1.0,
        arrivals=arrivals,
        rate=words.number("--rate", 0.001, 1e5) or 1.0,
        in_flight_max=words.surely("--in-flight-max", 1, 100_000),
        shape=cast(ShapeName, words.one_of("--shape", get_args(ShapeName))),
        period_s=words.number("--period", 1, 86_400) or 10.0,
        noise=noise,
        slo=Slo(**slo),
        silence_s=words.number("--silence-seconds", 0.1, 86_400) or 60.0,
        grace_s=words.number("--grace-seconds", 0, 3600) or 0.0,
        watch_s=words.number("--watch-seconds", 0, 3600) or 0.0,
        watch_pid=words.whole("--watch-pid", 1, 2**31),
        api_key=_key(words.text("--api-key-file")),
        verify=None if words.text("--no-verify") else tuple((words.text("--verify") or "").split()),
        users=users,
        run_s=float(run_s),
    )


class _Words:
    """Options as they were typed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def text(self, flag: str) -> str | None:
        """An option as text; None where it was left out."""
        found = self.options.get(flag.removeprefix("--").replace("-", "_"))
        return None if found is None or found is False else str(found)

    def one_of(self, flag: str, words: tuple[str, ...]) -> str | None:
        """One of a few words."""
        found = self.text(flag)
        if found is not None and found not in words:
            raise BadInput(flag, "one of " + ", ".join(words), found)
        return found

    def number(self, flag: str, low: float, high: float, kind: type[float] | type[int] = float) -> float | None:
        """A number in a range."""
        found = self.text(flag)
        if found is None:
            return None
        rule = f"a {'whole ' if kind is int else ''}number in {low:,g}..{high:,g}"
        try:
            number = kind(found)
        except ValueError:
            raise BadInput(flag, rule, found) from None
        if not low <= number <= high:
            raise BadInput(flag, rule, found)
        return number

    def whole(self, flag: str, low: int, high: int) -> int | None:
        """A whole number in a range."""
        number = self.number(flag, low, high, int)
        return None if number is None else int(number)

    def surely(self, flag: str, low: int, high: int) -> int:
        """A whole number that is always there."""
        number = self.whole(flag, low, high)
        assert number is not None, f"{flag} has a default"
        return number


def _mix(text: str | None, arrivals: Arrivals) -> tuple[Feature, ...]:
    """The features of a mix, in the order in which they are listed."""
    possible = [each for each in FEATURES if arrivals == "closed" or each != "sessions"]
    if text is None:
        return tuple(possible)
    named = [word.strip() for word in text.split(",")]
    for word in named:
        if word not in FEATURES:
            raise BadInput("--mix", "one or more of " + ", ".join(FEATURES), word)
        if word not in possible:
            raise BadInput("--mix", "without sessions where arrivals are open: a turn waits for the one before", text)
    return tuple(each for each in FEATURES if each in named)


def check_host(host: str | None, remote: bool) -> str:
    """The endpoint's address without a path.

    Raises:
        BadInput: where it is none, or is not this machine and need be.
    """
    try:
        parts = urlsplit(host or "")
        name, _ = parts.hostname, parts.port
    except ValueError:
        name, parts = None, urlsplit("")
    if not name or parts.scheme not in ("http", "https") or parts.path.strip("/") not in ("", "v1"):
        raise BadInput("--host", "an address like http://127.0.0.1:8000", host or "nothing")
    if not remote and not _is_loopback(name):
        raise BadInput("--host", "this machine's loopback, or --allow-remote given: this is a load gun", host)
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(name: str) -> bool:
    """Whether every address of a name is this machine's own."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _key(path: str | None) -> str | None:
    """The key in a file."""
    if path is None:
        return None
    try:
        key = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("--api-key-file", "a file of ASCII that can be read", path) from error
    if len(key) < KEY_CHARS_MIN or any(char.isspace() for char in key):
        raise BadInput("--api-key-file", f"a file with one key of {KEY_CHARS_MIN} characters or more", path)
    return key
