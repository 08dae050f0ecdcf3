"""CTranslate2's generator: static batches, stepped through the callback that it calls for every token.

Each batch is one call of `generate_batch` in a thread of its own. Its callback holds that thread until the next step, so
that a step is one decoding step of every batch that runs, and rows leave a batch (by budget, stop id or cancel) while others
go on.

What it promises (docs of 4.8): with greedy search a row of a batch gets the tokens that it gets alone. Prompts of unequal
lengths are forwarded together up to the shortest, the rest token by token. Log-probabilities are those of the network. Where
prompts are left out of results but one of a batch has a single token, the others' prompts are in theirs after all, and their
answers shorter: a bug, found by `guard=False`; otherwise such prompts go in batches of their own.
"""

from __future__ import annotations

import json
import tempfile
import threading
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
    Prefilled,
    Reason,
    Refused,
    Request,
    Setting,
    check_settings,
    with_defaults,
)

WAIT_S = 30.0
"""So long a batch may take for a decoding step."""
UNHEARD_STEPS_MAX = 400
"""So many decoding steps that serve only rows whose clients have left, and a step is over all the same."""

KNOBS = (
    Knob(name="rows_max", default=8, values=(8, 1, 2, 3, 4), low=1, high=64, unit="requests in a batch"),
    Knob(name="inter_threads", default=1, values=(1, 2, 3), low=1, high=8, unit="batches at once"),
    Knob(name="intra_threads", default=1, values=(1, 2), low=1, high=16, unit="threads of a batch"),
    Knob(name="max_queued_batches", default=0, values=(0, 1, -1), doc="0: as the engine likes; -1: no limit"),
    Knob(
        name="max_batch_size",
        default=0,
        values=(0, 1, 2, 3),
        low=0,
        high=4096,
        build_time=False,
        unit="rows or tokens",
        doc="by which the engine sorts and splits a batch (0: not); left out where batches run at once, as parts would too",
    ),
    Knob(name="batch_type", default="examples", values=("examples", "tokens"), build_time=False, doc="of max_batch_size"),
    Knob(
        name="unload",
        default="never",
        values=("never", "idle", "idle to memory"),
        build_time=False,
        doc="whether the model is unloaded whenever nobody is left, and loaded again for who comes next",
    ),
    Knob(name="return_logits_vocab", default=False, values=(False, True), build_time=False),
    Knob(name="include_prompt_in_result", default=False, values=(False, True), build_time=False),
    Knob(name="return_scores", default=True, values=(True, False), build_time=False),
    Knob(
        name="static_prompt",
        default="none",
        values=("none", "kept", "not kept"),
        build_time=False,
        doc="whether what the prompts of a batch begin with alike goes in as its static prompt, and is kept for the next",
    ),
    Knob(
        name="guard",
        default=True,
        values=(True, False),
        drawn=False,
        build_time=False,
        doc="whether prompts of one token go in batches of their own",
    ),
    Knob(name="order", default="asked", values=("asked", "reversed"), build_time=False, doc="of the rows in a batch"),
)


class Row:
    """One request in a batch: what it still has to say, and whether its client listens."""

    def __init__(self, submission: int, request: Request, echoed: int) -> None:
        self.submission = submission
        self.left = request.max_new_tokens
        self.stop = frozenset(request.stop)
        self.echoed = echoed
        self.gone = False

    def hear(self, token: int) -> tuple[bool, bool]:
        """Takes one token: whether it is part of the answer, and whether the row is to stop."""
        if self.echoed:
            self.echoed -= 1
            return False, self.gone
        self.left -= 1
        return True, self.gone or self.left <= 0 or token in self.stop


class Batch:
    """One call of `generate_batch`, which waits in its callback to be let on.

    Attributes:
        told: (submission, token, log-probability) of the last step.
        error: What the call raised.
        over: Whether it has returned.
    """

    def __init__(self, generator: Any, rows: list[Row], prompts: list[list[str]], options: dict[str, Any]) -> None:
        self.rows = rows
        self.told: list[tuple[int, int, float | None]] = []
        self.error = ""
        self.over = False
        self._step: int | None = None
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(generator, prompts, options), daemon=True)
        self._thread.start()

    def advance(self) -> list[tuple[int, int, float | None]]:
        """Lets the batch make one decoding step, and says what came.

        Raises:
            RuntimeError: where the call raised, or does not come to the end of a step.
        """
        self.told = []
        self._go.release()
        if not self._came.acquire(timeout=WAIT_S):
            raise RuntimeError(f"a batch did not make a step in {WAIT_S:g} s")
        if self.error:
            raise RuntimeError(self.error)
        return self.told

    def finish(self) -> None:
        """Has every row stop, and waits for the end."""
        for row in self.rows:
            row.gone = True
        self._go.release(100_000)
        self._thread.join(WAIT_S)

    def _run(self, generator: Any, prompts: list[list[str]], options: dict[str, Any]) -> None:
        self._go.acquire()
        try:
            generator.generate_batch(prompts, callback=self._heard, **options)
        except Exception as error:  # what the engine raises is raised again where somebody waits for it
            self.error = f"{type(error).__name__}: {error}"
        self.over = True
        self._came.release()

    def _heard(self, result: Any) -> bool:
        """The engine's callback, for each token; whether its row is to stop."""
        if self._step not in (None, result.step):
            self._came.release()
            self._go.acquire()
        self._step = result.step
        row = self.rows[int(result.batch_id)]
        answer, stops = row.hear(int(result.token_id))
        if answer:
            self.told.append((row.submission, result.token_id, result.log_prob))
        return stops


