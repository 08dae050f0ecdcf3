"""A byte model: one of ours in a folder as transformers wants it, with a tokenizer of bytes and nothing that ends an answer.

So that two servers can serve the same weights to clients who send text, and both answer with as many tokens as are wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from targets.models import find_model
from targets.protocol import BadInput

BYTES = 256


def save_byte_model(name: str, dtype: str, folder: Path) -> None:
    """Writes a model and its tokenizer: a byte is the id that it is for `slotfuzz serve`.

    Raises:
        BadInput: where there is no such model, or it has too few ids.
    """
    model = find_model(name)
    network: Any = model.load(dtype, dtype, "cpu")
    ids = [token for token in range(network.config.vocab_size) if token not in model.special_ids]
    if len(ids) < BYTES:
        raise BadInput("--model", f"one with {BYTES} ids or more for bytes", name)
    network.generation_config.eos_token_id = network.config.eos_token_id = None
    network.save_pretrained(folder)
    known = dict(zip(_alphabet(), ids, strict=False))
    rest = [token for token in range(network.config.vocab_size) if token not in known.values()]
    known |= {f"<|{token}|>": token for token in rest}
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=f"<|{rest[0]}|>")
    fast.save_pretrained(folder)


def _alphabet() -> list[str]:
    """The character for each byte: printable ones stand for themselves, those behind them for the other bytes in turn."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = (character for character in characters if ord(character) >= BYTES)
    return [chr(value) if chr(value) in characters else next(others) for value in range(BYTES)]
