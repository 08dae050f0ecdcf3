"""The one error a user can cause: a value that breaks a rule, said in one sentence."""

from __future__ import annotations


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
