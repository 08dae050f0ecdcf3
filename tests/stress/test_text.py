"""Text: pieces of answers, whole characters, stop strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stress.endpoint.text import StopFinder
from stress.endpoint.tokens import ByteTokenizer, Message, OwnTokenizer
from targets.protocol import BadInput

BYTES = ByteTokenizer(320, (256, 257, 258), (257,))
TEXTS = st.text(alphabet="abé€😀 ", max_size=20)
FEW = st.text(alphabet="ab", min_size=1, max_size=4)


def ends(text: str, stops: list[str]) -> str:
    """Where a text ends, character by character."""
    for end in range(len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return text[: min(begins)]
    return text


@given(st.lists(st.text(alphabet="ab", max_size=5), max_size=8), st.lists(FEW, min_size=1, max_size=3))
def test_a_stop_string_ends_the_text_wherever_the_pieces_are_cut(pieces: list[str], stops: list[str]) -> None:
    finder, told = StopFinder(stops), ""
    expected = ends("".join(pieces), stops)
    for piece in pieces:
        told += finder.push(piece)
        assert expected.startswith(told), "nothing is told that has to be taken back"
        if finder.found:
            break
    else:
        told += finder.flush()
    assert told == expected


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    finder = StopFinder(["END"])
    assert [finder.push(piece) for piece in ("xE", "N", "Ex", "EN", "D")] == ["x", "", "ENEx", "", ""]
    assert finder.found


@given(st.lists(st.integers(0, 319), max_size=30))
def test_the_pieces_of_any_answer_are_its_whole_text(tokens: list[int]) -> None:
    writer = BYTES.writer()
    pieces = [writer.push(token) for token in tokens]
    whole = b"".join(BYTES.spelling(token) for token in tokens).decode(errors="replace")
    assert "".join(pieces) + writer.flush() == whole


@given(TEXTS)
def test_a_character_is_told_when_it_is_whole(text: str) -> None:
    writer = BYTES.writer()
    pieces = [writer.push(token) for token in BYTES.read(text)]
    assert "".join(pieces) == text
    assert writer.flush() == ""
    assert all(len(piece) <= 1 for piece in pieces)


def test_bytes_are_the_first_ids_that_mean_nothing_else() -> None:
    tokenizer = ByteTokenizer(32_000, (0, 1, 2), (2,))
    assert tokenizer.read("\x00a") == [3, 100]
    assert tokenizer.spelling(2) == b"<|2|>"
    assert tokenizer.spelling(100) == b"a"


def test_a_conversation_has_a_line_a_message() -> None:
    ids = BYTES.read_chat([Message("system", "be brief"), Message("user", "hello")])
    assert bytes(ids) == b"system: be brief\nuser: hello\nassistant:"


def test_a_small_vocabulary_reads_what_it_can() -> None:
    tokenizer = ByteTokenizer(100, (), ())
    assert tokenizer.read("ABC") == [65, 66, 67]
    with pytest.raises(BadInput, match="or text of bytes below 100:"):
        tokenizer.read("x")


@pytest.fixture(scope="module")
def own() -> OwnTokenizer:
    """A byte-level BPE of a few words, as models have."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>", "<turn>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(["hello world, hello there"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<end>")
    tokenizer.chat_template = (
        "{% for message in messages %}<turn>{{ message.role }} {{ message.content }}{% endfor %}<turn>assistant "
    )
    return OwnTokenizer(tokenizer)


@given(text=st.text(alphabet="helo wrd,é€😀", max_size=20))
def test_a_models_own_tokenizer_is_written_in_whole_characters(own: OwnTokenizer, text: str) -> None:
    writer = own.writer()
    pieces = [writer.push(token) for token in own.read(text)]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_a_models_own_template_reads_a_conversation(own: OwnTokenizer) -> None:
    ids = own.read_chat([Message("user", "hello")])
    assert own.tokenizer.decode(ids) == "<turn>user hello<turn>assistant "
    assert own.ends == (0,)
    assert own.spelling(own.read("hello")[0]) in b"hello"


def test_what_is_never_whole_is_told_all_the_same(own: OwnTokenizer) -> None:
    half = own.read("€")[:1]
    writer = own.writer()
    assert [writer.push(token) for token in half * 7] == [""] * 7
    assert writer.push(half[0]) == "\ufffd" * 8
    assert writer.flush() == ""
