"""The one error a user can cause: a value that breaks a rule, said in one sentence."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

FEW = 8
"""So many names are read at a glance."""
ALIKE = 0.5
"""How alike two names are, of 1, where one may be meant for the other: two letters exchanged in a word of four."""


class BadInput(ValueError):  # noqa: N818 (the user's word for it)
    """A user's mistake: `<name> must be <rule>, got <value> (<where>)`.

    Carries its parts, so that callers and tests need not parse the sentence.
    """

    def __init__(self, name: str, rule: str, got: object, where: str = "") -> None:
        self.name = name
        self.rule = rule
        self.got = got
        self.where = where
        super().__init__(f"{name} must be {rule}, got {got}" + (f" ({where})" if where else ""))


def among(names: Iterable[object], got: object) -> str:
    """The rule that a value is one of `names`; of more than a few, only those that were probably meant."""
    known = [str(name) for name in names]
    meant = get_close_matches(str(got), known, cutoff=ALIKE)
    if len(known) <= FEW or not meant:
        return "one of " + ", ".join(known)
    return f"{', '.join(meant)} or another of the {len(known)} there are"


def place(error: BaseException, *ours: str) -> str:
    """The innermost line of a user's own at which an error was raised: "file.py:12, in function"; empty where there is none.

    Not their own are Python, installed packages, and the files or folders `ours`. A file is told by its name alone: what
    is written down is read on other machines too.
    """
    libraries = tuple(sysconfig.get_path(which) + "/" for which in ("stdlib", "purelib", "platlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *libraries, *ours)):
            return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
    return ""
