"""An asynchronous reader seen as a plain iterator: it runs in a thread of its own, some items ahead.

While one item is decoded by whoever iterates, the next ones are on their way. When the iterator is closed before
its end (a LIMIT is satisfied, a task is killed) the reader is cancelled and its connections are closed.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from tidemill.upstream.tasks import first_of, settle

T = TypeVar("T")
Emit = Callable[[T], Awaitable[None]]

ITEMS_AHEAD = 4


def read_ahead(read: Callable[[Emit[T]], Coroutine[Any, Any, None]], items: int = ITEMS_AHEAD) -> Iterator[T]:
    """What ``read`` emits. It runs in the thread; its ``emit`` waits while ``items`` of them are not yet taken."""
    reader = _Reader(read, items)
    try:
        yield from reader.items()
    finally:
        reader.close()


class _Reader(Generic[T]):
    def __init__(self, read: Callable[[Emit[T]], Coroutine[Any, Any, None]], items: int) -> None:
        self._read = read
        self._found: SimpleQueue[tuple[bool, Any]] = SimpleQueue()  # (True, an item), then (False, error or None)
        self._room = asyncio.Semaphore(items)
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] = self._loop.create_task(self._run())
        self._thread = threading.Thread(target=self._turn, name="read-ahead", daemon=True)
        self._thread.start()

    def items(self) -> Iterator[T]:
        while True:
            is_item, found = self._found.get()
            if not is_item:
                if found is not None:
                    raise found
                return
            self._tell(self._room.release)
            yield found

    def close(self) -> None:
        self._tell(self._task.cancel)
        self._thread.join()

    def _tell(self, what: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the reader has come to its end
            self._loop.call_soon_threadsafe(what)

    def _turn(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(settle())
        finally:
            self._loop.close()

    async def _run(self) -> None:
        try:
            await self._read(self._emit)
        except asyncio.CancelledError:
            self._found.put((False, None))  # nobody is interested any more
        except BaseException as error:
            self._found.put((False, first_of(error)))
        else:
            self._found.put((False, None))

    async def _emit(self, item: T) -> None:
        await self._room.acquire()
        self._found.put((True, item))
