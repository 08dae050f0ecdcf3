"""Decoder: continuous batching. Requests join and leave while others decode, and a step feeds each what it may.

One step: admit; *launch* a forward for the rows that have something to feed, within the step's budget of tokens; *land* it:
run it, give each row whose feed reached the end of its tokens another one, and retire the requests that ended. With
pipelined steps a launch lands one step after it was made, so that a request may end, be cancelled, or lose its client id
to another while a forward with it is in flight.

Everything a request was given is given back in `give_back` and nowhere else; what a forward in flight still writes to is
given back when that has landed. Where the store runs out of room, the youngest requests are preempted, and the oldest one
never is, so that somebody always gets on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from targets.decoder.accounts import audit_of, counted, inspection_of
from targets.decoder.layout import Layout
from targets.decoder.runner import Feed
from targets.decoder.running import Launch, Running, cells_max
from targets.models import Plan
from targets.protocol import (
    Admitted,
    Audit,
    Emitted,
    Event,
    Finished,
    Freed,
    Inspection,
    Preempted,
    Prefilled,
    Reason,
    Refused,
    Request,
    Setting,
)

if TYPE_CHECKING:
    from targets.decoder.parts import Parts


class Decoder:
    """The built-in targets; fulfils `targets.protocol.Target`."""

    def __init__(self, parts: Parts, network: nn.Module, plan: Plan, settings: Mapping[str, Setting]) -> None:
        layout = Layout.of(settings)
        self.plan = plan
        self.context_tokens_max = layout.positions
        self.depth = int(bool(settings["pipelined"]))
        self.moves = settings.get("preempt") == "move"
        self.scheduler = parts.scheduler(
            layout.slots, str(settings["slot_order"]), int(settings["queue_max"]), int(settings["admit_max"])
        )
        self.scheduler.fits = self.fits
        self.store = parts.store(plan, layout)
        self.states = parts.states(plan, layout)
        self.planner = parts.planner(plan, layout, self.store.shares, int(settings["step_tokens_max"]) or None)
        # Where results come a step late, what is to be guessed from is not known when it is time to guess.
        self.drafter = parts.drafter(0 if self.depth else int(settings.get("speculate", 0)), self.planner, self.store)
        self.batch = parts.batch(layout.slots)
        self.runner = parts.runner(network, plan, self.store, self.states, str(settings["prefill"]))
        self.sampler = parts.sampler(layout.slots, plan.vocabulary, layout.device)
        self.live: dict[int, Running] = {}
        self.launched: deque[Launch] = deque()
        self.chosen: dict[int, int] = {}
        self.promised = 0
        self.counts = Counter(dict.fromkeys(counted(settings), 0))
        if settings["sanitize"]:
            self.store.shadow()
        if settings["poison"] != "none":
            self.store.poison(str(settings["poison"]))
            self.states.poison(str(settings["poison"]))
            self.runner.padding = 0 if settings["poison"] == "low" else plan.vocabulary - 1

    # What clients ask

    def submit(self, submission: int, request: Request) -> list[Event]:
        """Queues a request; refuses what can never be served, and answers at once what asks for nothing."""
        why = self.refusal(request)
        if why is None and request.max_new_tokens == 0:
            return [Finished(submission, Reason.LENGTH, ())]
        if why is None and not self.scheduler.enqueue(submission):
            why = "queue full"
        if why is not None:
            return [Refused(submission, why)]
        self.live[submission] = Running(submission, self.runner.trust.apart(submission, request))
        return []

    def refusal(self, request: Request) -> str | None:
        """Why a request can never be served, or None."""
        if not request.prompt:
            return "empty prompt"
        if len(request.prompt) >= self.context_tokens_max:
            return "prompt too long"
        if max(request.prompt) >= self.plan.vocabulary:
            return "token id past the vocabulary"
        if not self.store.fits(cells_max(request, self.context_tokens_max)):
            return "more cells than the pool has"
        return self.sampler.refusal(request)

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        """Ends a request in whatever state it is; nothing happens if it has ended."""
        running = self.live.get(submission)
        if running is None:
            return []
        if running.slot is None:
            self.scheduler.withdraw(submission)
        if self.depth:
            self.counts["cancelled_in_flight"] += running.launches > 0
        events = self.retire(running, reason)
        self.store.settle()
        return events

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        """Advances every request, or only the named ones, as far as the step's budget of tokens goes."""
        self.runner.forwards.clear()
        self.runner.behind.clear()
        events = self.admit(rows)
        with torch.inference_mode():
            events += self.launch(rows)
            while len(self.launched) > self.depth:
                events += self.land()
        self.store.settle()
        return events

    # Admission

    def admit(self, rows: tuple[int, ...] | None) -> list[Event]:
        """Moves waiting requests into free slots, with what is there already of their cells."""
        events: list[Event] = []
        self.promised = 0
        for submission, slot in self.scheduler.admit(rows):
            running = self.live[submission]
            self.store.begin(slot)
            self.states.begin(slot)
            self.runner.trust.label(slot, running.request)
            self.batch.join(submission, slot)
            self.sampler.join(submission, running.request, running.answer)
            running.slot = slot
            running.fed = self.begin(running, slot)
            if running.answer:
                self.batch.keep(self.batch.submissions.index(submission), running.answer[-1])
            events.append(Admitted(submission, slot, running.fed))
        return events

    def begin(self, running: Running, slot: int) -> int:
        """Brings back or shares what there is of a request's cells; returns how many."""
        saved, running.saved = running.saved, None
        if saved is not None and self.store.load(slot, saved, running.submission):
            self.states.restore(slot, running.states)
            return saved.cells
        sibling = self.sibling(running)
        if sibling is not None and sibling.slot is not None:
            cells = min(self.cells_of(sibling), len(running.request.prompt) - 1)
            if cells > 0:
                return self.store.fork(slot, sibling.slot, cells)
        cells = self.store.attach(slot, running.tokens(), running.request.salt)
        states = self.store.states_of(slot)
        if states is not None:
            self.states.restore(slot, states)
        return cells

    def sibling(self, running: Running) -> Running | None:
        """The request to whose prompt this one wants one more answer, where it has a slot and the store can share it."""
        request = running.request
        other = None if request.sample_of is None else self.live.get(request.sample_of)
        if other is None or other is running or not self.store.shares or self.plan.recurrent:
            return None  # recurrent states have run on from where the prompt ends
        alike = (other.request.prompt, other.request.salt) == (request.prompt, request.salt)
        return other if alike and other.submission in self.scheduler.owners.values() else None

    def fits(self, submission: int) -> bool:
        """Whether there is room for a waiting request now, beside those that this step has let in before it."""
        running = self.live[submission]
        sibling = self.sibling(running)
        if sibling is not None and self.cells_of(sibling) < len(sibling.request.prompt) - 1:
            return False  # worth waiting for: its prompt is on its way through the network
        tokens = len(running.request.prompt) + len(running.answer) + 1
        need = self.store.spare(min(tokens, cells_max(running.request, self.context_tokens_max)), self.promised)
        self.promised += need or 0
        return need is not None

    def cells_of(self, running: Running) -> int:
        """As many cells as a request has that are written; none yet where it is let in just now."""
        return 0 if running.slot is None else self.store.lengths[running.slot]

    # A step's forward

    def launch(self, rows: tuple[int, ...] | None) -> list[Event]:
        """Asks for a forward of all that may advance; lands what is in flight first where that is in its way."""
        events = self.plan_step(rows)
        if events is None:
            events = []
            while self.launched:
                events += self.land()
            events += self.plan_step(rows) or []
        chosen = [row for row, who in enumerate(self.batch.submissions) if self.live[who].share]
        if not chosen:
            while self.launched:
                events += self.land()
            return events
        launch = Launch.of(self.feeds(chosen), [self.live[self.batch.submissions[row]] for row in chosen])
        self.launched.append(launch)
        if not all(launch.complete):
            self.planner.counts["chunked"] += launch.complete.count(False)
        return events

    def plan_step(self, rows: tuple[int, ...] | None) -> list[Event] | None:
        """Gives each row its share of the step's tokens, and makes room for it, the oldest request first.

        None where a forward in flight must land before room can be made, or before cells that it writes can be copied.
        """
        running = [self.live[who] for who in sorted(self.batch.submissions)]
        for each in running:
            each.share, each.drafts = 0, ()
        named = [each for each in running if rows is None or each.submission in rows]
        events: list[Event] = []
        for each in self.planner.share_out(named):
            while each.share and each.slot is not None:
                if self.launched and self.store.copies(each.slot, each.fed):
                    return None
                if self.store.reserve(each.slot, each.fed, each.share):
                    break
                if self.launched:
                    return None
                events += self.preempt(self.live[max(self.batch.submissions)])
        return events + self.drafter.draft(named) if self.drafter.tokens_max else events

    def feeds(self, chosen: list[int]) -> list[Feed]:
        """What each chosen row brings: the tokens that have not been through the network, or as many as it may."""
        slots, tokens = self.batch.slots(), self.batch.tokens()
        feeds = []
        for row in chosen:
            running = self.live[self.batch.submissions[row]]
            behind = running.fed - len(running.request.prompt)
            decodes = running.share == 1 and behind == len(running.answer) - 1 >= 0  # its row has the newest token only
            piece = [tokens[row]] if decodes else running.piece(running.fed, running.share)
            feed = Feed(slots[row], piece, running.submission)
            feeds.append(running.with_drafts(feed) if running.drafts else feed)
        return feeds

    def preempt(self, running: Running) -> list[Event]:
        """Takes a running request's slot and cells away; it waits to be admitted again, in the order of submissions."""
        slot = running.slot
        assert slot is not None, "only what runs is preempted"
        assert not running.launches, "nor what is in flight"
        if self.moves:
            running.saved = self.store.save(slot) if self.store.lengths[slot] else None
            running.states = self.states.snapshot(slot)
        else:
            self.publish(running, slot, leaving=True)
        running.slot, running.fed, running.share = None, 0, 0
        self.leave(running.submission)
        self.vacate(slot)
        self.store.settle()
        self.scheduler.requeue(running.submission)
        self.counts["preempted"] += 1
        return [Preempted(running.submission, slot)]

    # Its results

    def land(self) -> list[Event]:
        """Runs the oldest forward that was asked for, and gives its results to those requests that are still there."""
        launch = self.launched.popleft()
        feeds = launch.landed(self.chosen)
        logits = self.runner.run(feeds)
        events: list[Event] = list(self.runner.reports)
        self.runner.reports = []
        here = [self.live.get(running.submission) is running for running in launch.running]
        for running, complete, alive in zip(launch.running, launch.complete, here, strict=True):
            if alive and not complete and running.slot is not None:
                self.publish(running, running.slot)
                events.append(Prefilled(running.submission, self.store.lengths[running.slot]))
        self.chosen.clear()
        for index in (index for index, alive in enumerate(here) if not alive):
            self.counts["discarded"] += 1
            self.chosen[feeds[index].submission] = int(logits[index].argmax())  # a launch after this one may feed it on
        got = [index for index, complete in enumerate(launch.complete) if complete and here[index]]
        if got:
            rows = {submission: row for row, submission in enumerate(self.batch.submissions)}
            given = [feeds[index].submission for index in got]
            logits = logits if len(got) == len(feeds) else logits[got]
            tokens = self.sampler.choose(given, logits).tolist()  # the step's only synchronisation
            events += self.deliver([rows[submission] for submission in given], logits, tokens)
        for running in launch.retiring:
            events += self.give_back(running)
        return events

    def deliver(self, chosen: list[int], logits: torch.Tensor, greedy: list[int]) -> list[Event]:
        """Gives each row's request its token, then retires the requests that ended.

        Args:
            logits: [B, V]; row i belongs to batch row chosen[i], as do the tokens.
        """
        events: list[Event] = []
        ended: list[tuple[Running, Reason]] = []
        for row, choice, shown in zip(chosen, greedy, logits.unbind(), strict=True):
            running = self.live[self.batch.submissions[row]]
            said = len(running.answer)
            for choice_, shown_ in self.choices(running, choice, shown) if running.drafts else ((choice, shown),):
                token = self.token_of(running, choice_)
                self.batch.keep(row, token)
                events.append(self.accept(running, token, shown_))
                if (reason := self.ending(running)) is not None:
                    ended.append((running, reason))
                    break
            if running.drafts:
                self.drafter.judge(running, len(running.answer) - said)
        for running, reason in ended:
            events += self.retire(running, reason)
        return events

    def choices(self, running: Running, choice: int, logits: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """What a request takes, with its logits: one choice, and behind each draft that came true with it the next one."""
        yield choice, logits
        for draft, behind in zip(running.drafts, self.runner.behind.get(running.submission, ()), strict=True):
            if running.answer[-1] != draft:
                return
            assert running.slot is not None, "only who has cells has drafts"
            self.store.grew(running.slot, 1)
            running.fed += 1
            yield int(self.sampler.choose([running.submission], behind[None])[0]), behind

    def ending(self, running: Running) -> Reason | None:
        """Why a request ends with its last token, or None."""
        return running.ending(self.context_tokens_max)

    def token_of(self, running: Running, choice: int) -> int:
        """The token to emit: the forced one while there is one, else the chosen one."""
        forced, count = running.request.forced, len(running.answer)
        return forced[count] if count < len(forced) else choice

    def accept(self, running: Running, token: int, logits: torch.Tensor) -> Event:
        """Adds a token to an answer and streams it; what its cells hold may be found by others now."""
        running.answer.append(token)
        self.chosen[running.submission] = token
        self.sampler.accept(running.submission, token)
        if running.slot is not None:
            self.publish(running, running.slot)
        told = self.sampler.logprobs(running.submission, token, logits) if running.request.sampling.logprobs else ()
        return Emitted(running.submission, token, logits, told)

    def publish(self, running: Running, slot: int, leaving: bool = False) -> None:
        """Lets others find the cells that a request has, in a store that shares them."""
        if self.store.shares:
            self.store.publish(slot, running.tokens(), running.request.salt, leaving)
            if self.plan.recurrent:
                self.store.keep_states(slot, self.states.snapshot)

    def retire(self, running: Running, reason: Reason) -> list[Event]:
        """Ends a request; all it held goes back, or will when the last forward with it has landed."""
        del self.live[running.submission]
        events: list[Event] = [Finished(running.submission, reason, tuple(running.answer))]
        if running.slot is not None:
            self.leave(running.submission)
            if running.launches:
                self.launched[-1].retiring.append(running)
            else:
                events += self.give_back(running)
        return events

    def give_back(self, running: Running) -> list[Event]:
        """Gives back all that an ended request held."""
        slot = running.slot
        assert slot is not None, "only what was admitted holds anything"
        self.publish(running, slot, leaving=True)
        self.vacate(slot)
        return [Freed(running.submission, slot)]

    def leave(self, submission: int) -> None:
        """A request loses its row, and all that went with it."""
        self.batch.leave(submission)
        self.sampler.leave(submission)

    def vacate(self, slot: int) -> None:
        """A slot has no owner any more."""
        self.store.end(slot)
        self.store.scrub(slot)
        self.states.scrub(slot)
        self.scheduler.release(slot)

    # What it says of itself

    def audit(self) -> Audit:
        """Who owns what."""
        return audit_of(self)

    def inspect(self) -> Inspection:
        """The last step's forwards, and the cells of everybody who has a row."""
        return inspection_of(self)

    def close(self) -> None:
        """Drops every request and the store."""
        self.live.clear()
