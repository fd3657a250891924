"""What the messages of a topic say, in order: rows go to the staging, everything else to the alignment.

    Heard ─► reader of its partition ─┬─ rows ──────────────► staged (a claim check is read from its storage first)
                                      ├─ marks ─────────────► alignment
                                      └─ cannot be read yet ─► kept here, in front of what its partition says next

Whoever writes a table may tell where its rows meet, from before the first of them on. Of rows of other tables it is
not known, so partitions have to go together where such a table has several unique keys.

Rows of some protocols need a schema that comes by a message of its own. Until it is there, nothing behind them counts:
a resolved-ts behind a row that nobody can read yet promises nothing of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tidemill.consumer.alignment import Alignment, DdlNumbers, Position
from tidemill.consumer.claims import Claims
from tidemill.consumer.listening import Heard
from tidemill.consumer.staging import Staging, cut
from tidemill.consumer.tables import Place, Tables, has_several_keys, table_place
from tidemill.errors import CorruptDataError, UpstreamError
from tidemill.flow.encoder.simple import Simple
from tidemill.flow.reader import Events, Reader, Received, RowsSeen
from tidemill.flow.reader.compression import Compression
from tidemill.flow.reader.registry import reader_for
from tidemill.flow.reader.simple import SimpleReader
from tidemill.flow.reader.simple_schema import SchemasSeen
from tidemill.model.event import AdminSeen, DdlSeen, Mark, MeetSeen, ResolvedSeen, Unreadable
from tidemill.model.table import TableInfo
from tidemill.model.ts import MAX_TS, Ts
from tidemill.sinks.kafka import KafkaOptions

_MOST_WAITING_BYTES = 256 << 20


@dataclass(slots=True)
class _Partition:
    reader: Reader
    next_offset: int
    waiting: list[tuple[int, bytes | None, bytes | None]] = field(default_factory=list)  # offset, key and value
    marks: list[tuple[int, Mark]] = field(default_factory=list)  # behind the first of them, with their offsets
    unsettled: list[tuple[int, DdlSeen | AdminSeen | MeetSeen]] = field(default_factory=list)  # not done yet


class Intake:
    """Of one topic. One thread."""

    def __init__(
        self,
        kafka: KafkaOptions,
        tables: Tables,
        alignment: Alignment,
        staging: Staging,
        schemas: Iterable[TableInfo] = (),
        meeting: Iterable[Place] = (),
    ) -> None:
        """``schemas``: those that messages of earlier runs have told of. ``meeting``: tables of whose meetings they
        have told."""
        self._kafka = kafka
        self._tables, self._alignment, self._staging = tables, alignment, staging
        self._schemas = SchemasSeen(schemas)
        self._claims = Claims(kafka.protocol)
        self._numbers = DdlNumbers()
        self._parts: dict[int, _Partition] = {}
        self._meeting = set(meeting)
        self.silent = set[Place]()  # other tables with rows
        self.needs_togetherness = False  # one of those has several unique keys, as its rows tell

    @property
    def partitions(self) -> Collection[int]:
        return self._parts.keys()

    @property
    def schemas(self) -> tuple[TableInfo, ...]:
        """What a later run has to know, since their messages may not come again."""
        return self._schemas.tables

    @property
    def meeting(self) -> frozenset[Place]:
        """Tables of whose meetings messages tell."""
        return frozenset(self._meeting)

    def listen(self, positions: Mapping[int, int]) -> None:
        """To these partitions, each from its offset on. One that is known goes on where it is."""
        for partition, offset in positions.items():
            if partition not in self._parts:
                self._parts[partition] = _Partition(self._reader(), offset)

    def next_offset(self, partition: int) -> int | None:
        """Behind what was read; None for a partition that is not listened to."""
        part = self._parts.get(partition)
        return None if part is None else part.next_offset

    def _reader(self) -> Reader:
        protocol = self._kafka.protocol
        if isinstance(protocol, Simple):
            compression = Compression(str(protocol.large_message_handle_compression.value))
            return SimpleReader(compression, self._schemas)
        return reader_for(protocol)

    def take(self, heard: Heard) -> None:
        part = self._parts.get(heard.partition)
        if part is None:
            return
        received, offsets = _behind(part.waiting, heard)
        events = part.reader.read(received)
        part.waiting = [_message(received, offsets, place) for place in events.waiting]
        self._bound(heard.partition, part)
        self._note_meetings(events)
        rows = self._without_cut(heard.partition, events)
        known = [self._known(each, heard.partition, part.reader, offsets) for each in rows]
        self._staging.add(heard.partition, offsets[0], known, self._alignment.applied_ts(heard.partition))
        part.marks += [(offsets[place], mark) for place, mark in events.marks]
        first_waiting = part.waiting[0][0] if part.waiting else heard.next_offset
        due = [(offset, mark) for offset, mark in part.marks if offset < first_waiting]
        part.marks = part.marks[len(due) :]
        for offset, mark in due:
            self._mark(heard.partition, part, offset, mark)
        part.next_offset = heard.next_offset
        if rows and heard.partition not in self._alignment.partitions and not self._alignment.epoch(heard.partition):
            raise UpstreamError(
                f"partition {heard.partition} of topic {self._kafka.topic!r} has rows, and the topic had "
                f"{len(self._alignment.partitions)} partitions when this consumer began: rows may have changed their "
                "partition unannounced. Copy the tables anew, and start with another --data-dir; or give --partitions "
                "where nobody should read the others."
            )

    def restart_offset(self, partition: int, position: Position) -> int:
        """Where reading begins again: at the first message that has something that was not done."""
        part = self._parts[partition]
        pending = {due.ddl.ts for due in self._alignment.pending}

        def is_left(mark: DdlSeen | AdminSeen | MeetSeen) -> bool:
            match mark:
                case AdminSeen():
                    return mark.epoch > position.epoch
                case MeetSeen():
                    return not self._alignment.is_met(mark.ts)
                case DdlSeen():
                    return mark.ts in pending

        part.unsettled = [(offset, mark) for offset, mark in part.unsettled if is_left(mark)]
        staged = self._staging.oldest_offset(partition, self._alignment.applied_ts(partition))
        first = [part.next_offset, *(offset for offset, _ in (*part.unsettled, *part.marks))]
        first += [offset for offset, _, _ in part.waiting[:1]]
        return min(first if staged is None else [*first, staged])

    def _bound(self, partition: int, part: _Partition) -> None:
        held = sum(len(value or b"") for _, _, value in part.waiting)
        if held > _MOST_WAITING_BYTES:
            raise CorruptDataError(
                f"{len(part.waiting):,} messages of partition {partition} of topic {self._kafka.topic!r}, from offset "
                f"{part.waiting[0][0]} on, need a schema that has not come. Have it sent: "
                "send-bootstrap-interval-in-sec and send-bootstrap-in-msg-count must not be 0 where the topic is "
                "written. Then start again."
            )

    def _note_meetings(self, events: Events) -> None:
        """Which tables have rows that nobody told of meetings before."""
        told: dict[Place, int] = {}
        for place, mark in events.marks:
            if isinstance(mark, MeetSeen):
                told.setdefault(table_place(mark.schema, mark.table), place)
        for seen in events.rows:
            name = table_place(seen.rows.table.schema, seen.rows.table.name)
            if len(seen.rows) and name not in self._meeting and int(seen.message.min()) < told.get(name, MAX_TS):
                self.silent.add(name)
        self._meeting |= told.keys() - self.silent

    def _without_cut(self, partition: int, events: Events) -> Sequence[RowsSeen]:
        """The rows but for those before an Admin event and above its cut: they come again by the new dispatch."""
        rows, epoch = events.rows, self._alignment.epoch(partition)
        for place, mark in events.marks:
            if isinstance(mark, AdminSeen) and mark.epoch > epoch:  # a copy may stand behind rows of the new dispatch
                epoch = mark.epoch
                cut_ts = self._alignment.frontier_ts(partition) if mark.ts is None else mark.ts
                rows = [cut(seen, place, cut_ts) for seen in rows]
                self._staging.drop_above(partition, cut_ts)
        return rows

    def _known(self, seen: RowsSeen, partition: int, reader: Reader, offsets: Sequence[int]) -> RowsSeen:
        if seen.claim and len(seen.rows):
            seen = self._claimed(seen, partition, reader, offsets)
        table = self._tables.known(seen.rows.table)
        if seen.is_partial and len(seen.rows):
            raise CorruptDataError(
                f"the message at offset {offsets[int(seen.message[0])]} of partition {partition} tells only the key of "
                f"a row of {table.full_name}. Raise max-message-bytes where the topic is written, or keep large "
                "messages by claim-check; then write it anew."
            )
        if table_place(table.schema, table.name) in self.silent:
            self.needs_togetherness |= has_several_keys(table)
        return replace(seen, rows=replace(seen.rows, table=table, physical_id=table.id))

    def _claimed(self, seen: RowsSeen, partition: int, reader: Reader, offsets: Sequence[int]) -> RowsSeen:
        """The row itself, from where it lies."""
        key, value = self._claims.read(seen.claim)
        whole = reader.read(Received(pa.array([key], pa.binary()), pa.array([value], pa.binary()))).rows
        is_it = len(whole) == 1 and not whole[0].is_partial and len(whole[0].rows) == len(seen.rows)
        if not is_it or Ts(int(whole[0].rows.commit_ts[0])) != Ts(int(seen.rows.commit_ts[0])):
            raise CorruptDataError(
                f"the file {seen.claim} of the claim check at offset {offsets[int(seen.message[0])]} of partition "
                f"{partition} does not hold that message. Restore it, then start again."
            )
        return replace(whole[0], message=seen.message, order=seen.order)

    def _mark(self, partition: int, part: _Partition, offset: int, mark: Mark) -> None:
        match mark:
            case ResolvedSeen():
                self._alignment.resolve(partition, mark)
            case DdlSeen(query=""):
                pass  # a schema, which the reader has taken
            case DdlSeen():
                self._alignment.learn(partition, mark, self._numbers.of(partition, mark))
                part.unsettled.append((offset, mark))
            case AdminSeen():
                self._alignment.admit(partition, mark)
                part.unsettled.append((offset, mark))
            case MeetSeen():
                self._alignment.meet(mark.ts)
                part.unsettled.append((offset, mark))
            case Unreadable(why):
                raise CorruptDataError(
                    f"the message at offset {offset} of partition {partition} of topic {self._kafka.topic!r} cannot be "
                    f"read: {why}. Check that protocol= is the one it was written with, and who else writes there; "
                    "tidemill check-topic names all such messages."
                )


def _behind(
    waiting: Sequence[tuple[int, bytes | None, bytes | None]], heard: Heard
) -> tuple[Received, tuple[int, ...]]:
    """What was heard, with what waits in front of it."""
    if not waiting:
        return heard.messages, heard.offsets
    keys, values = (pa.array([each[place] for each in waiting], pa.binary()) for place in (1, 2))
    both = Received(pa.concat_arrays([keys, heard.messages.keys]), pa.concat_arrays([values, heard.messages.values]))
    return both, (*(offset for offset, _, _ in waiting), *heard.offsets)


def _message(received: Received, offsets: Sequence[int], place: int) -> tuple[int, bytes | None, bytes | None]:
    return offsets[place], received.keys[place].as_py(), received.values[place].as_py()
