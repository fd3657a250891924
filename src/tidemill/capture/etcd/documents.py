"""What is in etcd's values: TiCDC's JSON, read and written in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from tidemill.capture.metadata import ChangefeedState
from tidemill.config.replica import document_of, metadata_form
from tidemill.errors import ConfigError, MetadataError
from tidemill.model.cluster import AdminJob, CaptureInfo, ChangefeedInfo, FeedState, RunningError
from tidemill.model.schedule import CaptureId, ChangefeedKey
from tidemill.model.ts import Ts

_INITIAL_COPY = "tidemill-initial-scan"  # TiCDC's readers pass over what they do not know


@dataclass(frozen=True, slots=True)
class Place:
    """Where other captures reach one, and whether it is about to end."""

    address: str
    is_stopping: bool = False


def place_document(place: Place) -> bytes:
    return orjson.dumps({"address": place.address, "is-stopping": place.is_stopping})


def read_place(value: bytes) -> Place:
    """Raises MetadataError."""
    found = _object(value, "the place of a capture")
    return Place(str(found.get("address", "")), bool(found.get("is-stopping")))


def capture_document(info: CaptureInfo) -> bytes:
    started = int(info.start_time.timestamp()) if info.start_time is not None else 0
    return orjson.dumps(
        {
            "id": info.id,
            "address": info.address,
            "version": info.version,
            "git-hash": "",
            "deploy-path": "",
            "start-timestamp": started,
        }
    )


def read_capture(value: bytes, owner: CaptureId | None, cluster: str) -> CaptureInfo:
    """Raises MetadataError."""
    found = _object(value, "a capture")
    capture = CaptureId(str(found.get("id", "")))
    return CaptureInfo(
        capture,
        str(found.get("address", "")),
        capture == owner,
        cluster,
        str(found.get("version", "")),
        datetime.fromtimestamp(int(found.get("start-timestamp", 0)), UTC),
    )


def info_document(info: ChangefeedInfo) -> bytes:
    ours = {_INITIAL_COPY: True} if info.initial_copy else {}
    return orjson.dumps(
        {
            "upstream-id": info.upstream_id,
            "namespace": info.key.namespace,
            "changefeed-id": info.key.id,
            "sink-uri": info.sink_uri,
            "create-time": info.create_time.isoformat(),
            "start-ts": info.start_ts,
            "target-ts": info.target_ts,
            "admin-job-type": info.admin_job.value,
            "sort-engine": "unified",
            "sort-dir": "",
            "config": metadata_form(info.config),
            "state": info.state.value,
            "error": _error_document(info.error),
            "warning": _error_document(info.warning),
            "creator-version": info.creator_version,
            "epoch": info.epoch,
            **ours,
        }
    )


def read_info(value: bytes, key: ChangefeedKey, state: ChangefeedState | None = None) -> ChangefeedInfo:
    """With the checkpoint of ``state``, or at its start. Raises MetadataError."""
    found = _object(value, f"changefeed {key}")
    try:
        start_ts = Ts(int(found["start-ts"]))
        at_ts = state.checkpoint_ts if state is not None else start_ts
        return ChangefeedInfo(
            key,
            int(found.get("upstream-id", 0)),
            str(found["sink-uri"]),
            datetime.fromisoformat(str(found["create-time"])),
            start_ts,
            Ts(int(found.get("target-ts") or 0)),
            document_of(found.get("config") or {}),
            FeedState(found.get("state") or FeedState.NORMAL),
            AdminJob(int(found.get("admin-job-type", 0))),
            str(found.get("creator-version", "")),
            int(found.get("epoch", 0)),
            at_ts,
            at_ts,
            error=_read_error(found.get("error")),
            warning=_read_error(found.get("warning")),
            initial_copy=bool(found.get(_INITIAL_COPY)),
        )
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise MetadataError(
            f"cannot understand changefeed {key} in etcd: {type(error).__name__} {error}. Remove it, and create it "
            "anew."
        ) from error


def status_document(state: ChangefeedState, job: AdminJob | None) -> bytes:
    """TiCDC's view of a state."""
    return orjson.dumps(
        {
            "checkpoint-ts": state.checkpoint_ts,
            "min-table-barrier-ts": max(state.checkpoint_ts, state.ddl_ts),
            "admin-job-type": (job or AdminJob.NONE).value,
        }
    )


def _error_document(error: RunningError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"time": error.time.isoformat(), "addr": error.address, "code": error.code, "message": error.message}


def _read_error(found: Mapping[str, Any] | None) -> RunningError | None:
    if not found:
        return None
    time = datetime.fromisoformat(str(found["time"]))
    return RunningError(time, str(found.get("addr", "")), str(found.get("code", "")), str(found.get("message", "")))


def _object(value: bytes, what: str) -> dict[str, Any]:
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise MetadataError(f"cannot understand {what} in etcd: {error}.") from error
    if not isinstance(found, dict):
        raise MetadataError(f"cannot understand {what} in etcd: it is no JSON object.")
    return found
