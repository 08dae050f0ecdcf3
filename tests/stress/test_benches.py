"""The benches of the endpoint: hostile clients are repelled, and a server that does not repel them is told so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from fuzz.commandline import Benches
from stress.benches.attacks import Answer, Attack, Field, malformed, oversized, vanish
from stress.benches.command import bench_http, bench_siege
from stress.benches.wire import Reply, asked, connected, post, read_events, read_reply
from stress.endpoint.app import Bounds
from targets.decoder import DecoderFactory
from tests.stress.test_server import Listening, with_server

BODY_BYTES_MAX = 100_000
pytestmark = pytest.mark.slow


def attacking(slots: DecoderFactory, attack: Attack, count: int) -> list[Answer]:
    """What so many attackers get from a server in this process, that must hold nothing afterwards."""
    found: list[Answer] = []

    async def main(server: Listening) -> None:
        field = Field(int(server.url.rpartition(":")[2]), BODY_BYTES_MAX, 64, random.Random(0))
        found.extend([await attack(field) for _ in range(count)])
        while server.driver.live:
            await trio.lowlevel.checkpoint()
        assert await server.held() == 0

    with_server(slots, main, bounds=Bounds(body_bytes_max=BODY_BYTES_MAX))
    return found


def test_attackers_get_what_they_should(slots: DecoderFactory) -> None:
    assert {answer.wrong for answer in attacking(slots, malformed, 60)} == {""}
    assert attacking(slots, oversized, 1) == [Answer(413)]
    assert {answer.status for answer in attacking(slots, vanish, 10)} == {0}


def replying(reply: bytes, attack: Attack) -> Answer:
    """What an attacker says of a server that replies with this to everybody."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(65_536)
        await stream.send_all(reply)

    async def main() -> Answer:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, serve, 0)
            port: int = listeners[0].socket.getsockname()[1]
            answer = await attack(Field(port, 10, 1, random.Random(0)))
            nursery.cancel_scope.cancel()
        return answer

    return trio.run(main)


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 413 Oh\r\nContent-Length: 2\r\n\r\noh", "an error without a body of JSON"),
        (b"HTTP/1.1 413 Oh\r\nContent-Length: 12\r\n\r\n" + b'{"error": 1}', "an error without a body of JSON"),
        (b"HTTP/1.1 413 Oh\r\nContent-Length: 27\r\n\r\n" + b'{"error": {"message": "no"}}'[:27], "an error without"),
        (b"", "status 0"),
    ],
)
def test_a_server_that_answers_badly_is_found_out(reply: bytes, wrong: str) -> None:
    assert replying(reply, oversized).wrong.startswith(wrong)


def test_a_stream_is_counted_event_by_event_however_it_is_cut(slots: DecoderFactory) -> None:
    async def main(server: Listening) -> None:
        async with connected(int(server.url.rpartition(":")[2])) as stream:
            await stream.send_all(asked([1, 2, 3], 12))
            assert await read_events(stream, 12) >= 12
        async with connected(int(server.url.rpartition(":")[2]), 4096) as stream:
            await stream.send_all(asked([1, 2, 3], 12) + post(b"{"))
            assert (await read_reply(stream)).events >= 12

    with_server(slots, main)


def test_a_reply_is_an_error_only_in_the_form_of_one() -> None:
    assert Reply(400, b"", b'{"error": {"message": "no"}}').is_error_body
    for body in (b"", b"[]", b'{"error": "no"}', b'{"error": {"message": ""}}'):
        assert not Reply(400, b"", body).is_error_body


def test_benches_are_bad_use_in_a_sentence(tmp_path: Path) -> None:
    bench = Benches("bench", commands={"http": bench_http, "siege": bench_siege})
    told = CliRunner().invoke(bench, ["http", "--slots", "0"])
    assert (told.exit_code, told.output) == (2, "--slots must be a whole number in 1..1,024, got 0\n")
    told = CliRunner().invoke(bench, ["siege", "--json", str(tmp_path / "no" / "file")])
    assert (told.exit_code, told.output[:6]) == (2, "--json")
    told = CliRunner().invoke(bench, ["siege", "--fault", "nope"])
    assert told.exit_code == 2
    assert "fault must be one of" in told.output


def test_what_a_streamed_token_costs_is_measured() -> None:
    bench = Benches("bench", commands={"http": bench_http})
    told = CliRunner().invoke(
        bench, ["http", "--clients", "4", "--slots", "4", "--each", "1", "--tokens", "4", "--rounds", "1"]
    )
    assert told.exit_code == 0, told.output
    assert "streamed, of in process" in told.output
