"""llama.cpp's server, by `xllamacpp`, over HTTP on a port of its own.

It decides by itself what runs together: a schedule is played in logical time, and a step waits for the next pieces that
arrive. What it did is read off its answers: the slot, how many tokens of a prompt were in its cache, how many were drafted.

What it promises (README of its server): a prompt's cached part is not computed again (`cache_prompt`), and with different
batches bits, not results, may differ. Approximate by design and so never turned: `n_cache_reuse`, context shift. Quantised
weights and K,V are another model; flash attention moves near-ties; both stay off. With one context for all (`kv_unified`) it
may give up on requests for lack of room, which is an outcome and no finding.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from targets.adapters import tiny_llama
from targets.adapters.rows import Rows
from targets.adapters.streams import Piece, Streams
from targets.protocol import (
    Audit,
    BadInput,
    Control,
    Counted,
    Event,
    Knob,
    Reason,
    Refused,
    Request,
    Setting,
    check_settings,
    with_defaults,
)

END = tiny_llama.SPECIAL_IDS[1]
STEP_S = 2.5
"""So long a step waits for the next piece."""
TIMEOUT_S = 60.0
ROUNDING = 3.1e-5
"""Of a logit, as `slotfuzz bench rounding` measures it: alone, beside copies, with each knob at each of its values."""
NGRAM = 2
"""So many tokens that stood before suggest the next ones: few, as prompts and answers are short."""
CONTEXT_ROUND = 256
"""A slot's share of the context is rounded up to a multiple of so many tokens."""
DRAFTS = {
    "none": "NONE",
    "ngram-simple": "NGRAM_SIMPLE",
    "ngram-map-k": "NGRAM_MAP_K",
    "ngram-map-k4v": "NGRAM_MAP_K4V",
    "ngram-mod": "NGRAM_MOD",
    "ngram-cache": "NGRAM_CACHE",
    "itself": "DRAFT_SIMPLE",
}
"""Where drafts come from: the tokens so far, or a second copy of the model."""

KNOBS = (
    Knob(name="n_parallel", default=4, values=(4, 1, 2, 3, 8), low=1, high=64, unit="slots"),
    Knob(
        name="n_ctx",
        default=2048,
        values=(2048, 256, 512, 768, 4096),
        low=64,
        high=65536,
        unit="tokens",
        doc="of all slots together; each has its share, unless they share one context",
    ),
    Knob(name="kv_unified", default=False, values=(False, True)),
    Knob(
        name="kv_unified_per_slot",
        default=0,
        values=(0, 64, 256),
        low=0,
        high=65536,
        unit="tokens",
        doc="the most that one slot may have of a context that all share; 0: all of it",
    ),
    Knob(name="n_batch", default=2048, values=(2048, 2, 3, 8, 16, 33), low=2, high=4096, unit="tokens"),
    Knob(name="n_ubatch", default=512, values=(512, 1, 3, 8, 16, 32), low=1, high=4096, unit="tokens"),
    Knob(name="cont_batching", default=True, values=(True, False)),
    Knob(name="cache_ram_mib", default=8192, values=(8192, 0, 1), low=0, high=65536, unit="MiB"),
    Knob(name="cache_idle_slots", default=True, values=(True, False)),
    Knob(name="slot_prompt_similarity", default=0.1, values=(0.1, 0.0, 0.5, 1.0)),
    Knob(name="drafts", default="none", values=tuple(DRAFTS)),
    Knob(name="draft_max", default=6, values=(6, 1, 2, 16), low=1, high=64, unit="tokens"),
    Knob(name="draft_min", default=0, values=(0, 2), low=0, high=64, unit="tokens", doc="of a second model"),
    Knob(name="draft_p_min", default=0.0, values=(0.0, 0.05, 0.5), doc="a second model drafts as long as it is so sure"),
    Knob(name="n_threads", default=1, values=(1, 2), low=1, high=64, unit="threads"),
    Knob(
        name="n_cmpl",
        default=1,
        values=(1, 2, 3),
        low=1,
        high=64,
        build_time=False,
        unit="answers",
        doc="of each request, forked from one prompt, a slot each; others than the first go to who asks the same at once",
    ),
    Knob(
        name="slots_after",
        default="left",
        values=("left", "erased", "moved"),
        build_time=False,
        doc="what becomes of a slot whose request is done: its cells are erased, or saved and restored into the next slot",
    ),
    Knob(
        name="cache_prompt",
        default="on",
        values=("on", "off", "every other"),
        build_time=False,
        doc="whether requests ask for what is cached of their prompts",
    ),
    Knob(
        name="id_slot",
        default="free",
        values=("free", "named", "same"),
        build_time=False,
        doc="the engine's choice; each request names a slot in turn; all name slot 0",
    ),
    Knob(
        name="guard",
        default=True,
        values=(True, False),
        drawn=False,
        build_time=False,
        doc="whether requests for 0 tokens, which get 1, are refused before they are sent",
    ),
    Knob(name="n_probs", default=1, values=(1, 0, 5), low=0, high=320, build_time=False, unit="ids"),
)


