"""What the API answers, as TiCDC's JSON. Pure: values in, documents out, sink URIs masked.

A ts is a number and its time ``2026-03-01 10:15:00.123``, in UTC. ``held_back_by`` is ours: why a checkpoint stays.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson

from tidemill.config.replica import api_form
from tidemill.config.sink_uri import safe_uri
from tidemill.model.cluster import (
    CaptureInfo,
    ChangefeedInfo,
    FeedState,
    Hindrance,
    MetadataEntry,
    ProcessorInfo,
    RunningError,
    ServerStatus,
    TableEligibility,
    TableName,
)
from tidemill.model.schedule import TableId
from tidemill.model.ts import Ts, logical, physical_ms, to_datetime

Json = dict[str, Any]

# Whose error is shown where only one may be: in other states it is an old one.
_SHOWS_ERROR = (FeedState.WARNING, FeedState.PENDING, FeedState.FAILED)
_SECRET_CONFIG = ("private-key", "password", "secret", "token", "access-key", "storage-uri", "schema-registry")
_MASK = "xxxxx"
_OPEN_API = "v8.5.0"
_LEAST_MAJOR = 7


def listed(items: Iterable[Json]) -> Json:
    found = list(items)
    return {"total": len(found), "items": found}


def time_of(ts: Ts) -> str:
    return f"{to_datetime(ts):%Y-%m-%d %H:%M:%S}.{physical_ms(ts) % 1000:03d}"


def common(info: ChangefeedInfo) -> Json:
    """A line of the list."""
    return {
        "upstream_id": info.upstream_id,
        "namespace": info.key.namespace,
        "id": info.key.id,
        "state": shown_state(info.state),
        "checkpoint_tso": info.checkpoint_ts,
        "checkpoint_time": time_of(info.checkpoint_ts),
        "error": running_error(_shown_error(info)),
    }


def shown_state(state: FeedState) -> str:
    """One that waits to be tried again is one with a warning."""
    return FeedState.WARNING.value if state is FeedState.PENDING else state.value


def _shown_error(info: ChangefeedInfo) -> RunningError | None:
    return (info.error or info.warning) if info.state in _SHOWS_ERROR else None


def running_error(error: RunningError | None, *, has_time: bool = True) -> Json | None:
    if error is None:
        return None
    document = {"addr": error.address, "code": error.code, "message": error.message}
    return {"time": moment(error.time), **document} if has_time else document


def moment(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def detail(info: ChangefeedInfo) -> Json:
    """All that is known of one. As in TiCDC, what is empty is not there."""
    document = {
        "upstream_id": info.upstream_id,
        "namespace": info.key.namespace,
        "id": info.key.id,
        "sink_uri": safe_uri(info.sink_uri),
        "create_time": moment(info.create_time),
        "start_ts": info.start_ts,
        "target_ts": info.target_ts,
        "admin_job_type": info.admin_job.value,
        "config": masked_config(api_form(info.config)),
        "state": info.state.value,
        "error": running_error(info.error or info.warning, has_time=False),
        "creator_version": info.creator_version,
        "task_status": [{"capture_id": task.capture_id, "table_ids": list(task.tables)} for task in info.tasks],
        "held_back_by": [hindrance(each) for each in info.hindrances],
    }
    filled = {name: value for name, value in document.items() if value or name == "config"}
    return {
        **filled,
        "resolved_ts": info.resolved_ts,
        "checkpoint_ts": info.checkpoint_ts,
        "checkpoint_time": time_of(info.checkpoint_ts),
    }


def hindrance(each: Hindrance) -> Json:
    return {
        "cause": each.cause.value,
        "subject": each.subject,
        "detail": each.detail,
        "ts": each.ts,
        "since": None if each.since is None else moment(each.since),
    }


def masked_config(value: Any, name: str = "") -> Any:
    """What may be a secret is not shown."""
    if isinstance(value, dict):
        return {key: masked_config(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [masked_config(each, name) for each in value]
    if isinstance(value, str) and value and any(word in name.replace("_", "-") for word in _SECRET_CONFIG):
        return safe_uri(value) if "://" in value else _MASK
    return value


def progress(info: ChangefeedInfo) -> Json:
    """Errors from before the checkpoint are over."""
    at = to_datetime(info.checkpoint_ts)
    found: Json = {"state": info.state.value, "resolved_ts": info.resolved_ts, "checkpoint_ts": info.checkpoint_ts}
    for name, error in (("last_error", info.error), ("last_warning", info.warning)):
        if error is not None and error.time > at:
            found[name] = running_error(error)
    return found


def synced(info: ChangefeedInfo, now_ts: Ts | None, after_seconds: float, recent_seconds: float) -> Json:
    """Whether all has been written. ``now_ts`` None: the upstream does not answer."""
    puller_lead = (physical_ms(info.puller_resolved_ts) - physical_ms(info.checkpoint_ts)) / 1000
    if now_ts is None:
        is_synced = False
        if puller_lead > recent_seconds:
            text = "The data syncing is not finished, please wait"
        else:
            text = (
                "You should check the pd status first. If pd status is normal, means we don't finish sync data. "
                f"If pd is offline, the data is synced if now - last_synced_ts > {after_seconds:g} s."
            )
    else:
        quiet = (physical_ms(now_ts) - physical_ms(info.last_synced_ts)) / 1000
        lag = (physical_ms(now_ts) - physical_ms(info.checkpoint_ts)) / 1000
        is_synced = quiet > after_seconds and lag < recent_seconds
        if is_synced:
            text = "Data syncing is finished"
        elif quiet > after_seconds and puller_lead < recent_seconds:
            text = (
                "Please check whether PD is online and TiKV Regions are all available. "
                "If PD is offline or some TiKV regions are not available, it means that the data syncing process is "
                "complete."
            )
        else:
            text = "The data syncing is not finished, please wait"
    return {
        "synced": is_synced,
        "sink_checkpoint_ts": time_of(info.checkpoint_ts),
        "puller_resolved_ts": time_of(info.puller_resolved_ts),
        "last_synced_ts": time_of(info.last_synced_ts),
        "now_ts": time_of(now_ts if now_ts is not None else Ts(0)),
        "info": text,
    }


def capture(info: CaptureInfo) -> Json:
    return {"id": info.id, "is_owner": info.is_owner, "address": info.address, "cluster_id": info.cluster_id}


def processor(info: ProcessorInfo) -> Json:
    return {
        "namespace": info.changefeed.namespace,
        "changefeed_id": info.changefeed.id,
        "capture_id": info.capture_id,
    }


def tables_of(tables: Iterable[TableId]) -> Json:
    return {"table_ids": list(tables)}


def open_api_version(version: str) -> str:
    """TiCDC's clients refuse captures whose version is below 6.2, so ours stands behind the one whose API this is."""
    number = version.removeprefix("v")
    major = number.partition(".")[0]
    is_enough = major.isdecimal() and int(major) >= _LEAST_MAJOR
    return version if is_enough else f"{_OPEN_API}-tidemill-{number}"


