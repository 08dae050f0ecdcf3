from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.passphrase.claims import Claim, is_deaf_to_meaning, of_answers, of_attention
from fuzz.passphrase.prefix import Drift, Experiment, Look, edit_distance
from fuzz.passphrase.serving import Bench
from fuzz.passphrase.texts import INSTRUCTIONS, KINDS, NEUTRAL, TASKS, Words, words_of
from targets.models import Model
from targets.protocol import Kind, Request
from targets.registry import TargetSpec

FIVE = tuple(Request(prompt=(number, *range(9, 9 + number)), max_new_tokens=3) for number in range(1, 6))


@pytest.fixture
def words(tiny: Model) -> Words:
    return words_of(tiny, "tiny")


def passphrase(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["passphrase", *map(str, words)])


def experiment(words: Words, trust: int = 0) -> Experiment:
    return Experiment(words, {}, tasks=2, contents=1, lengths=(1, 4), new_tokens=3, looked_at=1, trust=trust)


@pytest.mark.slow
@pytest.mark.parametrize("lock", [False, True])
def test_five_at_once_with_a_context_each_do_not_drift_by_a_bit(lock: bool) -> None:
    played = Bench(TargetSpec("threads"), {}).concurrent(FIVE, "", lock=lock)
    assert (played.requests, played.tokens, played.drifted, played.missing, played.verdict) == (5, 15, 0, 0, "PASS")
    assert played.is_clean


@pytest.mark.slow
@pytest.mark.parametrize("lock", [False, True])
def test_five_at_once_with_one_state_for_all_leak_and_the_source_is_named(lock: bool) -> None:
    bench = Bench(TargetSpec("threads", faults=("threads-one-cache",)), {})
    played = bench.concurrent(FIVE, "", lock=lock)
    assert played.drifted > 0
    assert played.largest > 1e-3
    leaks = [finding for finding in played.findings if finding.kind is Kind.LEAK]
    assert leaks
    assert all(finding.sources and finding.submission not in finding.sources for finding in leaks)
    assert not played.is_clean


@pytest.mark.slow
def test_the_same_input_twice_is_answered_with_the_same_bits_fresh_and_used() -> None:
    fresh, used = Bench(TargetSpec("threads"), {}).repeat(FIVE[:1])
    assert (fresh.way, used.way) == ("twice, fresh", "twice, used")
    assert fresh.is_clean
    assert used.is_clean
    assert fresh.tokens == used.tokens == 6


