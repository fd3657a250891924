"""The shapes of answers, for the OpenAPI document: ``wire`` makes them, tests hold it to these."""

from typing import Any

from pydantic import BaseModel


class Empty(BaseModel):
    """Done, or asked for."""


class ErrorBody(BaseModel):
    error_msg: str
    error_code: str


class RunningErrorBody(BaseModel):
    time: str | None = None
    addr: str
    code: str
    message: str


class ChangefeedCommon(BaseModel):
    upstream_id: int
    namespace: str
    id: str
    state: str
    checkpoint_tso: int
    checkpoint_time: str
    error: RunningErrorBody | None


class ChangefeedList(BaseModel):
    total: int
    items: list[ChangefeedCommon]


class TaskStatus(BaseModel):
    capture_id: str
    table_ids: list[int]


class HeldBack(BaseModel):
    """What keeps the checkpoint where it is."""

    cause: str
    subject: str
    detail: str
    ts: int
    since: str | None


class ChangefeedDetail(BaseModel):
    """What is empty is left out."""

    upstream_id: int = 0
    namespace: str = ""
    id: str = ""
    sink_uri: str = ""
    create_time: str
    start_ts: int = 0
    target_ts: int = 0
    admin_job_type: int = 0
    config: dict[str, Any] | None = None
    state: str = ""
    error: RunningErrorBody | None = None
    creator_version: str = ""
    resolved_ts: int
    checkpoint_ts: int
    checkpoint_time: str
    task_status: list[TaskStatus] = []
    held_back_by: list[HeldBack] = []


class ChangefeedProgress(BaseModel):
    state: str
    resolved_ts: int
    checkpoint_ts: int
    last_error: RunningErrorBody | None = None
    last_warning: RunningErrorBody | None = None


class SyncedBody(BaseModel):
    synced: bool
    sink_checkpoint_ts: str
    puller_resolved_ts: str
    last_synced_ts: str
    now_ts: str
    info: str


class CaptureBody(BaseModel):
    id: str
    is_owner: bool
    address: str
    cluster_id: str


class CaptureList(BaseModel):
    total: int
    items: list[CaptureBody]


class Remaining(BaseModel):
    current_table_count: int


class ProcessorBody(BaseModel):
    namespace: str
    changefeed_id: str
    capture_id: str


class ProcessorList(BaseModel):
    total: int
    items: list[ProcessorBody]


class TableIds(BaseModel):
    table_ids: list[int]


class MetadataBody(BaseModel):
    key: str
    value: str


MetadataList = list[MetadataBody]


class TableBody(BaseModel):
    database_name: str
    table_name: str
    table_id: int
    is_partition: bool


class VerifiedTables(BaseModel):
    ineligible_tables: list[TableBody] = []
    eligible_tables: list[TableBody] = []


class TsoBody(BaseModel):
    timestamp: int
    logic_time: int


class ServerStatusBody(BaseModel):
    version: str
    git_hash: str
    id: str
    cluster_id: str
    pid: int
    is_owner: bool
    liveness: int
