"""Inside: what goes on inside a network's forwards, by hooks on the network and a cache that stands before the cache.

Whatever store a target has, its cache is passed as `cache=` and called once a layer, so nothing here knows a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.decoder_bench.measure import Cell
from fuzz.decoder_bench.workload import Server
from targets.protocol import Inspectable, Request


class Inside:
    """Watches one network while it is entered.

    Attributes:
        forward_s, cache_s: Seconds in forwards, and those of them in cache updates.
        forwards: How many there were.
        tokens_fed: Token places that went into the network, padding included.
        cells_read: Cells, a row and a position each, that came back from the first layer's cache, hidden ones included.
        bytes_read: Bytes of K and V that came back from all layers.
        allocations: Where they are counted.
    """

    def __init__(
        self, network: nn.Module, now: Callable[[], float] = time.perf_counter, allocations: Allocations | None = None
    ) -> None:
        self.network = network
        self.now = now
        self.allocations = allocations
        self.forward_s = self.cache_s = 0.0
        self.forwards = self.tokens_fed = self.cells_read = self.bytes_read = 0
        self._started = 0.0

    def __enter__(self) -> Self:
        self._hooks = (
            self.network.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.network.register_forward_hook(self._end),
        )
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.forwards += 1
        self.tokens_fed += kwargs["input_ids"].numel()
        if self.allocations is not None:
            self.allocations.counting = False
        if kwargs.get("cache") is not None:
            kwargs = {**kwargs, "cache": _Before(kwargs["cache"], self)}
        self._started = self.now()
        return args, kwargs

    def _end(self, *_: object) -> None:
        self.forward_s += self.now() - self._started
        if self.allocations is not None:
            self.allocations.counting = True


class _Before:
    """Stands before a cache: times its updates and counts what they give back; all else goes through."""

    def __init__(self, cache: Any, inside: Inside) -> None:
        self._cache = cache
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inside, allocations = self._inside, self._inside.allocations
        if allocations is not None:
            allocations.counting = True
        started = inside.now()
        keys, values = self._cache.update(key_states, value_states, layer_idx, *args, **kwargs)
        inside.cache_s += inside.now() - started
        if allocations is not None:
            allocations.counting = False
        if layer_idx == 0:
            inside.cells_read += keys.shape[0] * keys.shape[2]
        inside.bytes_read += keys.nbytes + values.nbytes
        return keys, values


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory that operations allocate, while `counting`: a result that shares no input's memory is new."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counting = True
        self.count = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.counting:
            known = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs or {}))}
            for tensor in _tensors(result):
                if tensor.untyped_storage().data_ptr() not in known:
                    self.count += 1
                    self.bytes += tensor.nbytes
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


class Padding(NamedTuple):
    """What forwards read and were fed, and what of it was somebody's: cells (a row and a position each), and tokens."""

    cells_used: int
    cells_read: int
    tokens_used: int
    tokens_fed: int

    @property
    def cells(self) -> float:
        """Padded cells over all cells read."""
        return 1 - self.cells_used / self.cells_read

    @property
    def tokens(self) -> float:
        """Padded tokens over all tokens fed."""
        return 1 - self.tokens_used / self.tokens_fed

    def row(self) -> dict[str, Cell]:
        """The columns that it fills."""
        return {"padded cells %": round(100 * self.cells, 1), "padded tokens %": round(100 * self.tokens, 1)}


def padding(server: Server, network: nn.Module | None, groups: Sequence[Sequence[Request]]) -> Padding:
    """Serves the groups one after another, untimed, and counts padding in every forward of the server's network.

    A row uses the cells up to its last new token, and as many token places as it has new tokens. What the forwards were
    given comes from the network itself, what of it was somebody's from `Target.inspect`.
    """
    target = server.target
    assert isinstance(target, Inspectable), "a target that says what its rows are"
    assert network is not None, "a target whose network is within reach"
    cells = tokens = 0
    with Inside(network) as inside:
        for group in groups:
            for _ in server.steps(server.submit(group)):
                for forward in target.inspect().forwards:
                    cells += sum(row.first + len(row.tokens) for row in forward)
                    tokens += sum(len(row.tokens) for row in forward)
    return Padding(cells, inside.cells_read, tokens, inside.tokens_fed)
