"""Faults of speculation: a guess that counts and should not, or whose cell, mask or logits are another one's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from targets.decoder import Decoder, Drafter, Feed, Rows, Runner
from targets.decoder.running import Running
from targets.faults.bank import Fault, Probe, at_once, request, schedule
from targets.protocol import CheckName, Kind, Step

Choices = Iterator[tuple[int, torch.Tensor]]


class CredulousDecoder(Decoder):
    """The first draft that did not come true is taken all the same. The twin takes what the request chose."""

    draft_taken_untrue: Probe

    def choices(self, running: Running, choice: int, logits: torch.Tensor) -> Choices:
        probe, taken = self.draft_taken_untrue, False
        for place, (token, shown) in enumerate(super().choices(running, choice, logits)):
            untrue = place < len(running.drafts) and token != running.drafts[place]
            if untrue and not taken:
                probe.reach()
                if not probe.honest:
                    probe.change()
                    token, taken = running.drafts[place], True
            yield token, shown


class LongDrafter(Drafter):
    """The cells of drafts that did not come true still count. The twin's length is that of the answer."""

    rejected_cells_counted: Probe

    def judge(self, running: Running, said: int) -> None:
        super().judge(running, said)
        probe, untrue, slot = self.rejected_cells_counted, len(running.drafts) - (said - 1), running.slot
        if untrue and slot is not None and self.store.lengths[slot] + untrue < self.planner.positions // 2:
            probe.reach()
            if not probe.honest:
                probe.change()
                self.store.grew(slot, untrue)


class NeighboursDraftsDecoder(Decoder):
    """Drafts are read from where another row's stand when they go into the forward, and from its own when it is judged.

    The twin reads its own both times.
    """

    draft_of_neighbour: Probe

    def feeds(self, chosen: list[int]) -> list[Feed]:
        feeds, probe = super().feeds(chosen), self.draft_of_neighbour
        drafting = [index for index, feed in enumerate(feeds) if feed.drafts]
        for place, index in enumerate(drafting if len(drafting) > 1 else []):
            probe.reach()
            if not probe.honest:
                feed = feeds[index]
                theirs = self.live[feeds[drafting[place - 1]].submission].drafts[: feed.drafts]
                own = feed.tokens[len(feed.tokens) - feed.drafts :]
                tokens = [*feed.tokens[: len(feed.tokens) - feed.drafts], *theirs, *own[len(theirs) :]]
                probe.change(tokens != list(feed.tokens))
                feeds[index] = feed._replace(tokens=tokens)
        return feeds


class EarlyPublishingDecoder(Decoder):
    """Cells are made known while those of drafts still count: the newest token's is then a draft's that was not true.

    The twin makes known what counts.
    """

    rejected_cells_published: Probe
    unjudged = 0

    def choices(self, running: Running, choice: int, logits: torch.Tensor) -> Choices:
        try:
            for place, each in enumerate(super().choices(running, choice, logits)):
                self.unjudged = len(running.drafts) - place
                yield each
        finally:
            self.unjudged = 0

    def publish(self, running: Running, slot: int, leaving: bool = False) -> None:
        probe = self.rejected_cells_published
        if not self.unjudged or leaving:
            super().publish(running, slot, leaving)
            return
        probe.reach()
        cells = self.store.lengths[slot]
        if not probe.honest:
            probe.change(running.answer[-1] != running.drafts[len(running.drafts) - self.unjudged])
            self.store.lengths[slot] = cells + self.unjudged
        super().publish(running, slot, leaving)
        self.store.lengths[slot] = cells


class LastLogitsDecoder(Decoder):
    """Where a draft did not come true, the token in its place is chosen by the logits behind the last draft of all.

    The twin chooses by those behind the last one that did.
    """

    bonus_behind_last_draft: Probe

    def choices(self, running: Running, choice: int, logits: torch.Tensor) -> Choices:
        probe = self.bonus_behind_last_draft
        for place, (token, shown) in enumerate(super().choices(running, choice, logits)):
            if place < len(running.drafts) and token != running.drafts[place]:
                probe.reach()
                if not probe.honest:
                    shown = self.runner.behind[running.submission][-1]
                    chosen = int(self.sampler.choose([running.submission], shown[None])[0])
                    probe.change()
                    token = chosen
            yield token, shown


