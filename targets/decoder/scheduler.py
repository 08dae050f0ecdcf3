"""Scheduler: who gets which slot, and when. First come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Scheduler:
    """The admission queue and the free slots.

    Attributes:
        queue: Waiting submissions, the oldest first.
        free: Free slots; the next one is taken from the right (lifo) or from the left (fifo).
        owners: Held slots and the submission that holds each.
        fits: Whether there is room for a waiting submission now; asked in the order of the queue.
    """

    fits: Callable[[int], bool]
    together = False
    """Whether requests are let in together, when nobody is left of those before, and take every step together."""

    def __init__(self, slots: int, slot_order: str, queue_max: int, admit_max: int) -> None:
        self.slot_order = slot_order
        self.queue_max = queue_max
        self.admit_max = admit_max
        self.queue: deque[int] = deque()
        self.free: deque[int] = deque(reversed(range(slots)) if slot_order == "lifo" else range(slots))
        self.owners: dict[int, int] = {}
        self.fits = lambda submission: True

    def enqueue(self, submission: int) -> bool:
        """Puts a request last in the queue; False if the queue is full."""
        if len(self.queue) >= self.queue_max:
            return False
        self.queue.append(submission)
        return True

    def withdraw(self, submission: int) -> bool:
        """Takes a request out of the queue; False if it was not there."""
        if submission not in self.queue:
            return False
        self.queue.remove(submission)
        return True

    def requeue(self, submission: int) -> None:
        """Puts a preempted request back, before all that came after it."""
        self.queue.insert(sum(waiting < submission for waiting in self.queue), submission)

    def admit(self, rows: tuple[int, ...] | None) -> list[tuple[int, int]]:
        """Gives free slots to the oldest waiting requests (of those named): (submission, slot) each.

        One for which there is no room yet holds up those behind it: passed over, it might wait for ever.
        """
        admitted: list[tuple[int, int]] = []
        for submission in [waiting for waiting in self.queue if rows is None or waiting in rows]:
            if not self.free or len(admitted) == self.admit_max or not self.fits(submission):
                break
            self.queue.remove(submission)
            admitted.append((submission, self.take(submission)))
        return admitted

    def take(self, submission: int) -> int:
        """The next free slot, now held by `submission`."""
        slot = self.free.pop() if self.slot_order == "lifo" else self.free.popleft()
        self.owners[slot] = submission
        return slot

    def release(self, slot: int) -> None:
        """A held slot becomes free."""
        del self.owners[slot]
        self.free.append(slot)
