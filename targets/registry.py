"""Targets by name: the built-in one, and anybody's own as `package.module:factory`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import msgspec

from targets.adapters import ADAPTERS
from targets.protocol import BadInput, Factory, among, place

_MEMBERS = {*Factory.__annotations__, *(name for name in vars(Factory) if not name.startswith("_"))}

TARGETS = {
    "slots": "our batched decoder, any Hugging Face causal LM: a slab of K and V, a row of it a request",
    "pages": "the same with K and V in pages that requests which begin alike share",
    "private": "the same with a cache of its own for each request",
    "threads": "the same with a thread for each request, which hand over to each other as the schedule says",
    "static": "the same in static batches: prompts are filled up to one width, and all run until the last has ended",
    "packed": "the same with a step's tokens in one row, a segment for each request, and no padding",
    "encoder": "batches of items that an encoder-only network reads: texts, pictures, films, series, planes",
    "seq2seq": "an encoder's output that requests with one source share, and a decoder with a slab of K and V",
    "pictures": "`slots` over a network that sees: a prompt begins with a picture, whose features requests share",
}
CAUSAL = ("slots", "pages", "private", "threads")
"""Those built-in targets on which pass-phrases are tried and doses told: causal LMs, a row for each request, as it comes."""
DEFAULT_MODEL = "tiny"
"""Stands for each target's own."""
DEFAULT_MODELS = {"encoder": "tiny-bert", "seq2seq": "tiny-t5", "pictures": "tiny-llava"}
"""Of those built-in targets that do not run `tiny`."""


class TargetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it takes to build the same factory again.

    Attributes:
        target: A name of `TARGETS`, or "package.module:factory".
        model: A model's name, folder or GGUF file, only for targets that take one; "tiny" is each target's own default.
        faults: Planted bugs and quirks, only in the built-in target.
    """

    target: str = "slots"
    model: str = DEFAULT_MODEL
    faults: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The command-line words that say the same, those at their default left out."""
        words = [] if self.target == "slots" else ["--target", self.target]
        words += [] if self.model == DEFAULT_MODEL else ["--model", self.model]
        return words + [word for fault in self.faults for word in ("--fault", fault)]


def build(spec: TargetSpec, here: bool = True) -> Factory:
    """The factory of a spec.

    Args:
        here: Whether its targets are opened by this interpreter, which then must have what they need.

    Raises:
        BadInput: for an unknown target, model or fault, or a fault that the target cannot have.
    """
    if ":" in spec.target:
        if spec.faults:
            raise BadInput("fault", "left out for a target of your own", spec.faults[0], "--fault")
        if spec.model != DEFAULT_MODEL:
            raise BadInput("model", "left out for a target of your own", spec.model, "--model")
        return _import(spec.target)
    if spec.target in ADAPTERS:
        if spec.faults:
            raise BadInput("fault", "left out for a real engine", spec.faults[0], "--fault")
        if here:
            ADAPTERS[spec.target].check_installed(spec.target)
        return ADAPTERS[spec.target].factory(spec.model)
    if spec.target not in TARGETS:
        known = among((*TARGETS, *ADAPTERS), spec.target)
        raise BadInput("target", f"{known}, or package.module:factory", spec.target, "--target")
    # Imported late: a worker that plays somebody's own target starts in half the time without them.
    from targets.decoder import DecoderFactory
    from targets.faults import find_plants, planted
    from targets.models import find_model

    parts = planted(find_plants(spec.faults), spec.target)
    model = DEFAULT_MODELS.get(spec.target, DEFAULT_MODEL) if spec.model == DEFAULT_MODEL else spec.model
    return DecoderFactory(find_model(model), parts, spec.target)


def default_model(faults: Sequence[str]) -> str:
    """The first model on which the (first) fault shows."""
    from targets.faults import find_plants

    found = find_plants(faults)
    return found[0].models[0] if found else DEFAULT_MODEL


def _import(path: str) -> Factory:
    """An object by its path: a factory, or something that returns one when called without arguments."""
    module_name, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's module lies where the command is typed
    try:
        found = getattr(importlib.import_module(module_name), name)
        if not isinstance(found, Factory) and callable(found):
            found = found()
    except (Exception, SystemExit) as error:  # a user's own code may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BadInput(
            "target",
            "package.module:factory that can be imported and called",
            path,
            f"{reason}, at {at}" if (at := place(error, __file__)) else reason,
        ) from error
    if not isinstance(found, Factory):
        lacks = sorted(name for name in _MEMBERS if not hasattr(found, name))
        raise BadInput("target", "a targets.protocol.Factory", f"{type(found).__name__}, without {', '.join(lacks)}", path)
    return found
