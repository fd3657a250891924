"""Who is late, as far as a process can tell.

Kafka offers nothing that a late producer would fail on, short of transactions, which readers would have to take part
in. What is late adds exact copies and no harm (``docs/design/flow.md``). It is refused all the same where that can be
seen: in the process of the sink itself, and in a worker that has met a newer generation of the same writer. A writer
that begins in another process than its owner's cannot be asked whether that one's term is over.
"""

import secrets
import threading
from dataclasses import dataclass
from typing import Final

from tidemill.errors import SupersededError

Holder = tuple[str, str, str]  # changefeed, cluster, writer
OWNER: Final = ""  # where a writer's name would stand
_PROCESS: Final = secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Generation:
    """Travels with targets. Numbers of one process ascend."""

    holder: Holder
    process: str
    number: int

    @property
    def term(self) -> str:
        """As an owner's: see ``SinkWriter.recover``."""
        return f"{self.process}/{self.number}"


class _Newest:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[Holder, str], int] = {}  # by holder and process
        self._shut_out: dict[Holder, str] = {}  # writers, and the term in which they were fenced
        self._last = 0

    def begin(self, holder: Holder, term: str = "") -> Generation:
        """``term``: of an owner, where a writer begins for the first time. Raises SupersededError where it is over, or
        the writer has been fenced in it, as far as this process knows."""
        with self._lock:
            process, _, number = term.partition("/")
            if process == _PROCESS:
                newest = self._seen.get(((*holder[:2], OWNER), _PROCESS), 0)
                if newest > int(number) or self._shut_out.get(holder) == term:
                    raise _superseded(holder)
            self._last += 1
            self._seen[holder, _PROCESS] = self._last
            return Generation(holder, _PROCESS, self._last)

    def end(self, changefeed: str, cluster: str, writers: frozenset[str] | None, term: str) -> None:
        """Of these writers, None: of all, every generation. Those that are named begin none in this term any more."""
        with self._lock:
            ours = [holder for holder in self._shut_out if holder[:2] == (changefeed, cluster)]
            for holder in ours:
                if self._shut_out[holder] != term:
                    del self._shut_out[holder]
            for writer in writers or ():
                self._shut_out[changefeed, cluster, writer] = term
            for holder, process in self._seen:
                is_theirs = holder[:2] == (changefeed, cluster) and holder[2] != OWNER
                if is_theirs and (writers is None or holder[2] in writers):
                    self._last += 1
                    self._seen[holder, process] = self._last

    def meet(self, generation: Generation) -> None:
        """Raises SupersededError where a newer one has been met."""
        with self._lock:
            place = generation.holder, generation.process
            newest = self._seen.setdefault(place, generation.number)
            if generation.number < newest:
                raise _superseded(generation.holder)
            self._seen[place] = generation.number


def _superseded(holder: Holder) -> SupersededError:
    return SupersededError(
        f"a newer generation of writer {holder[2] or 'owner'!r} is at work, or it was ended; this one ends. "
        "What it has sent are copies, which readers skip. Nothing is lost."
    )


NEWEST: Final = _Newest()
