"""Adapters: real engines as targets, one file each. What was found in them stands in README.md beside this file.

An adapter's module can be imported without its engine, so that its knobs can be read; the engine is imported when a target
is opened. It may import `targets.protocol`, `targets.models` and the other files of this folder.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import msgspec

from targets.protocol import BadInput, Factory


class Adapter(msgspec.Struct, frozen=True):
    """A real engine that can be fuzzed.

    Attributes:
        title: The engine's own name.
        module: With a function `factory(model)`.
        needs: What must be importable, beside slotfuzz itself.
        extra: The extra of slotfuzz that brings it.
        packages: The distributions whose versions matter.
        form: The form of the model that it reads: "hf", "gguf" or "openvino".
        imports: The first lines of a script that drives it.
        scripted: Whether there is such a script.
        repeats: Whether such a script plays a schedule several times, since no two plays need be the same.
    """

    title: str
    what: str
    module: str
    needs: tuple[str, ...]
    extra: str
    packages: tuple[str, ...]
    form: str
    imports: tuple[str, ...]
    repeats: bool = False
    scripted: bool = True

    @property
    def script(self) -> str:
        """How a script drives it: functions, the last of which is `play(ops, settings)`."""
        return (Path(__file__).parent / "scripts" / f"{self.module.rpartition('.')[2]}.txt").read_text()

    def write_model(self, path: Path) -> Path:
        """Writes tiny-llama in the form that it reads, at a path (a GGUF file gets its suffix)."""
        from targets.adapters import tiny_llama

        if self.form == "gguf":
            return tiny_llama.write_gguf(path.with_suffix(".gguf"))
        return tiny_llama.write_openvino(path) if self.form == "openvino" else tiny_llama.write_hf(path)

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
        title="transformers' continuous batching",
        what="transformers' continuous batching, stepped: pages, prefix sharing, preemption, forks; any causal LM of it",
        module="targets.adapters.transformers_cb",
        needs=("accelerate",),
        extra="transformers-cb",
        packages=("transformers", "torch"),
        form="hf",
        imports=(
            "import importlib.metadata",
            "import json",
            "import sys",
            "",
            "import torch",
            "from transformers import AutoModelForCausalLM, GenerationConfig",
            "from transformers.generation.configuration_utils import ContinuousBatchingConfig",
        ),
    ),
    "llamacpp": Adapter(
        title="llama.cpp's server",
        what="llama.cpp's server over HTTP: slots, prompt cache, one context or one for each slot, drafts",
        module="targets.adapters.llamacpp",
        needs=("xllamacpp",),
        extra="llamacpp",
        packages=("xllamacpp",),
        form="gguf",
        imports=(
            "import http.client",
            "import importlib.metadata",
            "import json",
            "import queue",
            "import socket",
            "import sys",
            "import tempfile",
            "import threading",
            "",
            "import xllamacpp",
        ),
        repeats=True,
    ),
    "openvino": Adapter(
        title="OpenVINO GenAI",
        what="OpenVINO GenAI's continuous batching, stepped: pages, prefix cache, preemption, prompts in parts, drafts",
        module="targets.adapters.openvino",
        needs=("openvino_genai",),
        extra="openvino",
        packages=("openvino-genai", "openvino"),
        form="openvino",
        imports=(
            "import importlib.metadata",
            "import json",
            "import sys",
            "",
            "import numpy",
            "import openvino",
            "import openvino_genai",
        ),
    ),
    "ctranslate2": Adapter(
        title="CTranslate2",
        what="CTranslate2's generator, stepped through its callback: static batches that rows leave, static prompts",
        module="targets.adapters.ctranslate2",
        needs=("ctranslate2",),
        extra="ctranslate2",
        packages=("ctranslate2",),
        form="hf",
        imports=(
            "import importlib.metadata",
            "import json",
            "import sys",
            "import tempfile",
            "",
            "import ctranslate2",
            "from ctranslate2.converters import TransformersConverter",
        ),
    ),
    "transformers-threaded": Adapter(
        title="transformers' continuous batching",
        what="the same as transformers-cb, by its manager's own loop in a thread, as people run it",
        module="targets.adapters.transformers_threaded",
        needs=("accelerate",),
        extra="transformers-cb",
        packages=("transformers", "torch"),
        form="hf",
        imports=(),
        scripted=False,
    ),
    "openai": Adapter(
        title="an OpenAI-compatible server",
        what="any OpenAI-compatible server with tiny-llama's weights: --model URL, as http://127.0.0.1:8000/v1",
        module="targets.adapters.openai",
        needs=(),
        extra="",
        packages=(),
        form="hf",
        imports=(),
        scripted=False,
    ),
}
