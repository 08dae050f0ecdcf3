"""What clients heard is read back whole, also while it is still being written."""

from pathlib import Path

import msgspec
import pytest

from stress.transcript import Begun, Exchange, Heard, Piece, format_line, read_lines
from targets.protocol.schedule import Request

ASKED = Request(prompt=(1, 2), max_new_tokens=2)
BEGUN = Begun(number=0, user="steady", request=ASKED, sent_s=1.0)
HEARD = Heard(
    exchange=Exchange(
        number=0,
        user="steady",
        request=ASKED,
        sent_s=1.0,
        ended_s=2.0,
        outcome="answered",
        status=200,
        pieces=(Piece(at_s=1.5, text="a", tokens=(97,), logprobs=(-0.5,)), Piece(at_s=2.0, text="b", tokens=(98,))),
        finish_reason="length",
    )
)


def test_a_transcript_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(format_line(BEGUN) + format_line(HEARD))
    assert [line for _, line in read_lines(path)] == [BEGUN, HEARD]
    assert (HEARD.exchange.tokens, HEARD.exchange.text) == ((97, 98), "ab")


def test_half_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path, line = tmp_path / "one.jsonl", format_line(HEARD)
    path.write_bytes(format_line(BEGUN) + line[:20])
    ((offset, first),) = read_lines(path)
    assert first == BEGUN
    path.write_bytes(format_line(BEGUN) + line)
    assert [read for _, read in read_lines(path, offset)] == [HEARD]


def test_a_whole_line_that_is_no_line_is_an_error_and_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(b'{"type":"heard"}\n')
    with pytest.raises(msgspec.ValidationError):
        list(read_lines(path))
