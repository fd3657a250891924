"""What a reader is: the way back from a protocol's messages to rows and to what else was said.

    Received (keys and values of messages, one partition, in order) ──► reader ──► Events

A reader is to its encoder what a mirror is: what was encoded comes back as the same rows, as far as the protocol tells.
It belongs to one partition and remembers what later messages need of earlier ones, such as the schemas of tables. It is
columnar as the encoder is: nothing runs per row in an interpreter loop. Bytes come from outside, so nothing in them is
trusted: what makes no sense is ``Unreadable``, by itself, and what stands around it is read all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.model.event import Mark
from tidemill.model.row import RowBatch


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of one partition, in order. A key or a value that is not there is null."""

    keys: pa.Array  # binary
    values: pa.Array  # binary, of the same length

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class RowsSeen:
    """Rows of one table under one schema, in the order of their messages. ``message[i]`` is the place, in what was
    received, of the message that row ``i`` came in.

    The table is what the messages tell of it; what they leave out (ids, lengths, indexes) is empty or 0. Where the
    protocol says nothing of a start-ts, it is 0. ``is_partial``: rows hold the columns of the handle key only.
    ``order`` puts rows of one message in order that are of different tables or schemas; None: it is that of
    ``message``."""

    rows: RowBatch
    message: npt.NDArray[np.int64]
    is_partial: bool = False
    claim: str = ""  # where the whole message lies, of a claim check
    order: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """All that some messages said. ``marks`` are in order, each with the place of its message.

    ``waiting`` are the places of messages that nobody can read yet: the schema of their rows has not come. Whoever
    receives keeps them, with their offsets, and hands them in again in front of the messages that come next."""

    rows: Sequence[RowsSeen]
    marks: Sequence[tuple[int, Mark]]
    waiting: Sequence[int] = ()


class Reader(Protocol):
    def read(self, received: Received) -> Events:
        """What they say. Never raises for what is in them."""


class ReadableProtocol(Protocol):
    """A protocol that can be read back: its encoder's options are known to the reader."""

    name: ClassVar[str]

    def reader(self) -> Reader: ...
