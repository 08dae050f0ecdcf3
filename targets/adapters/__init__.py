"""Adapters: real engines as targets, one file each. What was found in them stands in README.md beside this file.

An adapter's module can be imported without its engine, so that its knobs can be read; the engine is imported when a target
is opened. It may import `targets.protocol`, `targets.models` and the other files of this folder.
"""

from __future__ import annotations

import importlib
import importlib.util

import msgspec

from targets.protocol import BadInput, Factory


class Adapter(msgspec.Struct, frozen=True):
    """A real engine that can be fuzzed.

    Attributes:
        module: With a function `factory(model)`.
        needs: What must be importable, beside slotfuzz itself.
        extra: The extra of slotfuzz that brings it.
    """

    what: str
    module: str
    needs: tuple[str, ...]
    extra: str

    @property
    def missing(self) -> tuple[str, ...]:
        """What of its needs is not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)

    @property
    def install(self) -> str:
        """The command that brings what it needs."""
        return f"pip install 'slotfuzz[{self.extra}]'"

    def factory(self, model: str) -> Factory:
        """The factory, whether or not the engine is installed.

        Raises:
            BadInput: for a model that the engine can't take.
        """
        built: Factory = importlib.import_module(self.module).factory(model)
        return built

    def check_installed(self, name: str) -> None:
        """Raises BadInput, with the command that installs it, where something is missing."""
        if self.missing:
            rule = f"one that is installed ({self.install})"
            raise BadInput("target", rule, f"{name}, which needs {' and '.join(self.missing)}", "--target")


ADAPTERS = {
    "transformers-cb": Adapter(
        what="transformers' continuous batching, stepped: pages, prefix sharing, preemption, forks; any causal LM of it",
        module="targets.adapters.transformers_cb",
        needs=("accelerate",),
        extra="transformers-cb",
    ),
    "llamacpp": Adapter(
        what="llama.cpp's server over HTTP: slots, prompt cache, one context or one for each slot, drafts",
        module="targets.adapters.llamacpp",
        needs=("xllamacpp",),
        extra="llamacpp",
    ),
    "openvino": Adapter(
        what="OpenVINO GenAI's continuous batching, stepped: pages, prefix cache, preemption, prompts in parts, drafts",
        module="targets.adapters.openvino",
        needs=("openvino_genai",),
        extra="openvino",
    ),
    "ctranslate2": Adapter(
        what="CTranslate2's generator, stepped through its callback: static batches that rows leave, static prompts",
        module="targets.adapters.ctranslate2",
        needs=("ctranslate2",),
        extra="ctranslate2",
    ),
}
