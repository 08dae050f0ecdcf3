"""OpenVINO GenAI's continuous batching, stepped through its public interface: `add_request`, `step`, handles.

What it promises (docs of 2026.4): greedy requests get the tokens that they get alone, whatever is batched, preempted or
cached. K,V and arithmetic are kept in float32. Cache eviction and sparse attention are approximate by design and never
turned on. A request that the pool can't hold is ignored, which is an outcome; ids past the vocabulary and empty prompts are
the caller's to keep away.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from targets.adapters import tiny_llama
from targets.adapters.rows import Rows
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

BLOCK_TOKENS = 32
UNHEARD_BATCHES_MAX = 400
"""So many batches in which nobody gets a token (prompts in small parts), and a step is over all the same."""

KNOBS = (
    Knob(name="num_blocks", default=64, values=(64, 2, 3, 4, 5, 6, 8, 12), low=1, high=4096, unit="blocks of 32 tokens"),
    Knob(name="max_num_batched_tokens", default=256, values=(256, 1, 2, 8, 31, 32, 33, 64), low=1, high=8192, unit="tokens"),
    Knob(name="max_num_seqs", default=256, values=(256, 1, 2, 3, 4), low=1, high=1024, unit="sequences"),
    Knob(name="dynamic_split_fuse", default=True, values=(True, False)),
    Knob(name="enable_prefix_caching", default=True, values=(True, False)),
    Knob(name="drafts", default="none", values=("none", "prompt-lookup", "itself"), doc="where drafts come from"),
    Knob(name="num_assistant_tokens", default=3, values=(3, 1, 5), low=1, high=32, build_time=False, unit="tokens"),
    Knob(
        name="assistant_confidence_threshold",
        default=0.0,
        values=(0.0, 0.2, 0.9),
        build_time=False,
        doc="drafts by a second model end where it is less sure, in place of a fixed number; 0: a fixed number",
    ),
    Knob(name="max_ngram_size", default=2, values=(2, 1, 4), low=1, high=64, build_time=False, unit="tokens looked up"),
    Knob(name="threads", default=1, values=(1, 2), low=1, high=64, unit="threads"),
    Knob(
        name="num_return_sequences",
        default=1,
        values=(1, 2, 3),
        low=1,
        high=16,
        build_time=False,
        unit="answers",
        doc="of each request, sampled from the likeliest token; others than the first go to who asks the same",
    ),
    Knob(name="logprobs", default=True, values=(True, False), build_time=False),
    Knob(name="leave", default="cancel", values=("cancel", "stop"), build_time=False, doc="how a client gives up"),
    Knob(
        name="guard",
        default=True,
        values=(True, False),
        drawn=False,
        build_time=False,
        doc="whether what the engine takes on trust and can't serve is refused before it gets there",
    ),
)


class Pipeline:
    """One pipeline that is stepped; fulfils `targets.protocol.Target`."""

    def __init__(self, folder: Path, settings: Mapping[str, Setting]) -> None:
        self.settings = with_defaults(KNOBS, settings)
        self.room = BLOCK_TOKENS * int(self.settings["num_blocks"])
        if not self.settings["dynamic_split_fuse"]:  # a prompt goes in as a whole, once more where it was preempted
            self.room = min(self.room, int(self.settings["max_num_batched_tokens"]))
        self.pipeline = _pipeline(folder, self.settings)
        self.rows = Rows()
        self.handles: dict[int, Any] = {}
        self.first: dict[int, int] = {}
        self.siblings: dict[int, list[int]] = {}
        self.lines: dict[int, dict[int, int]] = {}
        self.pending: list[int] = []
        self.counts = dict.fromkeys(("cache_full", "not_scheduled", "several_tokens_a_step", "forked", "ignored"), 0)

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Keeps a request for the next step, beside one that asks the same, where several answers come of one prompt."""
        if self.settings["guard"]:
            needed = len(request.prompt) + request.max_new_tokens
            if not request.prompt or max(request.prompt) >= tiny_llama.VOCABULARY or needed > self.room:
                return [Refused(submission, "empty, past the vocabulary, or more than the pool, or a batch, holds")]
        self.rows.begin(submission, request)
        for first in self.pending:
            group = self.siblings[first]
            if self.rows.alike(first, request) and 1 + len(group) < int(self.settings["num_return_sequences"]):
                group.append(submission)
                self.first[submission] = first
                return []
        self.pending.append(submission)
        self.first[submission] = submission
        self.siblings[submission] = []
        return []

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Cancels; where several answers are one request of the engine, only when all of them have been left."""
        if submission not in self.rows.live:
            return []
        events = self._hand_in()
        if submission not in self.rows.live:
            return events
        events += self.rows.end(submission, reason)
        first = self.first[submission]
        if not any(other in self.rows.live for other in (first, *self.siblings[first])):
            handle = self.handles.pop(first)
            handle.cancel() if self.settings["leave"] == "cancel" else handle.stop()
        return events

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """A batch; more where nobody got a token in it."""
        events = self._hand_in()
        for _ in range(UNHEARD_BATCHES_MAX):
            if not self.pipeline.has_non_finished_requests():
                break
            self.pipeline.step()
            self._count()
            for first in list(self.handles):
                events += self._heard(first)
            if events:
                break
        return [*events, Counted(dict(self.counts))]

    def audit(self) -> Audit | None:
        """It tells how full its pool is, not who holds what."""
        return None

    def close(self) -> None:
        """Lets go of the pipeline."""
        self.handles.clear()
        del self.pipeline

    def _hand_in(self) -> list[Event]:
        """Gives the engine what was asked since the last step; what it does not take is refused."""
        events: list[Event] = []
        for first in self.pending:
            if first not in self.rows.live and not any(other in self.rows.live for other in self.siblings[first]):
                continue
            try:
                self.handles[first] = self._asked(first, self.rows.live[first])
                self.lines[first] = {}
            except RuntimeError as error:
                for submission in (first, *self.siblings[first]):
                    self.rows.forget(submission)
                    events.append(Refused(submission, str(error).strip().splitlines()[-1]))
        self.pending.clear()
        return events

    def _asked(self, submission: int, request: Request) -> Any:
        """The engine's handle of a request."""
        import numpy
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.max_new_tokens
        config.ignore_eos = not request.stop
        config.stop_token_ids = set(request.stop)
        config.do_sample = False
        if int(self.settings["num_return_sequences"]) > 1 and self.settings["drafts"] == "none":
            config.do_sample, config.top_k = True, 1
            config.num_return_sequences = int(self.settings["num_return_sequences"])
        elif self.settings["logprobs"]:
            config.logprobs = 1
        sure = float(self.settings["assistant_confidence_threshold"])
        if self.settings["drafts"] == "itself" and sure > 0:
            config.assistant_confidence_threshold = sure
        elif self.settings["drafts"] != "none":
            config.num_assistant_tokens = int(self.settings["num_assistant_tokens"])
        if self.settings["drafts"] == "prompt-lookup":
            config.max_ngram_size = int(self.settings["max_ngram_size"])
        prompt = openvino.Tensor(numpy.array([request.prompt], dtype=numpy.int64).reshape(1, -1))
        return self.pipeline.add_request(submission, prompt, config)

    def _heard(self, first: int) -> list[Event]:
        """What the engine has for one request, or for the several that it is one of."""
        from openvino_genai import GenerationFinishReason, GenerationStatus

        handle, events = self.handles[first], []
        while handle.can_read():
            for sequence, output in sorted(handle.read().items()):
                lines = self.lines[first]
                who = lines.setdefault(sequence, len(lines))
                answering = (first, *self.siblings[first])
                if who >= len(answering) or answering[who] not in self.rows.live:
                    continue
                submission = answering[who]
                self.counts["forked"] += who > 0 and not self.rows.answer(submission)
                self.counts["several_tokens_a_step"] += len(output.generated_ids) > 1
                events += self.rows.admit(submission)
                told = output.generated_log_probs if self._tells else []
                for index, token in enumerate(output.generated_ids):
                    likely = ((token, told[index]),) if index < len(told) else ()
                    events.append(self.rows.emit(submission, token, likely))
                if output.finish_reason != GenerationFinishReason.NONE:
                    stopped = output.finish_reason == GenerationFinishReason.STOP
                    events += self.rows.end(submission, Reason.STOP if stopped else Reason.LENGTH)
        if handle.get_status() == GenerationStatus.IGNORED:
            self.counts["ignored"] += 1
            for submission in (first, *self.siblings[first]):
                if submission in self.rows.live:
                    events += self.rows.end(submission, Reason.ROOM)
        if not any(submission in self.rows.live for submission in (first, *self.siblings[first])):
            self.handles.pop(first, None)
        return events

    @property
    def _tells(self) -> bool:
        """Whether log-probabilities are those of the network."""
        alone = int(self.settings["num_return_sequences"]) == 1
        return bool(self.settings["logprobs"]) and alone and self.settings["drafts"] == "none"

    def _count(self) -> None:
        metrics = self.pipeline.get_metrics()
        self.counts["cache_full"] += metrics.cache_usage >= 99.0
        self.counts["not_scheduled"] += metrics.requests > metrics.scheduled_requests


