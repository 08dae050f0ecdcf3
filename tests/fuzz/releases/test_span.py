"""What several versions together say of a failure, and with what the command exits."""

from __future__ import annotations

import pytest

from fuzz.releases.trying import Release, Span, Standing, exit_code, span

LETTERS = {
    "r": Standing.REPRODUCED,
    "f": Standing.FIXED,
    "u": Standing.UNDECIDED,
    "c": Standing.COULD_NOT_RUN,
}


def tried(letters: str) -> list[Release]:
    """Versions 1.9, 1.10, 1.11, …, one for each letter."""
    return [Release(f"1.{9 + index}", LETTERS[letter]) for index, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("letters", "said"),
    [
        ("ffrr", Span("1.11", "1.10", (), None)),
        ("ffrrf", Span("1.11", "1.10", (), "1.13")),
        ("fucr", Span("1.12", "1.9", ("1.10", "1.11"), None)),
        ("ur", Span("1.10", None, ("1.9",), None)),
        ("rfrf", Span("1.9", None, (), "1.12")),
        ("ff", Span(None, "1.10", (), None)),
        ("cu", Span(None, None, (), None)),
    ],
)
def test_the_first_bad_and_the_last_good_version_and_what_is_not_known_between(letters: str, said: Span) -> None:
    assert span(tried(letters)) == said
    assert span(tried(letters)[::-1]) == said


@pytest.mark.parametrize(("letters", "code"), [("ff", 0), ("fr", 1), ("ruc", 1), ("fu", 3), ("fc", 3), ("c", 3)])
def test_a_version_that_nobody_can_say_anything_of_is_no_pass(letters: str, code: int) -> None:
    assert exit_code(tried(letters)) == code
