"""Batch: the rows that decode together, always contiguous from row 0.

A row is not a slot: when a request leaves, the last row moves into its place, and its state with it.
"""

from __future__ import annotations

import numpy as np

SLOT, TOKEN = 0, 1


class Batch:
    """Row state.

    Attributes:
        submissions: The request in each row.
        state: int64 [S, 2] on the host: the row's slot, and its last token, which is the next forward's input.
    """

    def __init__(self, slots: int) -> None:
        self.submissions: list[int] = []
        self.state = np.zeros((slots, 2), dtype=np.int64)

    def join(self, submission: int, slot: int) -> None:
        """A request takes the row behind the last one."""
        self.state[len(self.submissions), SLOT] = slot
        self.submissions.append(submission)

    def leave(self, submission: int) -> None:
        """A request goes; the last row closes the gap."""
        row, last = self.submissions.index(submission), len(self.submissions) - 1
        if row != last:
            self.swap(row, last)
            self.submissions[row] = self.submissions[last]
        self.submissions.pop()

    def swap(self, a: int, b: int) -> None:
        """Exchanges the state of two rows."""
        self.state[[a, b]] = self.state[[b, a]]

    def slots(self) -> list[int]:
        """Each row's slot."""
        return self.column(SLOT)

    def tokens(self) -> list[int]:
        """Each row's last token."""
        return self.column(TOKEN)

    def keep(self, row: int, token: int) -> None:
        """Remembers a row's last token."""
        self.state[row, TOKEN] = token

    def column(self, field: int) -> list[int]:
        """One field of every row in use."""
        values: list[int] = self.state[: len(self.submissions), field].tolist()
        return values
