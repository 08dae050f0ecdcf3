"""The driver: what reaches the target, and what reaches those who wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

from stress.endpoint.driver import Busy, Closing, Driver
from stress.endpoint.orders import End, Order, Outcome, Piece
from targets.decoder import DecoderFactory
from targets.protocol import Emitted, Event, Reason, Request
from tests.fuzz.scripted import Crowded, Honest, Scripted

FOUR = Request(prompt=(5,), max_new_tokens=4)
LONG = Request(prompt=(5,), max_new_tokens=200)


def driven(driver: Driver, main: Callable[[], Awaitable[None]], clock: trio.abc.Clock | None = None) -> None:
    """Runs `main` beside the driver."""

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.run)
            await main()
            nursery.cancel_scope.cancel()

    trio.run(both, clock=clock)


async def whole(order: Order) -> list[Piece | End]:
    """All that is said to an order."""
    heard: list[Piece | End] = []
    while sum(isinstance(event, End) for event in heard) < len(order.tickets):
        heard += await order.hear()
    return heard


def tokens(heard: Sequence[Piece | End], place: int = 0) -> list[int]:
    return [event.token for event in heard if isinstance(event, Piece) and event.place == place]


def test_every_order_hears_what_is_its_own() -> None:
    driver = Driver(Scripted(Honest), {}, queue_max=8)

    async def main() -> None:
        one, two = driver.submit([FOUR], 60), driver.submit([LONG, FOUR], 60)
        heard = await whole(one)
        assert heard[-1] == End(0, Outcome.LENGTH)
        assert tokens(heard) == [6, 7, 8, 9]
        heard = await whole(two)
        assert [len(tokens(heard, place)) for place in (0, 1)] == [200, 4]
        assert [ticket.submission for order in (one, two) for ticket in order.tickets] == [0, 1, 2]

    driven(driver, main)


def test_who_leaves_is_cancelled_before_the_next_step(slots: DecoderFactory) -> None:
    driver = Driver(slots, {}, queue_max=8)

    async def main() -> None:
        order = driver.submit([LONG], 60)
        await order.hear()
        steps = driver.counters.steps
        driver.leave(order.tickets[0])
        audit = await driver.audit()
        assert audit is not None
        assert (audit.held, driver.counters.steps) == ((), steps)
        assert driver.counters.ended == {Outcome.CANCELLED: 1}

    driven(driver, main)


def test_who_leaves_before_the_target_has_heard_of_them_leaves_nothing(slots: DecoderFactory) -> None:
    driver = Driver(slots, {}, queue_max=1)

    async def main() -> None:
        await trio.testing.wait_all_tasks_blocked()
        driver.leave(driver.submit([LONG], 60).tickets[0])
        audit = await driver.audit()
        assert audit is not None
        assert (audit.held, audit.queued, driver.waiting) == ((), (), 0)

    driven(driver, main)


def test_a_full_queue_takes_all_of_an_order_or_nothing(slots: DecoderFactory) -> None:
    driver = Driver(slots, {"slots": 1}, queue_max=3)

    async def main() -> None:
        first = driver.submit([FOUR], 60)
        await first.hear()
        second = driver.submit([FOUR, FOUR], 60)
        with pytest.raises(Busy):
            driver.submit([FOUR, FOUR], 60)
        third = driver.submit([FOUR], 60)
        for order in (second, third):
            assert (await whole(order))[-1].outcome is Outcome.LENGTH  # type: ignore[union-attr]
        assert driver.waiting == 0
        assert driver.counters.ended == {Outcome.LENGTH: 4, Outcome.FULL: 2}

    driven(driver, main)


def test_one_more_answer_names_the_submission_that_has_the_prompt(slots: DecoderFactory) -> None:
    driver = Driver(slots, {}, queue_max=8)

    async def main() -> None:
        driver.submit([FOUR], 60)
        again = Request(prompt=FOUR.prompt, max_new_tokens=4, sample_of=0)
        order = driver.submit([FOUR, again], 60)
        assert order.tickets[1].request.sample_of == 1

    driven(driver, main)


class Still(Honest):
    """Never gets anywhere."""

    def step(self, rows: tuple[int, ...] | None = None) -> list[Event]:
        return []


def test_what_does_not_end_is_given_up_at_its_deadline() -> None:
    driver = Driver(Scripted(Still), {}, queue_max=8)

    async def main() -> None:
        begun = trio.current_time()
        (end,) = await whole(driver.submit([FOUR], 0.5))
        assert isinstance(end, End)
        assert end.outcome is Outcome.DEADLINE
        assert trio.current_time() - begun == pytest.approx(0.5, abs=0.01)
        assert driver.counters.steps < 600, "a target that stands still is asked once in a while"
        assert not driver.live

    driven(driver, main, MockClock(autojump_threshold=0))


def test_a_target_that_raises_is_replaced() -> None:
    factory = Scripted(Crowded)
    driver = Driver(factory, {}, queue_max=8)

    async def main() -> None:
        ends = [(await whole(order))[-1] for order in [driver.submit([FOUR], 60) for _ in range(3)]]
        assert ends == [End(0, Outcome.FAILED, "the target raised IndexError: row 2 is out of range")] * 3
        assert (len(factory.opened), factory.opened[0].closed) == (2, True)
        assert tokens(await whole(driver.submit([FOUR], 60))) == [6, 7, 8, 9]

    driven(driver, main)


class Endless(Honest):
    """Never ends by itself, nor hears that it should."""

    def advance(self, submission: int) -> list[Event]:
        return [Emitted(submission, 1)]

    def cancel(self, submission: int, reason: Reason) -> list[Event]:
        return []


def test_who_is_given_more_than_was_asked_for_is_told_so() -> None:
    driver = Driver(Scripted(Endless), {}, queue_max=8)

    async def main() -> None:
        heard = await whole(driver.submit([FOUR], 60))
        assert heard[-1] == End(0, Outcome.FAILED, "the target gave more tokens than were asked for")
        assert len(tokens(heard)) == 8
        await driver.audit()
        assert not driver.live

    driven(driver, main)


def test_a_shutdown_lets_requests_end() -> None:
    driver = Driver(Scripted(Honest), {}, queue_max=8)

    async def main() -> None:
        order = driver.submit([LONG], 60)
        assert await driver.drain(60) == 0
        assert len(tokens(await whole(order))) == 200
        with pytest.raises(Closing):
            driver.submit([FOUR], 60)

    driven(driver, main, MockClock(autojump_threshold=0))


def test_a_shutdown_cancels_what_does_not_end(slots: DecoderFactory) -> None:
    driver = Driver(slots, {"slots": 1}, queue_max=8)

    async def main() -> None:
        orders = [driver.submit([LONG], 60) for _ in range(3)]
        await orders[0].hear()
        assert await driver.drain(0) == 3
        audit = await driver.audit()
        assert audit is not None
        assert (audit.held, audit.queued) == ((), ())
        for order in orders:
            assert (await whole(order))[-1] == End(0, Outcome.FAILED, "the server is shutting down")

    driven(driver, main)


def test_who_waits_when_the_driver_ends_is_told() -> None:
    factory = Scripted(Still)
    driver = Driver(factory, {}, queue_max=8)
    orders = []

    async def main() -> None:
        orders.append(driver.submit([FOUR], 60))
        await trio.lowlevel.checkpoint()

    driven(driver, main)
    heard = trio.run(orders[0].hear)
    assert heard == [End(0, Outcome.FAILED, "the server has stopped")]
    assert factory.opened[0].closed
