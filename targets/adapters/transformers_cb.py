"""transformers' continuous batching, one step at a time.

The manager's own loop runs in a thread; its body is three calls (prepare a batch, generate, update), and here they are made
by `step`, so that a replay is exact. Everything before and behind them is the public interface: `add_request`,
`cancel_request`, the output queue.

What it promises (docs of 5.24): each request gets the tokens of `generate`, whatever shares its batch, its pages or its
prefix. It takes prompts on trust: an empty one, an id past the vocabulary and one that can never fit are the caller's to
keep away, and with the knob `guard` they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from targets.adapters import tiny_llama
from targets.models import Model, find_model
from targets.protocol import (
    Admitted,
    Audit,
    Control,
    Counted,
    Emitted,
    Event,
    Finished,
    Freed,
    Knob,
    Preempted,
    Prefilled,
    Reason,
    Refused,
    Request,
    Setting,
    check_settings,
    with_defaults,
)

KNOBS = (
    Knob(name="page_size", default=16, values=(16, 4, 5, 8, 32, 64, 256), low=4, high=4096, unit="tokens"),
    Knob(name="num_blocks", default=64, values=(64, 3, 4, 6, 8, 10, 12, 16, 24), low=1, high=4096, unit="blocks"),
    Knob(name="max_batch_tokens", default=256, values=(256, 1, 2, 3, 8, 16, 17, 64), low=1, high=8192, unit="tokens"),
    Knob(name="max_requests_per_batch", default=64, values=(64, 1, 2, 3, 4), low=1, high=1024, unit="requests"),
    Knob(name="scheduler_type", default="fifo", values=("fifo", "prefill_first")),
    Knob(
        name="safety_margin",
        default="class",
        values=("class", 0.0, 0.1, 0.5, 1.0),
        doc="share of free blocks under which no prompt is begun; class: the scheduler's own",
    ),
    Knob(name="allow_block_sharing", default=True, values=(True, False)),
    Knob(name="attention", default="sdpa", values=("sdpa", "eager")),
    Knob(name="return_logprobs", default=True, values=(True, False)),
    Knob(
        name="choice",
        default="greedy",
        values=("greedy", "top-1", "top-1 each"),
        doc="greedy; sampled from the likeliest; the same as a parameter of each request",
    ),
    Knob(
        name="num_return_sequences",
        default=1,
        values=(1, 2, 3, 4),
        low=1,
        high=16,
        unit="answers",
        doc="of each request, forked from one prefill; more than 1 needs top-1, which is then taken",
    ),
    Knob(
        name="ids",
        default="own",
        values=("own", "clients"),
        build_time=False,
        doc="request ids: one for each, or what its client calls itself, again once the last one of that name has ended",
    ),
    Knob(
        name="guard",
        default=True,
        values=(True, False),
        drawn=False,
        build_time=False,
        doc="whether what the engine takes on trust and can't serve is refused before it gets there",
    ),
)


UNHEARD_BATCHES_MAX = 64
"""So many batches in which nothing happens to anybody who listens, and a step is over all the same."""


class Engine:
    """One manager that is stepped; fulfils `targets.protocol.Target`."""

    def __init__(self, network: Any, settings: Mapping[str, Setting], vocabulary: int) -> None:
        self.settings = with_defaults(KNOBS, settings)
        self.vocabulary = vocabulary
        self.room = room(self.settings)
        self.top_1, self.each = sampled(self.settings), each(self.settings)
        self.manager = manager(network, self.settings)
        self.processor = self.manager._create_batch_processor()
        self.manager.batch_processor = self.processor
        self.matched: dict[str, int] = {}
        _watch_matches(self.processor.cache, self.matched)
        self.groups: list[list[tuple[int, Request]]] = []
        self.requests: dict[int, Request] = {}
        self.owners: dict[str, int] = {}
        self.answers: dict[int, list[int]] = {}
        self.grouped: set[str] = set()
        self.prefilled: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.pages: dict[tuple[str, int], str] = {}
        self.counts = dict.fromkeys(
            ("prefix_hit", "preempted", "forked", "page_reuse", "page_shared", "chunked", "starved"), 0
        )

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Keeps a request for the next step, beside one that asks the same, where several answers come of one prompt."""
        if self.settings["guard"]:
            needed = len(request.prompt) + request.max_new_tokens
            if not request.prompt or max(request.prompt) >= self.vocabulary or needed > self.room:
                return [Refused(submission, "empty, past the vocabulary, or more than the cache holds")]
        self.requests[submission] = request
        for group in self.groups:
            first = group[0][1]
            alike = (first.prompt, first.max_new_tokens, first.stop) == (
                request.prompt,
                request.max_new_tokens,
                request.stop,
            )
            room = len(group) < int(self.settings["num_return_sequences"])
            if alike and room:
                group.append((submission, request))
                return []
        self.groups.append([(submission, request)])
        return []

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Passes a cancel on; the engine acts on it before its next batch.

        An answer that is still to be forked from another has no id to cancel, and with the one that it is forked from all
        of them would go: there the client leaves, and the engine goes on.
        """
        if submission not in self.requests:
            return []
        self._hand_in()
        scheduler = self.processor.scheduler
        for name in [name for name, owner in self.owners.items() if owner == submission]:
            state = scheduler.active_requests.get(name) or scheduler.waiting_requests.get(name)
            if name in self.grouped and (state is None or state.num_children):
                del self.owners[name]
            else:
                self.manager.cancel_request(name)
        return self._end(submission, reason)

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """A batch, as an iteration of the manager's own loop; more where it only served answers that nobody asked for."""
        self._hand_in()
        events: list[Event] = []
        for _ in range(UNHEARD_BATCHES_MAX):
            ready = self._batch(events)
            if events or not ready:
                break
        return [*events, Counted(dict(self.counts))]

    def _batch(self, events: list[Event]) -> bool:
        """One batch, and what it did; whether there was anything to do."""
        with torch.no_grad():
            ready: bool = self.processor.prepare_next_batch()
            events += self._moves()
            if ready:
                self.manager._generation_step()
                self.processor.update_batch()
        for state in self.processor.scheduler.active_requests.values():
            submission = self.owners.get(state.request_id)
            if submission is None or submission not in self.requests or not state.remaining_prefill_tokens:
                continue
            if state.position_offset > self.prefilled.get(submission, 0):
                self.counts["chunked"] += 1
                self.prefilled[submission] = state.position_offset
                events.append(Prefilled(submission, state.position_offset))
        while not self.manager.output_router.output_queue.empty():
            events += self._heard_of(self.manager.output_router.output_queue.get_nowait())
        self._count_pages()
        return ready

    def audit(self) -> Audit | None:
        """Its pages are counted, not accounted for."""
        return None

    def close(self) -> None:
        """Nothing outlives it."""
        self.manager.destroy()

    def _hand_in(self) -> None:
        """Gives the engine what was asked since the last step."""
        for group in self.groups:
            first, request = group[0]
            name = self._name(first, request)
            self.owners[name] = first
            for index, (sibling, _) in enumerate(group[1:]):
                self.grouped |= {name, f"{name}__child#{index}"}
                self.owners[f"{name}__child#{index}"] = sibling
            self.manager.add_request(
                list(request.prompt),
                request_id=name,
                max_new_tokens=request.max_new_tokens,
                streaming=True,
                eos_token_id=list(request.stop) or -1,
                **self.each,
            )
        self.groups.clear()

    def _name(self, submission: int, request: Request) -> str:
        """The id under which a request goes."""
        name = f"client-{request.client_id}"
        free = self.owners.get(name) not in self.requests
        return name if self.settings["ids"] == "clients" and request.client_id is not None and free else f"#{submission}"

    def _moves(self) -> list[Event]:
        """Who was admitted and who had to make way, as the scheduler has it now."""
        events: list[Event] = []
        active = self.processor.scheduler.active_requests
        running = {self.owners[name]: name for name in active if name in self.owners}
        for submission in sorted(set(self.rows) - set(running)):
            if submission in self.requests:
                self.counts["preempted"] += 1
                events.append(Preempted(submission, self.rows.pop(submission)))
        for submission, name in running.items():
            if submission in self.requests and submission not in self.rows:
                self.counts["forked"] += "__child#" in name
                events.append(self._admitted(submission, self.matched.pop(name, 0)))
        self.counts["starved"] += len(self.processor.scheduler.starved_requests)
        return events

    def _admitted(self, submission: int, cached: int) -> Admitted:
        """The event of one that is running now, in the first row that is free."""
        row = next(row for row in range(len(self.rows) + 1) if row not in self.rows.values())
        self.rows[submission] = row
        self.counts["prefix_hit"] += bool(cached)
        return Admitted(submission, row, cached)

    def _heard_of(self, output: Any) -> list[Event]:
        """What one output of the engine says."""
        submission = self.owners.get(output.request_id)
        if submission is None:
            return []  # one answer more than anybody asked for
        if output.error is not None:
            raise RuntimeError(f"request {output.request_id} failed: {output.error}")
        events: list[Event] = []
        if submission not in self.rows and submission in self.requests:
            events.append(self._admitted(submission, 0))
        tokens, logprobs = output.generated_tokens, output.logprobs
        shown = not self.top_1 and len(logprobs) == len(tokens)
        events += [
            Emitted(submission, tokens[index], logprobs=((tokens[index], logprobs[index]),) if shown else ())
            for index in range(len(self.answers.get(submission, [])), len(tokens))
        ]
        self.answers[submission] = tokens
        if output.is_finished():
            request = self.requests.get(submission)
            stopped = request is not None and bool(tokens) and tokens[-1] in request.stop
            events += self._end(submission, Reason.STOP if stopped else Reason.LENGTH)
        return events

    def _end(self, submission: int, reason: Reason) -> list[Event]:
        """A request is over, as far as its client is concerned."""
        self.requests.pop(submission, None)
        events: list[Event] = [Finished(submission, reason, tuple(self.answers.get(submission, ())))]
        row = self.rows.pop(submission, None)
        return events if row is None else [*events, Freed(submission, row)]

    def _count_pages(self) -> None:
        """Looks whose each page is now, and whose it was."""
        holders: dict[tuple[str, int], str] = {}
        for kind, allocator in self.processor.cache.cache_allocators.items():
            for name, blocks in allocator.block_table.items():
                for block in blocks:
                    before = self.pages.get((kind, block))
                    self.counts["page_shared"] += (kind, block) in holders and before != holders[kind, block]
                    self.counts["page_reuse"] += (kind, block) not in holders and before not in (None, name)
                    holders[kind, block] = name
        self.pages |= holders