class Server:
    """One server and the streams of its clients; fulfils `targets.protocol.Target`."""

    def __init__(self, model: Path, settings: Mapping[str, Setting]) -> None:
        self.settings = with_defaults(KNOBS, settings)
        self._kept = tempfile.TemporaryDirectory(prefix="slotfuzz-")
        self.server = _server(model, self.settings, self._kept.name)
        self.streams = Streams(self.server.listening_address, TIMEOUT_S)
        self.streams.get("/slots")  # its loop runs: a server that is closed before that never ends
        self.rows = Rows()
        self.slots: dict[int, int] = {}
        self.answering: dict[int, list[int]] = {}
        self.fresh: list[int] = []
        counted = ("prefix_hit", "engine_slot_reuse", "drafted", "forked", "slots_moved", "slots_erased", "gave_up")
        self.counts = dict.fromkeys(counted, 0)

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Sends a request, unless an answer of one that was just sent will do."""
        asked = self.settings
        if asked["guard"] and request.max_new_tokens == 0:
            return [Refused(submission, "no tokens")]
        answers = min(int(asked["n_cmpl"]), int(asked["n_parallel"]))
        self.rows.begin(submission, request)
        for first in self.fresh:
            group = self.answering[first]
            if self.rows.alike(first, request) and len(group) < answers:
                group.append(submission)
                return []
        self.answering[submission] = [submission]
        self.fresh.append(submission)
        body: dict[str, Any] = {
            "prompt": list(request.prompt),
            "n_predict": request.max_new_tokens,
            "stop": [f"t{token};" for token in request.stop if token != END],
            "stream": True,
            "return_tokens": True,
            "n_probs": asked["n_probs"],
            "temperature": 0.0,
            "cache_prompt": asked["cache_prompt"] == "on"
            or (asked["cache_prompt"] == "every other" and submission % 2 == 0),
            "timings_per_token": True,
        }
        if asked["id_slot"] != "free":
            body["id_slot"] = submission % int(asked["n_parallel"]) if asked["id_slot"] == "named" else 0
        if answers > 1:
            body["n_cmpl"] = answers
        self.streams.ask(submission, "/completion", body)
        return []

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Closes the connection; where several answers come by it, only when all of them have been left."""
        if submission not in self.rows.live:
            return []
        events = self.rows.end(submission, reason)
        for first, group in self.answering.items():
            if submission in group and not any(other in self.rows.live for other in group):
                self.streams.leave(first)
                self.fresh = [other for other in self.fresh if other != first]
        return events

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Waits for the next pieces of any stream that are for somebody; those of answers that nobody asked for are many."""
        if not self.rows.live:
            return []
        self.fresh.clear()
        events: list[Event] = []
        while not events:
            pieces = self.streams.wait(STEP_S)
            for piece in pieces:
                events += self._heard(piece)
            if not pieces:
                break
        return [*events, Counted(dict(self.counts))]

    def audit(self) -> Audit | None:
        """It tells of its slots only what is running in them."""
        return None

    def close(self) -> None:
        """Ends the streams, and then the server."""
        self.streams.close()
        del self.server
        self._kept.cleanup()

    def _heard(self, piece: Piece) -> list[Event]:
        """What one piece says, to whom it is for."""
        group = self.answering[piece.submission]
        live = [submission for submission in group if submission in self.rows.live]
        if not live:
            return []
        if piece.broken:
            raise ConnectionError(f"request #{live[0]}: {piece.broken}")
        if piece.status == 200 and piece.data is None:
            raise ConnectionError(f"the stream of request #{live[0]} ends without its last event")
        if piece.status != 200 or "error" in piece.data or "code" in piece.data:
            return [event for submission in live for event in self._failed(submission, piece.data)]
        index = int(piece.data.get("index", 0))
        if index >= len(group) or group[index] not in live:
            return []  # one answer more than anybody asked for
        self.counts["forked"] += index > 0 and piece.data["stop"]
        return self._told(group[index], piece.data)

    def _failed(self, submission: int, data: Any) -> list[Event]:
        """An error, which is by contract where it says that there is no room, or that the request can't be served."""
        error = data.get("error", data) if isinstance(data, dict) else {"message": data}
        message = str(error.get("message", error))
        if self.rows.answer(submission) or error.get("code") not in (400, 404):
            if "ontext" not in message:
                raise RuntimeError(f"request #{submission} failed: {message}")
            self.counts["gave_up"] += 1
            return self.rows.end(submission, Reason.ROOM)
        self.rows.forget(submission)
        return [Refused(submission, message)]

    def _told(self, submission: int, data: dict[str, Any]) -> list[Event]:
        """Tokens, and the end."""
        timings = data.get("timings", {})
        events = self.rows.admit(submission, int(timings.get("cache_n", 0)))
        probabilities = data.get("completion_probabilities", [])
        tokens = data.get("tokens", []) if not data["stop"] else []
        for index, token in enumerate(tokens):
            told: tuple[tuple[int, float], ...] = ()
            if index < len(probabilities) and probabilities[index]["id"] == token:
                told = ((token, float(probabilities[index]["logprob"])),)
            events.append(self.rows.emit(submission, token, told))
        if not data["stop"]:
            return events
        self.counts["prefix_hit"] += timings.get("cache_n", 0) > 0
        self.counts["drafted"] += timings.get("draft_n", 0) > 0
        slot = data["id_slot"]
        self.counts["engine_slot_reuse"] += slot in self.slots
        self.slots[slot] = submission
        self._leave_slot(slot)
        answer = self.rows.answer(submission)
        kind = data["stop_type"]
        last = int(data["stopping_word"][1:-1]) if kind == "word" else END if kind == "eos" else None
        if last is not None and answer[-1:] != [last]:
            events.append(self.rows.emit(submission, last, ()))
        reason = Reason.STOP if last is not None else Reason.LENGTH
        if kind == "limit" and len(answer) < self.rows.live[submission].max_new_tokens:
            reason = Reason.CONTEXT
        return [*events, *self.rows.end(submission, reason)]

    def _leave_slot(self, slot: int) -> None:
        """Has the engine erase what is in a slot, or move it; it may refuse, and waits until nobody runs there."""
        way = self.settings["slots_after"]
        if way == "erased":
            self.counts["slots_erased"] += self.streams.post(f"/slots/{slot}?action=erase", {}) == 200
        if way == "moved":
            name = {"filename": f"slot-{slot}"}
            saved = self.streams.post(f"/slots/{slot}?action=save", name)
            into = (slot + 1) % int(self.settings["n_parallel"])
            self.counts["slots_moved"] += saved == 200 and self.streams.post(f"/slots/{into}?action=restore", name) == 200


