"""Transcripts are read whole, once, while they grow, and whatever was begun is accounted for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stress.judging.following import Following
from stress.transcript import Begun, Exchange, Heard, format_line
from targets.protocol import BadInput, Request

ASKED = Request(prompt=(1, 2), max_new_tokens=2)


def begun(number: int) -> bytes:
    return format_line(Begun(number=number, user="one", request=ASKED, sent_s=float(number)))


def heard(number: int) -> bytes:
    exchange = Exchange(number=number, user="one", request=ASKED, sent_s=float(number), ended_s=9.0, outcome="answered")
    return format_line(Heard(exchange=exchange))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "transcripts").mkdir()
    return tmp_path


def write(folder: Path, name: str, *lines: bytes) -> None:
    with (folder / "transcripts" / f"{name}.jsonl").open("ab") as file:
        file.writelines(lines)


def names(following: Following) -> list[tuple[str, int]]:
    return [(response.source, response.number) for response in following.read()]


def test_files_of_several_workers_are_read_while_they_grow(folder: Path) -> None:
    following = Following(folder)
    assert names(following) == []
    write(folder, "a", begun(0), begun(1), heard(0))
    write(folder, "b", begun(0), heard(0)[:30])
    assert names(following) == [("a", 0)]
    assert set(following.open) == {("a", 1), ("b", 0)}
    write(folder, "b", heard(0)[30:])
    write(folder, "c", begun(0), heard(0))
    assert names(following) == [("b", 0), ("c", 0)]
    assert (set(following.open), following.responses) == ({("a", 1)}, 3)


def test_reading_may_be_left_off_anywhere(folder: Path) -> None:
    write(folder, "a", *(begun(number) + heard(number) for number in range(4)))
    following = Following(folder)
    assert next(following.read()).number == 0
    assert names(following) == [("a", 1), ("a", 2), ("a", 3)]
    assert len(list(following.again())) == 4


def test_what_was_judged_before_is_not_read_out_again(folder: Path) -> None:
    write(folder, "a", begun(0), heard(0), begun(1), heard(1))
    following = Following(folder, {("a", 0)})
    assert names(following) == [("a", 1)]
    assert following.responses == 2


def test_a_line_that_is_none_is_counted_and_stops_nothing(folder: Path) -> None:
    write(folder, "a", begun(0), b'{"type":"nonsense"}\n', b"\xff\n", heard(0))
    following = Following(folder)
    assert names(following) == [("a", 0)]
    assert [where for where, _ in following.unreadable] == [f"a.jsonl, byte {len(begun(0)) + at}" for at in (0, 20)]


def test_a_folder_without_transcripts_is_bad_use(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="FOLDER must be a run's folder, in which there is a folder `transcripts`, got "):
        Following(tmp_path)


def test_the_last_request_is_known_by_its_time(folder: Path) -> None:
    write(folder, "a", begun(3), heard(3), begun(7))
    following = Following(folder)
    list(following.read())
    assert following.last_s == 7.0
    assert msgspec.structs.asdict(following.open["a", 7])["sent_s"] == 7.0