class Generator:
    """A generator and its batches; fulfils `targets.protocol.Target`."""

    def __init__(self, folder: Path, settings: Mapping[str, Setting]) -> None:
        import ctranslate2

        self.settings = with_defaults(KNOBS, settings)
        self.generator = ctranslate2.Generator(
            str(folder),
            device="cpu",
            compute_type="float32",
            intra_threads=int(self.settings["intra_threads"]),
            inter_threads=int(self.settings["inter_threads"]),
            max_queued_batches=int(self.settings["max_queued_batches"]),
        )
        self.names: list[str] = json.loads((folder / "vocabulary.json").read_text())
        self.rows = Rows()
        self.waiting: list[int] = []
        self.batches: list[Batch] = []
        self.static: tuple[int, ...] = ()
        self.unloaded = False
        self.counts = dict.fromkeys(
            ("batches_at_once", "static_prompt", "static_prompt_again", "row_left_early", "batch_split", "unloaded"), 0
        )

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Queues a request for the next batch."""
        if not request.prompt or max(request.prompt) >= tiny_llama.VOCABULARY or not request.max_new_tokens:
            return [Refused(submission, "empty, past the vocabulary, or no tokens")]
        if len(request.prompt) + request.max_new_tokens > tiny_llama.CONTEXT_TOKENS_MAX:
            return [Refused(submission, "longer than the context")]
        self.rows.begin(submission, request)
        self.waiting.append(submission)
        return []

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Takes it out of the queue, or has its row stop with its next token."""
        if submission not in self.rows.live:
            return []
        if submission in self.waiting:
            self.waiting.remove(submission)
        for batch in self.batches:
            for row in batch.rows:
                row.gone |= row.submission == submission
        return self.rows.end(submission, reason)

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Begins a batch where one is due, and lets every batch make a decoding step; more where nobody heard of it."""
        events: list[Event] = []
        for _ in range(UNHEARD_STEPS_MAX):
            while self.waiting and len(self.batches) < int(self.settings["inter_threads"]):
                events += self._begin()
            self.counts["batches_at_once"] += len(self.batches) > 1
            for batch in list(self.batches):
                events += self._advance(batch)
            if events or not self.batches:
                break
        if self.settings["unload"] != "never" and not self.batches and not self.waiting:
            self._unload()
        return [*events, Counted(dict(self.counts))]

    def _unload(self) -> None:
        """Unloads the model, unless it was; `_begin` loads it again."""
        if not self.unloaded:
            self.generator.unload_model(to_cpu=self.settings["unload"] == "idle to memory")
            self.counts["unloaded"] += 1
            self.unloaded = True

    def _advance(self, batch: Batch) -> list[Event]:
        """One decoding step of one batch."""
        events: list[Event] = []
        echoed = [row.echoed for row in batch.rows]
        for submission, token, likely in batch.advance():
            events += self._heard(submission, token, likely)
        for row, before in zip(batch.rows, echoed, strict=True):
            if row.echoed < before and row.submission in self.rows.live:
                prompt = self.rows.live[row.submission].prompt
                events.append(Prefilled(row.submission, len(prompt) - row.echoed))
        if batch.over:
            self.batches.remove(batch)
            lost = [row.submission for row in batch.rows if row.submission in self.rows.live]
            if lost:
                raise RuntimeError(f"a batch is over, and {lost} have not all their tokens")
        return events

    def audit(self) -> Audit | None:
        """There is nothing to account for."""
        return None

    def close(self) -> None:
        """Ends the batches, and lets go of the generator."""
        for batch in self.batches:
            batch.finish()
        del self.generator

    def _begin(self) -> list[Event]:
        """A batch of those that have waited for longest."""
        if self.unloaded:
            self.generator.load_model()
            self.unloaded = False
        first = len(self.rows.live[self.waiting[0]].prompt) == 1
        alike = [
            one for one in self.waiting if (len(self.rows.live[one].prompt) == 1) == first or not self.settings["guard"]
        ]
        chosen = alike[: int(self.settings["rows_max"])]
        self.waiting = [submission for submission in self.waiting if submission not in chosen]
        if self.settings["order"] == "reversed":
            chosen.reverse()
        requests = [self.rows.live[submission] for submission in chosen]
        static = self._static(requests)
        echoes = bool(self.settings["include_prompt_in_result"])
        prompts = [request.prompt[len(static) :] for request in requests]
        rows = [
            Row(submission, request, len(prompt) - 1 if echoes else 0)
            for submission, request, prompt in zip(chosen, requests, prompts, strict=True)
        ]
        longest = max(len(prompt) for prompt in prompts) if echoes else 0
        options: dict[str, Any] = {
            "max_length": longest + max(request.max_new_tokens for request in requests),
            "include_prompt_in_result": echoes,
            "end_token": [],
            "return_scores": bool(self.settings["return_scores"]),
            "return_logits_vocab": bool(self.settings["return_logits_vocab"]),
        }
        if self.settings["max_batch_size"] and int(self.settings["inter_threads"]) == 1:
            options["max_batch_size"] = int(self.settings["max_batch_size"])
            options["batch_type"] = self.settings["batch_type"]
            self.counts["batch_split"] += len(rows) > 1
        if static:
            options["static_prompt"] = [self.names[token] for token in static]
            options["cache_static_prompt"] = self.settings["static_prompt"] == "kept"
            self.counts["static_prompt"] += 1
            self.counts["static_prompt_again"] += static == self.static
            self.static = static
        named = [[self.names[token] for token in prompt] for prompt in prompts]
        self.batches.append(Batch(self.generator, rows, named, options))
        return [event for submission in chosen for event in self.rows.admit(submission)]

    def _static(self, requests: list[Request]) -> tuple[int, ...]:
        """What all prompts of a batch begin with, at least a token of each left; empty where it is not asked for.

        What was static the last time is taken again where it still fits, so that a kept one is used.
        """
        if self.settings["static_prompt"] == "none":
            return ()
        first, shortest = (
            requests[0].prompt,
            min(len(request.prompt) for request in requests) - (2 if self.settings["guard"] else 1),
        )
        fits = all(request.prompt[: len(self.static)] == self.static for request in requests)
        if self.static and fits and len(self.static) <= shortest:
            return self.static
        length = 0
        while length < shortest and all(request.prompt[length] == first[length] for request in requests):
            length += 1
        return first[: max(0, length)]

    def _heard(self, submission: int, token: int, likely: float | None) -> list[Event]:
        """One token of a request, and its end where that was the last."""
        if submission not in self.rows.live:
            return []  # the token with which a row that was left stops
        request = self.rows.live[submission]
        events = [self.rows.emit(submission, token, () if likely is None else ((token, likely),))]
        if token in request.stop:
            events += self.rows.end(submission, Reason.STOP)
        elif len(self.rows.answer(submission)) >= request.max_new_tokens:
            events += self.rows.end(submission, Reason.LENGTH)
        else:
            return events
        self.counts["row_left_early"] += any(
            row.submission in self.rows.live for batch in self.batches for row in batch.rows
        )
        return events


class GeneratorFactory:
    """Opens generators; fulfils `targets.protocol.Factory`."""

    name = "ctranslate2"
    knobs = KNOBS
    control = Control(told=True, shares=True)
    vocabulary = tiny_llama.VOCABULARY
    special_ids = tiny_llama.SPECIAL_IDS
    identity = tiny_llama.IDENTITY

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, settings: Mapping[str, Setting]) -> Generator:
        """A fresh generator, with the model loaded anew; it is converted once."""
        check_settings(self.knobs, settings)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="slotfuzz-")
            _convert(Path(self._folder.name) / "model")
        return Generator(Path(self._folder.name) / "model", settings)

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The same weights in torch."""
        return tiny_llama.network()

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """It is no torch module."""
        return None

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """As many as the model has positions."""
        return tiny_llama.CONTEXT_TOKENS_MAX


def factory(model: str) -> GeneratorFactory:
    """The factory, on tiny-llama only."""
    if model != "tiny":
        raise BadInput("model", "left out for this engine", model, "--model")
    return GeneratorFactory()


def _convert(folder: Path) -> None:
    """Writes the model in CTranslate2's own form, with its own converter."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(tiny_llama.HF)).convert(str(folder), quantization="float32")