@pytest.mark.parametrize(
    ("ours", "theirs", "edits"), [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_an_edit_distance_is_the_fewest_edits(ours: str, theirs: str, edits: int) -> None:
    assert edit_distance(list(map(ord, ours)), list(map(ord, theirs))) == edits
    assert edit_distance(list(map(ord, theirs)), list(map(ord, ours))) == edits


def test_texts_are_cut_to_length_or_said_again(tiny: Model) -> None:
    made = Words(tiny, (2,), True, lambda text: list(range(len(text.split()))), str)
    count = len(NEUTRAL[0].split())
    assert made.prefix("neutral", 0, 4) == (0, 1, 2, 3)
    assert made.prefix("neutral", 0, count + 2) == (*range(count), 0, 1)
    assert len(made.tasks(len(TASKS))) == 20
    assert len({*TASKS, *NEUTRAL, *INSTRUCTIONS}) == 26


def test_a_model_without_a_tokenizer_is_asked_drawn_ids_which_are_the_same_each_time(words: Words) -> None:
    assert not words.trained
    assert words.prefix("neutral", 0, 9) == words.prefix("neutral", 0, 9) != words.prefix("neutral", 1, 9)
    assert words.prefix("neutral", 0, 4) == words.prefix("neutral", 0, 9)[:4]
    assert words.tasks(3) == words.tasks(3)


def test_the_mass_on_a_text_is_what_its_cells_weigh(words: Words) -> None:
    made = experiment(words)
    task = made.asked[0]
    seen = made.attention(made.request(task, words.prefix("neutral", 0, 4)), len(task), 4)
    assert seen.weights.shape[:2] == seen.mass.shape
    torch.testing.assert_close(seen.weights.sum(-1) + seen.mass, torch.ones_like(seen.mass))
    assert seen.mass.min() > 0
    nothing = made.attention(made.request(task), len(task), 0)
    assert nothing.mass.max() == 0


@pytest.mark.slow
def test_a_text_of_low_trust_draws_less_of_the_attention(words: Words) -> None:
    plain, trusted = (list(experiment(words, trust).looks()) for trust in (0, 8))
    assert len(plain) == len(trusted) == 2 * len(KINDS)
    for ours, theirs in zip(trusted, plain, strict=True):
        assert sum(map(sum, ours.mass)) < 0.1 * sum(map(sum, theirs.mass))


@pytest.mark.slow
def test_what_is_trusted_less_by_nothing_drifts_to_the_very_same_answers(words: Words) -> None:
    assert list(experiment(words).drifts()) == list(experiment(words, 0).drifts())
    assert any(drift.mean > 0 for drift in experiment(words).drifts())


def drifts(edits: dict[str, dict[int, tuple[int, ...]]]) -> list[Drift]:
    """One task, and for each kind and length the edits by content."""
    return [
        Drift(kind, length, content, (count,), ())
        for kind, lengths in edits.items()
        for length, counts in lengths.items()
        for content, count in enumerate(counts)
    ]


def test_claims_of_answers_hold_where_they_do() -> None:
    measured = drifts(
        {
            "neutral": {1: (0, 0), 4: (0, 1), 16: (1, 2), 32: (1, 1), 64: (2, 2), 128: (2, 2), 256: (2, 2)},
            "instruction": {1: (0, 0), 4: (5, 0), 16: (5, 6), 32: (2, 2), 64: (3, 3), 128: (9, 9), 256: (9, 9)},
        }
    )
    assert of_answers(measured, 16) == [
        Claim(
            "a neutral text moves the answer by a single-digit edit distance",
            "at most 2.0 tokens in the mean, behind 64",
            True,
        ),
        Claim("an instruction moves it farther than a neutral text", "5.8 against 1.8 tokens, behind 32 or more", True),
        Claim(
            "between 64 and 128 tokens there is a jump, and then it is flat",
            "32 to 64 +1.0, 64 to 128 +6.0, 128 to 256 +0.0; steepest from 64 to 128",
            True,
        ),
        Claim("behind a short text (4 to 16 tokens) it depends on the text how far", "behind 4 tokens 0.0 to 5.0", True),
    ]


def test_claims_of_answers_do_not_hold_where_they_do_not_and_some_can_not_be_told() -> None:
    flat = drifts({"neutral": {32: (12,)}, "instruction": {32: (12,)}})
    assert [claim.holds for claim in of_answers(flat, 16)] == [False, False, None, None]
    even = drifts({kind: dict.fromkeys((4, 16, 32, 64, 128, 256), (3, 3)) for kind in KINDS})
    assert [claim.holds for claim in of_answers(even, 16)] == [True, False, False, False]
    assert [claim.holds for claim in of_answers(even, 9)] == [None, False, False, False]


def look(kind: str, kl: list[float], mass: float, shift: float) -> Look:
    """Two heads a layer, the second of twice the first one's KL and a bit."""
    layers = tuple((each, 2.5 * each) for each in kl)
    return Look(kind, 256, 0, layers, tuple((mass, mass) for _ in kl), tuple((shift, shift) for _ in kl))


def test_claims_of_attention_hold_where_they_do_and_do_not_where_they_do_not() -> None:
    middle = [look("neutral", [0.1, 0.5, 0.1], 0.3, 0.1), look("instruction", [0.1, 0.9, 0.2], 0.4, 0.1)]
    assert [claim.holds for claim in of_attention(middle)] == [True, True, True, True]
    late = [look("neutral", [0.0, 0.1, 0.5], 0.4, 0.0), look("instruction", [0.0, 0.1, 0.5], 0.4, 0.0)]
    assert [claim.holds for claim in of_attention(late)] == [False, False, False, False]
    two = [look("neutral", [0.1, 0.5], 0.3, 0.1), look("instruction", [0.1, 0.9], 0.4, 0.1)]
    assert of_attention(two)[0].holds is None


def test_a_model_that_one_token_moves_as_far_is_said_to_be_deaf_to_what_texts_say() -> None:
    assert is_deaf_to_meaning(drifts({"neutral": {1: (7,)}, "instruction": {1: (6,)}}), 12)
    assert not is_deaf_to_meaning(drifts({"neutral": {1: (2,)}, "instruction": {1: (3,)}}), 12)
    assert not is_deaf_to_meaning(drifts({"neutral": {32: (12,)}, "instruction": {32: (12,)}}), 12)


@pytest.mark.slow
def test_the_command_says_what_a_random_model_is_worth_and_writes_it_all_down(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table, picture = tmp_path / "all.json", tmp_path / "all.svg"
    words = ["--mode", "prefix", "--lengths", "1,4", "--tasks", "2", "--contents", "1", "--new-tokens", "3", "--looks", "1"]
    told = passphrase(*words, "--trust", "8", "--json", table, "--plot", picture)
    assert told.exit_code == 0, told.output
    assert "a random model: its drift says nothing of texts, and the claims are not about it" in told.output
    assert "one token before the task changes " in told.output
    assert "another request's content: nothing of it comes across" in told.output
    written = msgspec.json.decode(table.read_bytes())
    assert (written["trained"], len(written["drifts"]), len(written["claims"])) == (False, 4, 8)
    assert len(written["trusted_looks"]) == 4
    assert "<svg" in picture.read_text()


@pytest.mark.slow
def test_the_command_plays_a_control_beside_an_honest_target_and_exits_with_the_honest_ones_verdict() -> None:
    honest = passphrase("--mode", "concurrent", "--new-tokens", "2", "--set", "lock=False")
    assert honest.exit_code == 0, honest.output
    assert "one state for all: LEAK  request #" in honest.output
    broken = passphrase("--mode", "concurrent", "--new-tokens", "2", "--set", "lock=False", "--fault", "threads-one-cache")
    assert broken.exit_code == 1
    assert "a context each: LEAK  request #" in broken.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("context_tokens_max=2", "undecided: some were not answered"),
        ("slots=1", "undecided: they never met"),
    ],
)
def test_nothing_passes_where_nothing_was_compared_or_nobody_met(setting: str, told: str) -> None:
    words = ("--mode", "concurrent", "--target", "slots", "--new-tokens", 2, "--dtype", "float64", "--set", setting)
    asked = passphrase(*map(str, words))
    assert (asked.exit_code, "PASS" in asked.output) == (3, False)
    assert f"a context each: {told}\n" in asked.output


@pytest.mark.slow
def test_nothing_is_said_of_another_requests_content_that_was_never_beside() -> None:
    words = ("--target", "slots", "--new-tokens", 2, "--lengths", 1, "--tasks", 2, "--contents", 1, "--looks", 1)
    asked = passphrase("--mode", "prefix", *map(str, words), "--dtype", "float64", "--set", "slots=1")
    assert asked.exit_code == 3
    assert "beside a request with the neutral text: undecided: they never met\n" in asked.output
    assert asked.output.endswith("another request's content: undecided\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--mode", "prefix", "--lengths", "4,x"),
            "--lengths must be whole numbers in 1..4096 with commas between, got 4,x",
        ),
        (
            ("--mode", "repeat", "--target", "openvino"),
            "--target must be one of slots, pages, private, threads, got openvino",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    told = passphrase(*words)
    assert (told.exit_code, told.output.strip()) == (2, sentence)


def test_a_text_that_does_not_fit_the_context_is_refused(words: Words) -> None:
    with pytest.raises(ValueError, match=r"^--lengths must be short enough for a context of \d+, got \d+$"):
        Experiment(words, {}, 2, 1, (1_000_000,), 3, 1)
