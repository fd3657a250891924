"""One direction between two captures: numbered on one side, counted on the other, sent again until it has arrived.

Pure: no socket. ``Outbox`` is the sender's, ``Inbox`` the receiver's.
"""

from collections import deque
from collections.abc import Iterator

from tidemill.errors import PeerMessageError

MOST_BYTES = 64 << 20  # of letters to one capture that have not arrived
_FEW_BYTES = 8 << 20  # beyond it, what is said again anyway is left out


class OverflowedError(Exception):
    """Another capture does not take what must not be lost. Who wrote it has to begin anew."""


class Outbox:
    """What was not received yet, with its numbers."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._few = min(_FEW_BYTES, most_bytes // 2)
        self._waiting: deque[tuple[int, str, bytes]] = deque()
        self._bytes = 0
        self.last = 0

    def put(self, kind: str, content: bytes, *, may_skip: bool) -> bool:
        """False: it was skipped. Raises OverflowedError."""
        if self._bytes + len(content) > (self._few if may_skip else self._most):
            if may_skip:
                return False
            raise OverflowedError
        self.last += 1
        self._waiting.append((self.last, kind, content))
        self._bytes += len(content)
        return True

    def received(self, number: int) -> None:
        """All up to this one have arrived."""
        while self._waiting and self._waiting[0][0] <= number:
            self._bytes -= len(self._waiting.popleft()[2])

    def after(self, number: int) -> Iterator[tuple[int, str, bytes]]:
        return iter([each for each in self._waiting if each[0] > number])


class Inbox:
    """What has been heard of one sender, in one session of it."""

    def __init__(self) -> None:
        self.received = 0

    def take(self, number: int) -> bool:
        """Whether it is new. Raises PeerMessageError where one before it is missing."""
        if number <= self.received:
            return False
        if number != self.received + 1:
            raise PeerMessageError(
                f"letter {number} has come, and {self.received + 1} has not. It is to be sent again."
            )
        self.received = number
        return True
