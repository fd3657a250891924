"""Who is late, as far as a process can tell.

Kafka offers nothing that a late producer would fail on, short of transactions, which readers would have to take part
in. What is late adds exact copies and no harm (``docs/design/flow.md``). It is refused all the same where that can be
seen: in the process of the sink itself, and in a worker that has met a newer generation of the same writer.
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


class _Newest:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[Holder, str], int] = {}  # by holder and process
        self._last = 0

    def begin(self, holder: Holder) -> Generation:
        with self._lock:
            self._last += 1
            self._seen[holder, _PROCESS] = self._last
            return Generation(holder, _PROCESS, self._last)

    def end(self, changefeed: str, cluster: str, writers: frozenset[str] | None) -> None:
        """Of these writers, None: of all, every generation."""
        with self._lock:
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
                raise SupersededError(
                    f"a newer generation of writer {generation.holder[2] or 'owner'!r} is at work; this one ends. "
                    "What it has sent are copies, which readers skip. Nothing is lost."
                )
            self._seen[place] = generation.number


NEWEST: Final = _Newest()