class OpenMaskRunner(Runner):
    """A row's newest token and its drafts all see each other, as one block does. The twin's see what came before them."""

    draft_sees_later_drafts: Probe

    def visible(self, rows: Rows, window: int | None) -> torch.Tensor:
        seen, probe = super().visible(rows, window), self.draft_sees_later_drafts
        if rows.asked is None:
            return seen
        probe.reach()
        if probe.honest:
            return seen
        probe.change()
        drafting = torch.zeros(len(rows.slots), dtype=torch.bool, device=seen.device)
        drafting[rows.asked[0][len(rows.slots) :]] = True
        first, last = rows.positions[:, None, :1, None], rows.positions[:, None, -1:, None]
        held = self.positions_held(rows, window)
        return seen | (drafting[:, None, None, None] & (held >= first) & (held <= last))


# On the default model, 152 goes on with 87, 87, 35, and 238 with 30 and nothing else; 200 and 294 repeat themselves.
_UNTRUE = at_once(request((152,), 4))
_GUESSES = {"speculate": 2}
_TARGETS = ("slots", "pages", "private")
_SAY_MUCH = ("tiny", "tiny-qwen3", "tiny-mistral", "tiny-gpt2")
"""Whose answers to these prompts repeat themselves, or do not, so that guesses come about and are untrue."""
_SAY_MORE = _SAY_MUCH[:3]

FAULTS = (
    Fault(
        name="draft-taken-untrue",
        group="speculation",
        modelled_on="vllm#2658 (a draft behind one that was rejected counts as accepted)",
        doc="the first draft that did not come true is taken as well",
        mixins={"decoder": CredulousDecoder},
        smallest={Kind.ECHO: _UNTRUE},
        checks=(CheckName.ECHO,),
        models=_SAY_MUCH,
        settings=_GUESSES,
        targets=_TARGETS,
    ),
    Fault(
        name="rejected-cells-counted",
        group="speculation",
        modelled_on="mlx-lm#1109 (rejected drafts stay in a cache that is not rewound)",
        doc="the cells of drafts that did not come true still count",
        mixins={"drafter": LongDrafter},
        smallest={Kind.OWNERSHIP: _UNTRUE, Kind.WRONG_ALONE: _UNTRUE},
        checks=(CheckName.OWNERSHIP, CheckName.ISOLATION),
        models=_SAY_MUCH,
        settings=_GUESSES,
        targets=_TARGETS,
    ),
    Fault(
        name="draft-of-neighbour",
        group="speculation",
        modelled_on="vllm#14645 (drafts of requests in another order than their rows: tokens of other requests)",
        doc="the forward runs another row's drafts, and a row's own are compared with what was chosen",
        mixins={"decoder": NeighboursDraftsDecoder},
        smallest={Kind.LEAK: at_once(request((200,), 3), request((294,), 3))},
        checks=(CheckName.SWAP,),
        models=_SAY_MORE,
        settings=_GUESSES,
        targets=_TARGETS,
    ),
    Fault(
        name="rejected-cells-published",
        group="speculation",
        modelled_on="vllm#18668 (how many of a step's cells may be found by others, where some are of drafts)",
        doc="cells are made known before those of rejected drafts have ceased to count",
        mixins={"decoder": EarlyPublishingDecoder},
        smallest={Kind.STALE_HIT: schedule(request((152,), 4), Step(3), request((152, 87, 87, 35, 1), 1))},
        checks=(CheckName.WARMTH, CheckName.ISOLATION),
        models=("tiny", "tiny-mistral"),
        settings={**_GUESSES, "page_size": 4},
        targets=("pages",),
    ),
    Fault(
        name="bonus-behind-last-draft",
        group="speculation",
        modelled_on="vllm#8320 (which token stands in for the first draft that does not match)",
        doc="the token in place of a draft that did not come true is chosen by the logits behind the last draft",
        mixins={"decoder": LastLogitsDecoder},
        smallest={Kind.WRONG_ALONE: _UNTRUE},
        checks=(CheckName.ISOLATION,),
        models=_SAY_MUCH,
        settings=_GUESSES,
        targets=_TARGETS,
    ),
    Fault(
        name="draft-sees-later-drafts",
        group="speculation",
        modelled_on="transformers#30311, mlx-examples#715 (the mask where several tokens join a cache)",
        doc="a row's newest token and its drafts see those that stand behind them",
        mixins={"runner": OpenMaskRunner},
        smallest={Kind.WRONG_ALONE: at_once(request((238,), 4))},
        checks=(CheckName.ISOLATION,),
        models=_SAY_MORE,
        settings=_GUESSES,
        targets=_TARGETS,
    ),
)
