"""Any OpenAI-compatible server, by its URL: `--target openai --model http://127.0.0.1:8000/v1[#MODEL]`.

Completions are streamed; a client gives up by closing its connection. The server decides by itself what runs together, so a
schedule is played in logical time. It keeps what it did between replays, as servers do. Token ids go in as they are; they
come out as ids where the server sends them (`return_token_ids`, as vLLM does), else each piece of text must be one token of
tiny-llama by its text, as llama.cpp's server and ours send them. The weights must be tiny-llama's: they are what the
reference computes.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Mapping
from typing import Any

from torch import nn

from targets.adapters import tiny_llama
from targets.adapters.rows import Rows
from targets.adapters.streams import Piece, Streams
from targets.protocol import (
    Audit,
    BadInput,
    Control,
    Event,
    Knob,
    Reason,
    Refused,
    Request,
    Setting,
    check_settings,
    with_defaults,
)

STEP_S = 2.5
TIMEOUT_S = 60.0
ASKED_S = 5.0
"""A server lists its models within so long."""
_RULE = "the URL of an OpenAI-compatible server, as http://127.0.0.1:8000/v1"
END = tiny_llama.SPECIAL_IDS[1]
KNOBS = (
    Knob(name="context_tokens", default=2048, values=(2048,), low=1, high=2048, drawn=False, unit="tokens"),
    Knob(name="logprobs", default=1, values=(1, 0, 5), low=0, high=20, build_time=False, unit="ids"),
)


class Client:
    """The clients of one server; fulfils `targets.protocol.Target`."""

    def __init__(self, url: str, model: str, settings: Mapping[str, Setting]) -> None:
        self.settings = with_defaults(KNOBS, settings)
        self.model = model
        self.streams = Streams(url, TIMEOUT_S)
        self.path = self.streams.address.path.rstrip("/") + "/completions"
        self.rows = Rows()
        self.reasons: dict[int, str] = {}

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Sends a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_new_tokens,
            "temperature": 0.0,
            "stream": True,
            "logprobs": self.settings["logprobs"] or None,
            "return_token_ids": True,
            "stop_token_ids": [token for token in request.stop if token != END],
        }
        self.rows.begin(submission, request)
        self.streams.ask(submission, self.path, body)
        return []

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Closes the connection."""
        if submission not in self.rows.live:
            return []
        self.streams.leave(submission)
        return self.rows.end(submission, reason)

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Waits for the next pieces of any stream."""
        return [event for piece in self.streams.wait(STEP_S) for event in self._heard(piece)] if self.rows.live else []

    def audit(self) -> Audit | None:
        """It is behind HTTP."""
        return None

    def close(self) -> None:
        """Leaves every stream; the server goes on."""
        self.streams.close()

    def _heard(self, piece: Piece) -> list[Event]:
        """What one piece says."""
        submission = piece.submission
        if submission not in self.rows.live:
            return []
        if piece.broken:
            raise ConnectionError(f"request #{submission}: {piece.broken}")
        if 400 <= piece.status < 500:
            self.rows.forget(submission)
            return [Refused(submission, json.dumps(piece.data)[:200])]
        if piece.status != 200 or (piece.data is not None and "error" in piece.data):
            raise RuntimeError(f"request #{submission} failed: {json.dumps(piece.data)[:300]}")
        if piece.data is None:
            request, answer = self.rows.live[submission], self.rows.answer(submission)
            stopped = self.reasons.get(submission) == "stop"
            events: list[Event] = []
            if stopped and answer[-1:] != [END] and not (answer and answer[-1] in request.stop):
                events.append(self.rows.emit(submission, END, ()))
            return [*events, *self.rows.end(submission, Reason.STOP if stopped else Reason.LENGTH)]
        return self._told(submission, piece.data)

    def _told(self, submission: int, data: dict[str, Any]) -> list[Event]:
        """The tokens of one event."""
        events: list[Event] = []
        for choice in data.get("choices", []):
            likely = (choice.get("logprobs") or {}).get("token_logprobs") or []
            tokens = choice.get("token_ids") or _ids(choice.get("text") or "")
            events += self.rows.admit(submission) if tokens else []
            for index, token in enumerate(tokens):
                told = ((token, float(likely[index])),) if index < len(likely) and likely[index] is not None else ()
                events.append(self.rows.emit(submission, token, told))
            if choice.get("finish_reason"):
                self.reasons[submission] = choice["finish_reason"]
        return events


class ClientFactory:
    """Clients of one server; fulfils `targets.protocol.Factory`."""

    name = "openai"
    knobs = KNOBS
    control = Control(stepped=False, told=True, ends=(END,))
    vocabulary = tiny_llama.VOCABULARY
    special_ids = tiny_llama.SPECIAL_IDS

    def __init__(self, url: str | None, model: str) -> None:
        self.url = url
        self.model = model
        self.identity = f"{tiny_llama.IDENTITY}, served as {model}"

    def open(self, settings: Mapping[str, Setting]) -> Client:
        """Other clients of the same server.

        Raises:
            BadInput: where no server was named.
        """
        check_settings(self.knobs, settings)
        return Client(self._server(), self.model, settings)

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The weights that the server must have, in torch; refused as `open` is."""
        self._server()
        return tiny_llama.network()

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """It is behind HTTP."""
        return None

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """As the user says that it is."""
        return int(with_defaults(self.knobs, settings)["context_tokens"])

    def _server(self) -> str:
        if self.url is None:
            raise BadInput("model", _RULE, "nothing", "--model")
        return self.url


def factory(model: str) -> ClientFactory:
    """The factory of a URL, with the model's name behind a `#` where the server wants one.

    Raises:
        BadInput: where it is no URL, or nobody there lists models.
    """
    url, _, name = model.partition("#")
    if model == "tiny":  # listed without a server
        return ClientFactory(None, "tiny-llama")
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise BadInput("model", _RULE, model, "--model")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/models", timeout=ASKED_S) as listed:
            json.load(listed)["data"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput("model", "the URL of a server that lists its models", url, str(error)) from error
    return ClientFactory(url, name or "tiny-llama")


def _ids(text: str) -> list[int]:
    """The ids of a text that is made of tiny-llama's ASCII token texts."""
    return [int(token) for token in re.findall(r"t(\d+);", text)]
