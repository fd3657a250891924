"""A dict that answers as a transaction does, for what needs no store."""

from collections.abc import Iterator

from tidemill.model.ts import Ts


class Memory:
    """Committed pairs; ``begin`` gives transactions over them, one at a time."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}
        self.ts = 1000

    def tick(self) -> Ts:
        self.ts += 1 << 18
        return Ts(self.ts)

    def begin(self) -> "MemoryTransaction":
        return MemoryTransaction(self)


class MemoryTransaction:
    def __init__(self, memory: Memory) -> None:
        self.start_ts = memory.tick()
        self._memory = memory
        self._writes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._writes[key] if key in self._writes else self._memory.pairs.get(key)

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        keys = sorted(k for k in {*self._memory.pairs, *self._writes} if start <= k and (not end or k < end))
        found = [(key, value) for key in keys if (value := self.get(key)) is not None]
        yield from found[:limit]

    def put(self, key: bytes, value: bytes) -> None:
        self._writes[key] = value

    def delete(self, key: bytes) -> None:
        self._writes[key] = None

    def commit(self) -> Ts:
        for key, value in self._writes.items():
            if value is None:
                self._memory.pairs.pop(key, None)
            else:
                self._memory.pairs[key] = value
        return self._memory.tick()

    def rollback(self) -> None:
        self._writes.clear()