class OpenVinoFactory:
    """Opens pipelines; fulfils `targets.protocol.Factory`."""

    name = "openvino"
    knobs = KNOBS
    control = Control(told=True, shares=True, gives_up=True)
    vocabulary = tiny_llama.VOCABULARY
    special_ids = tiny_llama.SPECIAL_IDS
    identity = tiny_llama.IDENTITY

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, settings: Mapping[str, Setting]) -> Pipeline:
        """A fresh pipeline, with the model compiled anew."""
        check_settings(self.knobs, settings)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="slotfuzz-")
            tiny_llama.write_openvino(Path(self._folder.name))
        return Pipeline(Path(self._folder.name), settings)

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The same weights in torch."""
        return tiny_llama.network()

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """It is no torch module."""
        return None

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """As many as the model has positions, or the pool room."""
        chosen = with_defaults(self.knobs, settings)
        whole = tiny_llama.CONTEXT_TOKENS_MAX if chosen["dynamic_split_fuse"] else int(chosen["max_num_batched_tokens"])
        return min(tiny_llama.CONTEXT_TOKENS_MAX, BLOCK_TOKENS * int(chosen["num_blocks"]), whole)


def factory(model: str) -> OpenVinoFactory:
    """The factory, on tiny-llama only."""
    if model != "tiny":
        raise BadInput("model", "left out for this engine", model, "--model")
    return OpenVinoFactory()


def _pipeline(folder: Path, settings: Mapping[str, Setting]) -> Any:
    """A pipeline in float32 throughout."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = settings["num_blocks"]
    scheduler.cache_size = 0
    for name in ("max_num_batched_tokens", "max_num_seqs", "dynamic_split_fuse", "enable_prefix_caching"):
        setattr(scheduler, name, settings[name])
    if not settings["dynamic_split_fuse"]:  # else the engine refuses, in its first step
        scheduler.max_num_seqs = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    exact = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": settings["threads"]}
    properties: dict[str, Any] = dict(exact)
    if settings["drafts"] == "prompt-lookup":
        properties["prompt_lookup"] = True
    if settings["drafts"] == "itself":
        properties["draft_model"] = openvino_genai.draft_model(str(folder), "CPU", scheduler_config=scheduler, **exact)
    return openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
