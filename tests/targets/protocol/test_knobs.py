from __future__ import annotations

import pytest

from targets.protocol import BadInput, Knob, check_settings, with_defaults

SLOTS = Knob(name="slots", default=4, values=(4, 1, 2), low=1, high=8)
ORDER = Knob(name="order", default="lifo", values=("lifo", "fifo"))
EXACT = Knob(name="exact", default=True, values=(True, False))
SHARE = Knob(name="share", default=0.5, values=(0.5, 1.0))
KNOBS = (SLOTS, ORDER, EXACT, SHARE)


@pytest.mark.parametrize(
    ("knob", "value"), [(SLOTS, 1), (SLOTS, 8), (SLOTS, 3), (ORDER, "fifo"), (EXACT, False), (SHARE, 1.0)]
)
def test_a_value_that_a_knob_takes_comes_back(knob: Knob, value: object) -> None:
    assert knob.check(value) == value


@pytest.mark.parametrize(
    ("knob", "value", "sentence"),
    [
        (SLOTS, 0, "slots must be a whole number in 1..8, got 0 (settings)"),
        (SLOTS, 9, "slots must be a whole number in 1..8, got 9 (settings)"),
        (SLOTS, -1, "slots must be a whole number in 1..8, got -1 (settings)"),
        (SLOTS, 10**30, f"slots must be a whole number in 1..8, got {10**30} (settings)"),
        (SLOTS, True, "slots must be a whole number in 1..8, got True (settings)"),
        (SLOTS, 2.0, "slots must be a whole number in 1..8, got 2.0 (settings)"),
        (SLOTS, "2", "slots must be a whole number in 1..8, got 2 (settings)"),
        (SLOTS, None, "slots must be a whole number in 1..8, got None (settings)"),
        (ORDER, "LIFO", "order must be one of lifo, fifo, got LIFO (settings)"),
        (ORDER, 1, "order must be one of lifo, fifo, got 1 (settings)"),
        (EXACT, 1, "exact must be one of True, False, got 1 (settings)"),
        (SHARE, 1, "share must be one of 0.5, 1.0, got 1 (settings)"),
        (SHARE, float("nan"), "share must be one of 0.5, 1.0, got nan (settings)"),
    ],
)
def test_any_other_value_is_refused_in_one_sentence(knob: Knob, value: object, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        knob.check(value, "settings")
    assert str(caught.value) == sentence
    assert (caught.value.name, caught.value.where) == (knob.name, "settings")


@pytest.mark.parametrize(
    ("knob", "text", "value"), [(SLOTS, "8", 8), (ORDER, "fifo", "fifo"), (EXACT, "False", False), (SHARE, "1.0", 1.0)]
)
def test_a_word_of_the_command_line_is_read_as_the_value_it_names(knob: Knob, text: str, value: object) -> None:
    parsed = knob.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("knob", "text", "sentence"),
    [
        (SLOTS, "9", "slots must be a whole number in 1..8, got 9 (settings)"),
        (SLOTS, "many", "slots must be a whole number in 1..8, got many (settings)"),
        (SLOTS, "", "slots must be a whole number in 1..8, got  (settings)"),
        (SLOTS, "--5", "slots must be a whole number in 1..8, got --5 (settings)"),
        (SLOTS, "1.5", "slots must be a whole number in 1..8, got 1.5 (settings)"),
        (ORDER, "random", "order must be one of lifo, fifo, got random (settings)"),
        (EXACT, "1", "exact must be one of True, False, got 1 (settings)"),
    ],
)
def test_a_word_that_names_no_value_is_refused_in_one_sentence(knob: Knob, text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        knob.parse(text, "settings")
    assert str(caught.value) == sentence


def test_a_number_of_five_thousand_digits_is_refused() -> None:
    with pytest.raises(BadInput):
        SLOTS.parse("9" * 5000)


def test_settings_are_checked_one_by_one() -> None:
    check_settings(KNOBS, {"slots": 2, "exact": False})
    with pytest.raises(BadInput) as unknown:
        check_settings(KNOBS, {"slots": 2, "pages": 1}, "story.json")
    assert str(unknown.value) == "knob must be one of exact, order, share, slots, got pages (story.json)"
    with pytest.raises(BadInput) as refused:
        check_settings(KNOBS, {"slots": 2, "order": "random"}, "story.json")
    assert str(refused.value) == "order must be one of lifo, fifo, got random (story.json)"


def test_a_knob_that_is_not_set_is_at_its_default() -> None:
    assert with_defaults(KNOBS, {"slots": 1}) == {"slots": 1, "order": "lifo", "exact": True, "share": 0.5}


def test_bad_input_carries_its_parts() -> None:
    error = BadInput("slot", "in 0..7", 8, "request 3, op 12")
    assert str(error) == "slot must be in 0..7, got 8 (request 3, op 12)"
    assert (error.name, error.rule, error.got, error.where) == ("slot", "in 0..7", 8, "request 3, op 12")
    assert str(BadInput("slot", "in 0..7", 8)) == "slot must be in 0..7, got 8"
