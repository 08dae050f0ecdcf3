"""Faults of rows: state or results that go to the wrong row of the batch."""

from __future__ import annotations

import torch

from targets.decoder import Batch, Decoder, Feed
from targets.decoder.running import Running
from targets.faults.bank import Fault, Probe, at_once, one_after_another, request
from targets.protocol import CheckName, Event, Kind, Reason, Request, Sampling, Submit


class ViewSwapBatch(Batch):
    """Rows are swapped through views: the second assignment reads what the first one wrote. The twin copies first."""

    swap_through_views: Probe

    def swap(self, a: int, b: int) -> None:
        probe = self.swap_through_views
        probe.reach()
        row_a, row_b = self.state[a], self.state[b]
        if probe.honest:
            row_a, row_b = row_a.copy(), row_b.copy()
        probe.change(not probe.honest and bool((row_a != row_b).any()))
        self.state[b] = row_a
        self.state[a] = row_b


class RowResultDecoder(Decoder):
    """Requests that end by length leave first; then the rest take the results of the rows in which they now stand.

    The twin delivers in the same two turns and matches by submission.
    """

    result_by_row: Probe

    def deliver(self, chosen: list[int], logits: torch.Tensor, greedy: list[int]) -> list[Event]:
        probe = self.result_by_row
        probe.reach()
        before = [self.batch.submissions[row] for row in chosen]
        ending = [
            index
            for index, submission in enumerate(before)
            if len(self.live[submission].answer) + 1 >= self.live[submission].request.max_new_tokens
        ]
        if len(chosen) < len(self.batch.submissions) or not ending:
            return super().deliver(chosen, logits, greedy)
        events = super().deliver([chosen[index] for index in ending], logits[ending], [greedy[index] for index in ending])
        after = self.batch.submissions
        results = [before.index(submission) for submission in after] if probe.honest else list(range(len(after)))
        probe.change(any(before[result] != submission for result, submission in zip(results, after, strict=True)))
        return events + super().deliver(list(range(len(after))), logits[results], [greedy[result] for result in results])


class ClientStateDecoder(Decoder):
    """The last token of a request is kept under its client's id. The twin keeps it under the submission."""

    state_by_client_id: Probe

    def accept(self, running: Running, token: int, logits: torch.Tensor) -> Event:
        self._last_tokens()[self._key(running)] = token
        return super().accept(running, token, logits)

    def feeds(self, chosen: list[int]) -> list[Feed]:
        probe, feeds = self.state_by_client_id, super().feeds(chosen)
        for index, row in enumerate(chosen):
            running = self.live[self.batch.submissions[row]]
            if (
                running.answer
                and running.share == 1
                and running.fed == len(running.request.prompt) + len(running.answer) - 1
            ):
                probe.reach()
                token = self._last_tokens()[self._key(running)]
                probe.change(token != running.answer[-1])
                feeds[index] = feeds[index]._replace(tokens=[token, *feeds[index].tokens[1:]])
        return feeds

    def _key(self, running: Running) -> tuple[str, int]:
        client_id = running.request.client_id
        if client_id is None or self.state_by_client_id.honest:
            return ("submission", running.submission)
        return ("client", client_id)

    def _last_tokens(self) -> dict[tuple[str, int], int]:
        tokens: dict[tuple[str, int], int] = self.__dict__.setdefault("last_tokens", {})
        return tokens


class LateTokenDecoder(Decoder):
    """The last result of a slot's owner goes to the slot's next owner as its first. The twin drops it."""

    late_token: Probe

    def accept(self, running: Running, token: int, logits: torch.Tensor) -> Event:
        self._late()[running.submission] = (token, logits)
        return super().accept(running, token, logits)

    def retire(self, running: Running, reason: Reason) -> list[Event]:
        result = self._late().pop(running.submission, None)
        if running.slot is not None and result is not None:
            self._late()[-1 - running.slot] = result
        return super().retire(running, reason)

    def deliver(self, chosen: list[int], logits: torch.Tensor, greedy: list[int]) -> list[Event]:
        probe = self.late_token
        for index, row in enumerate(chosen):
            running = self.live[self.batch.submissions[row]]
            assert running.slot is not None, "a row in the batch has a slot"
            late = self._late().pop(-1 - running.slot, None) if not running.answer else None
            if late is not None:
                probe.reach()
                if not probe.honest:
                    probe.change()
                    greedy[index] = late[0]
                    logits = logits.index_copy(0, torch.tensor([index], device=logits.device), late[1][None])
        return super().deliver(chosen, logits, greedy)

    def _late(self) -> dict[int, tuple[int, torch.Tensor]]:
        """Last results by live submission, and by -1 - slot once their request has ended."""
        late: dict[int, tuple[int, torch.Tensor]] = self.__dict__.setdefault("late_results", {})
        return late


_LEAKS = (CheckName.SWAP,)
_ONE_ID = Sampling(allowed=(207,))

FAULTS = (
    Fault(
        name="swap-through-views",
        group="row state",
        modelled_on="vllm#49613, mlx-lm#1169 (row state moved without a copy)",
        doc="when a row moves into a gap, it takes over the state of the request that left",
        mixins={"batch": ViewSwapBatch},
        smallest={
            Kind.LEAK: at_once(request((1,), 1), request((2,), 2)),
            Kind.OWNERSHIP: at_once(request((1,), 1), request((2,), 2)),
        },
        checks=(*_LEAKS, CheckName.PROVENANCE, CheckName.RESIDUE, CheckName.OWNERSHIP),
    ),
    Fault(
        name="result-by-row",
        group="row state",
        modelled_on="vllm#23398, transformers#45943 (results matched by position)",
        doc="results are matched by row after a request has left",
        mixins={"decoder": RowResultDecoder},
        smallest={
            Kind.LEAK: at_once(request((1,), 1), request((2,), 2)),
            Kind.ECHO: at_once(request((1,), 1), Submit(Request(prompt=(2,), max_new_tokens=2, sampling=_ONE_ID))),
        },
        checks=(*_LEAKS, CheckName.ECHO),
    ),
    Fault(
        name="state-by-client-id",
        group="id alias",
        modelled_on="vllm#10583 (duplicate live ids), five requests against one state dict (source article)",
        doc="a request's last token is kept under its client's id",
        mixins={"decoder": ClientStateDecoder},
        smallest={Kind.LEAK: at_once(request((1,), 2, client_id=0), request((2,), 1, client_id=0))},
        checks=_LEAKS,
    ),
    Fault(
        name="late-token",
        group="free in flight",
        modelled_on="vllm#42492, sglang#18803",
        doc="a finished request's token goes to the slot's next owner",
        mixins={"decoder": LateTokenDecoder},
        smallest={
            Kind.LEAK: one_after_another(request((1,), 1), request((2,), 1)),
            Kind.ECHO: at_once(request((1,), 1), Submit(Request(prompt=(2,), max_new_tokens=1, sampling=_ONE_ID)), slots=1),
        },
        checks=(*_LEAKS, CheckName.ECHO),
    ),
)
