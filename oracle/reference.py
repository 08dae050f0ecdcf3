"""Reference: the answer of one request that is alone, on code that shares nothing with any cache.

One cacheless forward of `prompt + the target's own tokens` checks all of them at once: by causality, its logits at each
position are those of the isolated request that was given the same tokens so far. (Five to twelve times cheaper than
generating alone.) The memory keeps each prompt's longest known answer, which serves every shorter one.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from oracle.sampling import choice, is_stopped
from targets.protocol import Request

MEMORY_BYTES_MAX = 2**28


def answering(network: nn.Module, ids: torch.Tensor, prompt_tokens: int) -> torch.Tensor:
    """Logits [B, n - prompt_tokens + 1, V] of int64 [B, n], of which so many are prompt, without a cache."""
    told = {"prompt_tokens": prompt_tokens} if asks_for_prompt(network) else {}
    output: Any = network(input_ids=ids, use_cache=False, **told)
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits if told else logits[:, prompt_tokens - 1 :]


def asks_for_prompt(network: nn.Module) -> bool:
    """Whether a network must be told which tokens are the prompt (`targets.protocol.Factory.network`)."""
    return "prompt_tokens" in inspect.signature(network.forward).parameters


class Reference:
    """Isolated answers of one network.

    Attributes:
        bound: The rounding bound on logit differences; more makes a suspect.
        precision: The network's dtype by name: "float64", "bfloat16", …
        rounds_cells: Whether the target keeps K and V in a narrower type than it computes in, which no reference does.
    """

    def __init__(self, network: nn.Module, bound: float = 0.0, rounds_cells: bool = False) -> None:
        self.network = network
        self.bound = bound
        self.rounds_cells = rounds_cells
        self.device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
        self.precision = str(next((weight.dtype for weight in network.parameters()), torch.float64)).removeprefix("torch.")
        self._known: OrderedDict[tuple[int, ...], tuple[tuple[int, ...], torch.Tensor]] = OrderedDict()
        self._bytes = 0

    @property
    def exact(self) -> bool:
        """Whether what is beyond the bound needs no further experiment."""
        return self.precision == "float64" and not self.rounds_cells

    def logits(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> torch.Tensor:
        """The isolated logits [n, V] that stand behind each of the n tokens of `answer`."""
        known = self._known.get(prompt)
        if known is not None and known[0][: len(answer)] == answer:
            self._known.move_to_end(prompt)
            return known[1][: len(answer)]
        logits = self.forward((*prompt, *answer[:-1]), len(prompt))
        self._remember(prompt, answer, logits)
        return logits

    def greedy(self, request: Request, context_tokens_max: int) -> tuple[int, ...]:
        """The whole answer alone, to the first stop or limit: greedy unless its sampling says otherwise.

        For findings; a forward a token.
        """
        answer: tuple[int, ...] = ()
        room = min(request.max_new_tokens, context_tokens_max - len(request.prompt))
        while len(answer) < room and not is_stopped(request, answer):
            count = len(answer)
            token = (
                request.forced[count]
                if count < len(request.forced)
                else choice(request, answer, self.logits(request.prompt, (*answer, 0))[-1])
            )
            answer = (*answer, token)
        return answer

    @torch.inference_mode()
    def forward(self, tokens: tuple[int, ...], prompt_tokens: int = 1) -> torch.Tensor:
        """Logits of one cacheless forward, from the last token of the prompt on: [n - prompt_tokens + 1, V]."""
        ids = torch.tensor(tokens, device=self.device)[None]
        return answering(self.network, ids, prompt_tokens)[0]

    def _remember(self, prompt: tuple[int, ...], answer: tuple[int, ...], logits: torch.Tensor) -> None:
        if prompt in self._known:
            self._bytes -= self._known.pop(prompt)[1].nbytes
        self._known[prompt] = (answer, logits)
        self._bytes += logits.nbytes
        while self._bytes > MEMORY_BYTES_MAX and len(self._known) > 1:
            _, (_, dropped) = self._known.popitem(last=False)
            self._bytes -= dropped.nbytes
