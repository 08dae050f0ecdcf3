"""Networks with an encoder, each a small module around one of transformers' (or a plain one of ours).

They say what a token stands for: a word, a patch of a picture, a value of a series, a piece of a frame. The mapping is part
of the network, a table made from its seed: whatever is asked in tokens is asked of any of them, and every token matters.

    encoding  what all of them say of themselves
    items     encoder-only: an item in, one answer out, and nothing is kept
    axial     one of those without transformers: attention along rows, then along columns
    crossing  a source is encoded once, a decoder answers with a cache of its own (T5, BART)
    pictured  a picture is encoded once, and stands among the words of a causal LM (LLaVA)
    tiny      their tiny configs, by name

Imports nothing of slotfuzz outside this folder but `targets.tiny`.
"""

from targets.networks.encoding import Encoding
from targets.networks.tiny import NETWORKS

__all__ = ["NETWORKS", "Encoding"]