class TransformersFactory:
    """Opens managers on one network; fulfils `targets.protocol.Factory`."""

    name = "transformers-cb"
    knobs: tuple[Knob, ...] = KNOBS
    control = Control(told=True, shares=True)

    def __init__(self, model: Model | None) -> None:
        self.model = model
        self.vocabulary = tiny_llama.VOCABULARY if model is None else model.plan.vocabulary
        self.special_ids = tiny_llama.SPECIAL_IDS if model is None else model.special_ids
        self.identity = tiny_llama.IDENTITY if model is None else model.identity
        self._network: Any = None

    def open(self, settings: Mapping[str, Setting]) -> Engine:
        """A fresh manager on a network that all targets of this factory share: it keeps nothing of a request."""
        check_settings(self.knobs, settings)
        return Engine(self.shared(settings), settings, self.vocabulary)

    def shared(self, settings: Mapping[str, Setting]) -> Any:
        """The network that all targets of this factory run, loaded once."""
        if self._network is None:
            self._network = self.network(settings)
        return self._network

    def network(self, settings: Mapping[str, Setting]) -> nn.Module:
        """The same weights, in transformers' own forward without a cache."""
        if self.model is None:
            return tiny_llama.network()
        return self.model.load("float32", "float32", "cpu")

    def module(self, settings: Mapping[str, Setting]) -> nn.Module | None:
        """It runs in another process."""
        return None

    def context_tokens_max(self, settings: Mapping[str, Setting]) -> int:
        """As many as the model has positions, or the cache room."""
        chosen = with_defaults(self.knobs, settings)
        positions = tiny_llama.CONTEXT_TOKENS_MAX if self.model is None else self.model.plan.positions_max
        return min(positions, int(chosen["page_size"]) * int(chosen["num_blocks"]))


