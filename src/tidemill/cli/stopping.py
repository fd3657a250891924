"""SIGINT and SIGTERM, in every phase of every command.

    main thread       waits: for the command's end, or for a signal
    command's thread  does the work, imports included

A blocking call cannot be interrupted from outside, and a signal's handler must not raise in the middle of somebody
else's code (nor may PySpark's, which is installed by whoever starts Spark on the main thread). So the work has a thread
of its own, which is asked to stop, and given up if it takes too long: everything we write is made to survive that.

    first signal    ``run``, ``consume`` and ``upstream`` stop by themselves, with 0; others are given up, with 1
    2 s later       whatever has not stopped is given up, unless it finishes its batch at hand or is still being
                    imported
    second signal   given up at once, with 1

To give up means: what was registered as ``on_abandon`` is called, then the process ends.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from tidemill.clock import SYSTEM_CLOCK

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.05
_IDLE_SECONDS = 0.2
_SILENT_SECONDS = 1.0  # then whoever pressed Ctrl-C is told that it was heard
_ECHO_SECONDS = 0.3  # one request may come twice: coreutils' timeout signals its child, then its whole process group


class Stop:
    """What the command's thread sees of it."""

    def __init__(self, *, is_starting: bool = False) -> None:
        self._asked = threading.Event()
        self._is_starting = is_starting  # a graceful command whose body has not been entered yet
        self._is_graceful = False
        self._at_hand = 0
        self._on_abandon: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        return self._asked.wait(seconds)

    @contextmanager
    def graceful(self) -> Iterator[None]:
        """The body looks at ``is_set`` and ends by itself, in good order."""
        self._is_graceful, self._is_starting = True, False
        try:
            yield
        finally:
            self._is_graceful = False

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """The body finishes what it has begun, in a time that it bounds itself."""
        self._at_hand += 1
        try:
            yield
        finally:
            self._at_hand -= 1

    @contextmanager
    def on_abandon(self, call: Callable[[], None]) -> Iterator[None]:
        """What is called if the body is given up. It must not wait for anything that the body holds."""
        self._on_abandon.append(call)
        try:
            yield
        finally:
            self._on_abandon.remove(call)


_current = Stop()


def current() -> Stop:
    """Of the command that runs."""
    return _current


def supervise(work: Callable[[], None], *, is_graceful: bool = False) -> None:
    """Do ``work``, the whole of a command, with signals looked after; raises what it raises. Does not return where it
    had to be given up. ``is_graceful``: it will stop by itself, so a signal that comes early waits for that."""
    global _current
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    _current = stop = Stop(is_starting=is_graceful)
    inbox: SimpleQueue[int | None] = SimpleQueue()  # signals; None: the work is done
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)
        finally:
            inbox.put(None)

    former = {number: signal.signal(number, lambda signum, frame: inbox.put(signum)) for number in _SIGNALS}
    try:
        threading.Thread(target=run, name="command", daemon=True).start()
        _watch(stop, inbox)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if stop.is_set():
        # The interpreter would wait for threads that call somebody who does not answer.
        _abandon(stop, _code_of(failure))
    if failure:
        raise failure[0]


def _watch(stop: Stop, inbox: "SimpleQueue[int | None]") -> None:
    """Returns when the work is done."""
    grace, asked_at, is_told = _GRACE_SECONDS, 0.0, False
    while True:
        try:
            # Without end it would not wake up for a signal that the kernel has given to another thread.
            found = inbox.get(timeout=_POLL_SECONDS if stop.is_set() else _IDLE_SECONDS)
        except Empty:
            if stop.is_set() and not (stop._at_hand or stop._is_starting):
                grace -= _POLL_SECONDS
            if grace <= 0:
                _abandon(stop, 0)
            if stop.is_set() and not is_told and SYSTEM_CLOCK.monotonic() >= asked_at + _SILENT_SECONDS:
                is_told = True
                if sys.stderr.isatty():
                    print("Stopping after what is under way. Ctrl-C again: at once.", file=sys.stderr)
            continue
        if found is None:
            return
        if stop.is_set() and SYSTEM_CLOCK.monotonic() < asked_at + _ECHO_SECONDS:
            continue
        if stop.is_set():
            _abandon(stop, 1, "Stopped at once. Nothing is lost; what was under way is done again by the next run.")
        asked_at = SYSTEM_CLOCK.monotonic()
        stop._asked.set()
        if not (stop._is_graceful or stop._is_starting):
            _abandon(stop, 1, f"Stopped by {signal.Signals(found).name} before it was done.")


def _abandon(stop: Stop, code: int, message: str = "") -> None:
    for call in reversed(stop._on_abandon):
        with suppress(Exception):  # the others have to be called, too
            call()
    if message:
        print(message, file=sys.stderr)
    _end(code)


def _code_of(failure: list[BaseException]) -> int:
    if not failure:
        return 0
    if not isinstance(failure[0], SystemExit):
        traceback.print_exception(failure[0])
        return 1
    code: Any = failure[0].code
    return code if isinstance(code, int) else 0 if code is None else 1


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
