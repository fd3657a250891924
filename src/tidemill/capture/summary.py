"""How a changefeed stands, put together from its owner and the lanes of its processor."""

from collections.abc import Sequence
from dataclasses import replace

from tidemill.capture.batches import Totals
from tidemill.capture.copying import InitialCopy
from tidemill.capture.lanes import RunningLane
from tidemill.capture.options import LagParts, Status, parts_of_lag
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.processor import SpanProcessor
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.progress import stage
from tidemill.model.ts import Ts, lag_seconds


def status_of(
    owner: ChangefeedOwner,
    processor: SpanProcessor | None,
    copy: InitialCopy | None,
    totals: Totals,
    disk_quota: int,
) -> Status:
    lanes = list(processor.lanes) if processor is not None else []
    pullers, sorters = [running.puller.stats() for running in lanes], [running.sorter.stats() for running in lanes]
    latencies = [seconds for running in lanes for seconds in running.lane.pacer.latencies]
    checkpoint_ts = owner.owned.checkpoint_ts
    return Status(
        stage=_stage(owner, processor, copy),
        checkpoint_ts=checkpoint_ts,
        lag_seconds=lag_seconds(checkpoint_ts, SYSTEM_CLOCK.now()),
        lag=_lag(lanes, checkpoint_ts) if lanes and copy is None else None,
        latency_p50=_quantile(latencies, 0.5),
        latency_p99=_quantile(latencies, 0.99),
        totals=replace(totals, ddls=owner.ddls.count),
        pending_rows=sum(each.rows for each in sorters),
        memory_bytes=sum(each.memory_bytes for each in sorters),
        disk_bytes=sum(each.disk_bytes for each in sorters),
        most_disk_bytes=sum(each.most_disk_bytes for each in sorters),
        disk_quota=disk_quota,
        pulled_rows=sum(each.changes for each in pullers),
        regions=sum(each.regions for each in pullers),
        left_out=owner.left_out.names,
    )


def _lag(lanes: Sequence[RunningLane], checkpoint_ts: Ts) -> LagParts:
    """Of the lane that is furthest behind."""
    progress = min((running.lane.progress for running in lanes), key=lambda each: each.at.lowest_ts)
    in_flight = progress.in_flight
    taken_ts = in_flight.to_ts if in_flight is not None else progress.at.lowest_ts
    return parts_of_lag(SYSTEM_CLOCK.now(), progress.frontier_ts, taken_ts, checkpoint_ts)


def _stage(owner: ChangefeedOwner, processor: SpanProcessor | None, copy: InitialCopy | None) -> str:
    if copy is not None:
        return copy.stage
    if processor is None:
        return "starting"
    lanes = list(processor.lanes)
    main = lanes[0]
    pullers = [running.puller.stats() for running in lanes]
    busy = [seconds for running in lanes if (seconds := running.lane.batches.seconds) is not None]
    troubles = (owner.beside.away, *(running.lane.writing.away for running in lanes))
    away = max(troubles, key=lambda each: each.seconds)
    return stage(
        main.lane.progress,
        batch_seconds=max(busy, default=None),
        trouble=away.reason,
        trouble_seconds=away.seconds,
        lag_seconds=lag_seconds(owner.owned.checkpoint_ts, SYSTEM_CLOCK.now()),
        is_held=any(running.sorter.stats().is_full for running in lanes),
        scanned=sum(each.initialized_regions for each in pullers),
        regions=sum(each.regions for each in pullers),
    )


def _quantile(values: Sequence[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None