def room(settings: Mapping[str, Setting]) -> int:
    """So many tokens the cache holds."""
    return int(settings["page_size"]) * int(settings["num_blocks"])


def sampled(settings: Mapping[str, Setting]) -> bool:
    """Whether tokens are drawn, from the likeliest one; log-probabilities are of what is drawn from then."""
    return settings["choice"] != "greedy" or int(settings["num_return_sequences"]) > 1


def each(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The parameters that each request has of its own."""
    return {"top_k": 1} if settings["choice"] == "top-1 each" else {}


def manager(network: Any, settings: Mapping[str, Setting]) -> Any:
    """A manager with these settings, which has not been started."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    own, margin = bool(each(settings)), settings["safety_margin"]
    sampling = {"do_sample": True, "top_k": 5 if own else 1} if sampled(settings) else {"do_sample": False}
    network.set_attn_implementation(settings["attention"])
    return network.init_continuous_batching(
        generation_config=GenerationConfig(
            eos_token_id=-1, num_return_sequences=int(settings["num_return_sequences"]), **sampling
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=int(settings["page_size"]),
            num_blocks=int(settings["num_blocks"]),
            max_batch_tokens=int(settings["max_batch_tokens"]),
            max_requests_per_batch=int(settings["max_requests_per_batch"]),
            scheduler_type=str(settings["scheduler_type"]),
            safety_margin=None if margin == "class" else float(margin),
            allow_block_sharing=bool(settings["allow_block_sharing"]),
            return_logprobs=bool(settings["return_logprobs"]),
            per_request_processors=own,
            auto_switch_to_flash=False,
            max_memory_percent=0.9,
            seed=0,
        ),
    )


def factory(model: str) -> TransformersFactory:
    """The factory on tiny-llama, or on any other model that the built-in decoder takes."""
    return TransformersFactory(model_of(model))


def model_of(name: str) -> Model | None:
    """A model by name; None for tiny-llama."""
    return None if name == "tiny" else find_model(name)


def _watch_matches(cache: Any, matched: dict[str, int]) -> None:
    """Notes how many tokens of a prompt the cache says it has already; what the cache does is unchanged."""
    search = cache.search_prefix_match

    def noting(request_id: str, prompt_ids: list[int]) -> int:
        found: int = search(request_id, prompt_ids)
        matched[request_id] = found
        return found

    cache.search_prefix_match = noting
