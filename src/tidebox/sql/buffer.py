"""The writes of a transaction that is not committed yet."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from tidebox.mvcc import SortedKeys
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.txn.prewrite import Intent, KeyMutation, PessimisticAction

ENTRY_MAX_BYTES: Final = 6 << 20  # txn-entry-size-limit
TOTAL_MAX_BYTES: Final = 100 << 20  # txn-total-size-limit

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Pending:
    """A buffered write; ``value`` None deletes. ``is_locked``: a pessimistic transaction locks the key."""

    value: bytes | None
    is_locked: bool


class Buffer:
    def __init__(self) -> None:
        self.writes: dict[bytes, Pending] = {}
        self._order = SortedKeys()
        self._undo: list[tuple[bytes, Pending | None]] = []
        self._size = 0

    def put(self, key: bytes, value: bytes, *, is_locked: bool = True) -> None:
        """``is_locked`` false: of an entry that goes with a locked one, and that nobody else could write."""
        if len(key) + len(value) > ENTRY_MAX_BYTES:
            raise sql_error(Errno.ENTRY_TOO_LARGE, ENTRY_MAX_BYTES, len(key) + len(value))
        self._size += len(key) + len(value)
        if self._size > TOTAL_MAX_BYTES:
            raise sql_error(Errno.TXN_TOO_LARGE, self._size)
        self._write(key, Pending(value, is_locked))

    def delete(self, key: bytes, *, is_locked: bool = True) -> None:
        self._write(key, Pending(None, is_locked))

    def savepoint(self) -> int:
        """A mark to roll back to."""
        return len(self._undo)

    def rollback_to(self, mark: int) -> list[bytes]:
        """Forget what was written since ``savepoint`` gave out ``mark``; the keys that are not written any more."""
        gone = []
        while len(self._undo) > mark:
            key, before = self._undo.pop()
            if before is None:
                del self.writes[key]
                self._order.remove(key)
                gone.append(key)
            else:
                self.writes[key] = before
        return gone

    def to_lock_since(self, mark: int) -> list[bytes]:
        return [key for key, _ in self._undo[mark:] if self.writes[key].is_locked]

    def mutations(self, held: Collection[bytes]) -> list[KeyMutation]:
        """All of them in key order, and locks on keys that are ``held`` but not written."""
        found = []
        for key in self._order.within(b"", b""):
            value = self.writes[key].value
            action = PessimisticAction.EXPECT_LOCK if key in held else PessimisticAction.SKIP_CHECK
            intent = Intent.DELETE if value is None else Intent.PUT
            found.append(KeyMutation(intent, key, value or b"", action=action))
        if found:
            only_locked = [key for key in held if key not in self.writes]
            found += [KeyMutation(Intent.LOCK, key, action=PessimisticAction.EXPECT_LOCK) for key in only_locked]
        return found

    def over(self, stored: Iterator[Pair], start: bytes, end: bytes, *, reverse: bool) -> Iterator[Pair]:
        """The pairs of ``[start, end)``: buffered writes hide what is ``stored``."""
        buffered = list(self._order.within(start, end))
        if not buffered:
            yield from stored
            return
        ahead = buffered if not reverse else buffered[::-1]
        at = 0
        for key, value in stored:
            while at < len(ahead) and (ahead[at] > key if reverse else ahead[at] < key):
                yield from self._buffered(ahead[at])
                at += 1
            if at < len(ahead) and ahead[at] == key:
                yield from self._buffered(key)
                at += 1
            else:
                yield key, value
        for key in ahead[at:]:
            yield from self._buffered(key)

    def clear(self) -> None:
        self.writes.clear()
        self._undo.clear()
        self._order = SortedKeys()

    def _write(self, key: bytes, pending: Pending) -> None:
        before = self.writes.get(key)
        self._undo.append((key, before))
        if before is None:
            self._order.add(key)
        self.writes[key] = pending

    def _buffered(self, key: bytes) -> Iterator[Pair]:
        pending = self.writes.get(key)
        if pending is not None and pending.value is not None:
            yield key, pending.value
