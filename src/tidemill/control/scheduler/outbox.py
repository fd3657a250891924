"""What the owner tells captures with the next tick: alike together, each but once, the newest word about a table."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemill.control.scheduler.captures import Captures, CaptureState
from tidemill.control.scheduler.handovers import Handovers
from tidemill.control.scheduler.replicas import Replicas
from tidemill.model.orders import Handover
from tidemill.model.schedule import (
    AddTable,
    CaptureId,
    ChangefeedKey,
    Dispatch,
    Header,
    Heartbeat,
    Message,
    RemoveTable,
    TableId,
)
from tidemill.model.ts import Ts


@dataclass(slots=True)
class _Letter:
    prepare: dict[TableId, CaptureId | None] = field(default_factory=dict)  # and who writes it now
    run: dict[TableId, None] = field(default_factory=dict)
    stop: dict[TableId, None] = field(default_factory=dict)


class Outbox:
    def __init__(
        self, me: CaptureId, changefeed: ChangefeedKey, owner_revision: int, changefeed_epoch: int, captures: Captures
    ) -> None:
        self._me, self._changefeed = me, changefeed
        self._revision, self._changefeed_epoch = owner_revision, changefeed_epoch
        self._captures = captures
        self._letters: dict[CaptureId, _Letter] = {}
        self._beats = 0

    def _to(self, capture: CaptureId, table: TableId) -> _Letter:
        letter = self._letters.setdefault(capture, _Letter())
        for kind in (letter.prepare, letter.run, letter.stop):
            kind.pop(table, None)
        return letter

    def prepare(self, capture: CaptureId, table: TableId, source: CaptureId | None) -> None:
        self._to(capture, table).prepare[table] = source

    def run(self, capture: CaptureId, table: TableId) -> None:
        self._to(capture, table).run[table] = None

    def stop(self, capture: CaptureId, table: TableId) -> None:
        self._to(capture, table).stop[table] = None

    def forget(self, capture: CaptureId) -> None:
        self._letters.pop(capture, None)

    def dispatches(self, handovers: Handovers, checkpoint_ts: Ts) -> Iterator[Message]:
        """Everything there is. Tables to prepare that come from one source go together."""
        letters, self._letters = self._letters, {}
        for capture, letter in letters.items():
            known = self._captures.get(capture)
            if known is None or not known.is_ready:
                continue  # it is said again, once it is there, to whoever it concerns by then
            groups: dict[CaptureId | None, list[AddTable | RemoveTable]] = {}
            for table, source in letter.prepare.items():
                groups.setdefault(source, []).append(AddTable(table, True, checkpoint_ts))
            others: list[AddTable | RemoveTable] = [RemoveTable(table) for table in letter.stop]
            others += _runs(letter.run, handovers, checkpoint_ts)
            for requests in (*groups.values(), others):
                if requests:
                    yield self._message(capture, Dispatch(tuple(requests)))

    def heartbeats(self, replicas: Replicas, always_asked: int, rare_beats: int) -> Iterator[Message]:
        """To all captures. About tables that are on their way these are asked in any case: a request may be lost. Where
        they are many, not every time."""
        self._beats += 1
        unsettled = replicas.unsettled
        is_asking = len(unsettled) <= always_asked or self._beats % rare_beats == 0
        for capture, known in self._captures:
            if known.state is CaptureState.FENCING:
                continue
            asked = sorted(unsettled.keys() & replicas.held_by(capture).keys()) if is_asking else ()
            is_stopping = known.state is CaptureState.STOPPING
            yield self._message(capture, Heartbeat(tuple(asked), is_stopping, known.seen))

    def _message(self, capture: CaptureId, body: Dispatch | Heartbeat) -> Message:
        known = self._captures[capture]
        known.told += 1
        header = Header(self._revision, self._changefeed_epoch, known.epoch, known.told)
        return Message(header, self._changefeed, self._me, capture, body)


def _runs(tables: dict[TableId, None], handovers: Handovers, checkpoint_ts: Ts) -> Iterator[AddTable]:
    for table in tables:
        whereabouts = handovers.of(table)
        if isinstance(whereabouts, Handover):
            yield AddTable(table, False, checkpoint_ts, handover=whereabouts)
        elif whereabouts is not None:
            yield AddTable(table, False, checkpoint_ts, takeover=whereabouts)
