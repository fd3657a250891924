"""control.tick.*: what a tick costs the owner of a changefeed with so many tables on three simulated captures.

    .idle_N    CPU microseconds per tick when nothing changes, heartbeats and their answers included;
               floor: the same with 1,000 tables
    .settle_N  CPU microseconds per table until all tables of a new changefeed have their captures, answers included

Agents are simulated: they do at once what they are told, and answer by the protocol, with what has changed.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tidemill.control.scheduler.coordinator import Coordinator, Situation
from tidemill.control.scheduler.handovers import HandOver, Whereabouts
from tidemill.control.scheduler.policies import Settings
from tidemill.model.orders import Assignment, Handover
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import (
    REST,
    AddTable,
    CaptureId,
    ChangefeedKey,
    Dispatch,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TableId,
    TableState,
    TableStatus,
    Takeover,
)
from tidemill.model.ts import Ts

Result = dict[str, Any]

_SIZES = (1_000, 10_000, 100_000)
_FEED = ChangefeedKey("default", "bench")
_OWNER = CaptureId("owner")
_IDLE_TICKS = 400


@dataclass(slots=True)
class _Capture:
    number: int = 0
    changed: dict[TableId, TableStatus] = field(default_factory=dict)  # since the last answer


class _Cluster:
    def __init__(self, tables: int) -> None:
        self.coordinator = Coordinator(_OWNER, _FEED, 1, 1, Settings(add_table_batch_size=100_000))
        self._captures = {CaptureId(f"c{n}"): _Capture() for n in range(3)}
        self._tables = tuple(TableId(n) for n in range(1, tables + 1))
        self._named: set[int] = set()
        self._seconds = 0.0

    @property
    def is_settled(self) -> bool:
        """Every table has a writer, and nothing is to be moved for balance."""
        replicas, requests = self.coordinator.replicas, self.coordinator.requests
        has_checked = requests.next_check_seconds > self._seconds
        return replicas.is_replicating(REST) and not replicas.unsettled and has_checked

    def tick(self) -> None:
        self._seconds += 0.05
        situation = Situation(frozenset(self._captures), self._tables, Ts(10))
        for action in self.coordinator.tick(self._seconds, situation):
            if isinstance(action, Message):
                self._hear(action)
            elif isinstance(action, HandOver):
                self.coordinator.handed_over(action, dict(self._found(action.tables)))

    def _found(self, tables: Iterable[TableId]) -> Iterable[tuple[TableId, Whereabouts]]:
        for table in tables:
            if table == REST:
                yield table, Takeover("", Assignment(frozenset(self._named), is_rest=True), Checkpoints(Ts(10)))
            else:
                self._named.add(table)
                yield table, Handover(frozenset({int(table)}), {int(table): Ts(10)})

    def _hear(self, message: Message) -> None:
        capture = self._captures[message.receiver]
        match message.body:
            case Dispatch(requests):
                for request in requests:
                    capture.changed[request.table] = TableStatus(request.table, _then(request))
            case Heartbeat(seen=seen):
                statuses, capture.changed = tuple(capture.changed.values()), {}
                capture.number += 1
                header = Header(1, 1, "epoch", capture.number)
                body = HeartbeatResponse(statuses, since=seen)
                self.coordinator.receive(Message(header, _FEED, message.receiver, _OWNER, body))


def _then(request: object) -> TableState:
    if isinstance(request, AddTable):
        return TableState.PREPARED if request.is_secondary else TableState.REPLICATING
    return TableState.STOPPED


def bench_tick() -> list[Result]:
    idle, settled = {}, {}
    for tables in _SIZES:
        cluster, began = _Cluster(tables), time.process_time()
        while not cluster.is_settled:
            cluster.tick()
        settled[tables] = (time.process_time() - began) / tables * 1e6
        began = time.process_time()
        for _ in range(_IDLE_TICKS):
            cluster.tick()
        idle[tables] = (time.process_time() - began) / _IDLE_TICKS * 1e6
    return [
        *(_result(f"control.tick.idle_{n}", idle[n], "us", idle[_SIZES[0]]) for n in _SIZES),
        *(_result(f"control.tick.settle_{n}", settled[n], "us/table", settled[_SIZES[0]]) for n in _SIZES),
    ]


def _result(name: str, value: float, unit: str, floor: float) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor}