def status(server: ServerStatus) -> Json:
    return {
        "version": open_api_version(server.version),
        "git_hash": server.git_hash,
        "id": server.id,
        "cluster_id": server.cluster_id,
        "pid": server.pid,
        "is_owner": server.is_owner,
        "liveness": server.liveness.value,
    }


def tso(ts: Ts) -> Json:
    return {"timestamp": physical_ms(ts), "logic_time": logical(ts)}


def eligibility(tables: TableEligibility) -> Json:
    parts = {"ineligible_tables": tables.ineligible, "eligible_tables": tables.eligible}
    return {name: [_table(table) for table in found] for name, found in parts.items() if found}


def _table(table: TableName) -> Json:
    return {
        "database_name": table.schema,
        "table_name": table.table,
        "table_id": table.id,
        "is_partition": table.is_partition,
    }


def metadata(entry: MetadataEntry) -> Json:
    return {"key": entry.key, "value": masked_text(entry.value)}


def masked_text(value: str) -> str:
    """A stored value without its secrets."""
    if "sink-uri" not in value:
        return value
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError:
        return _MASK
    if not isinstance(document, dict):
        return _MASK
    if isinstance(document.get("sink-uri"), str):
        document["sink-uri"] = safe_uri(document["sink-uri"])
    return orjson.dumps(masked_config(document)).decode()