class LlamaFactory:
    """Starts servers; fulfils `targets.protocol.Factory`."""

    name = "llamacpp"
    knobs = KNOBS
    control = Control(stepped=False, told=True, shares=True, ends=(END,), gives_up=True, rounding=ROUNDING)
    vocabulary = tiny_llama.VOCABULARY
    special_ids = tiny_llama.SPECIAL_IDS
    identity = tiny_llama.IDENTITY

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, settings: Mapping[str, Setting]) -> Server:
        """A fresh server, in this process, with the model loaded anew."""
        check_settings(self.knobs, settings)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="slotfuzz-")
            tiny_llama.write_gguf(Path(self._folder.name) / "tiny.gguf")
        return Server(Path(self._folder.name) / "tiny.gguf", settings)

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The same weights in torch."""
        return tiny_llama.network()

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """It is no torch module."""
        return None

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """Of one slot; where all share one context, of all of them."""
        chosen = with_defaults(self.knobs, settings)
        slots = 1 if chosen["kv_unified"] else int(chosen["n_parallel"])
        share = -(-int(chosen["n_ctx"]) // slots)
        room = min(tiny_llama.CONTEXT_TOKENS_MAX, -(-share // CONTEXT_ROUND) * CONTEXT_ROUND)
        return min(room, int(chosen["kv_unified_per_slot"]) or room) if chosen["kv_unified"] else room


def factory(model: str) -> LlamaFactory:
    """The factory, on tiny-llama only."""
    if model != "tiny":
        raise BadInput("model", "left out for this engine", model, "--model")
    return LlamaFactory()


def _server(model: Path, settings: Mapping[str, Setting], kept: str) -> Any:
    """A server that listens on a port of its own, and keeps what it saves of slots in a folder."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # which would start a debugger where it aborts
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.warmup, params.fit_params, params.verbosity = False, False, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["n_threads"]
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.n_threads_http = 16
    params.slot_save_path = f"{kept}/"
    for name in ("n_parallel", "n_ctx", "kv_unified", "n_batch", "n_ubatch", "cont_batching"):
        setattr(params, name, settings[name])
    if settings["kv_unified"]:
        params.kv_unified_per_slot = settings["kv_unified_per_slot"]
    params.n_batch = max(params.n_batch, params.n_parallel)  # with less it aborts while it starts
    for name in ("cache_ram_mib", "cache_idle_slots", "slot_prompt_similarity"):
        setattr(params, name, settings[name])
    if settings["drafts"] != "none":
        drafted = int(settings["draft_max"])
        params.n_batch = max(params.n_batch, (drafted + 1) * params.n_parallel)  # with less it aborts when it drafts
        for ngram in (params.speculative.ngram_simple, params.speculative.ngram_map_k, params.speculative.ngram_map_k4v):
            ngram.size_n, ngram.size_m, ngram.min_hits = NGRAM, drafted, 1
        mod = params.speculative.ngram_mod
        mod.n_match, mod.n_min, mod.n_max = NGRAM, 1, drafted
        draft = params.speculative.draft
        draft.n_max, draft.n_min = drafted, min(int(settings["draft_min"]), drafted)
        draft.p_min = float(settings["draft_p_min"])
        kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{DRAFTS[str(settings['drafts'])]}")
        params.speculative.types = [kind]
    if settings["drafts"] == "itself":
        params.speculative.draft.mparams.path = str(model)
    return xllamacpp.Server(params)
