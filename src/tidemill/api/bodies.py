"""What clients may send, field by field. A field that nobody knows is refused, with one that is like it."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tidemill.model.cluster import DEFAULT_NAMESPACE, UpstreamAccess
from tidemill.model.security import Security

_MOST = (1 << 64) - 1
TsField = Annotated[int, Field(ge=0, le=_MOST)]
_Path = Annotated[str, Field(max_length=4096)]


class Body(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


class PdConfig(Body):
    """Another upstream than the captures' own. Without addresses: that one."""

    pd_addrs: Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=64)] | None = None
    ca_path: _Path = ""
    cert_path: _Path = ""
    key_path: _Path = ""
    cert_allowed_cn: list[str] | None = None

    @property
    def access(self) -> UpstreamAccess:
        """Raises UsageError where the paths do not go together."""
        return UpstreamAccess(tuple(self.pd_addrs or ()), Security(self.ca_path, self.cert_path, self.key_path))


class ChangefeedBody(PdConfig):
    """A changefeed to be created, or what is to be another of one: then what is empty stays as it is."""

    namespace: str = DEFAULT_NAMESPACE
    changefeed_id: str = Field("", description="Empty: a random one.")
    start_ts: TsField = Field(0, description="0: now.")
    target_ts: TsField = Field(0, description="0: it never ends.")
    sink_uri: Annotated[str, Field(max_length=65_536)] = ""
    replica_config: dict[str, Any] | None = Field(
        None, description="The keys of a changefeed's file, with _ or - in their names."
    )
    initial_scan: bool = Field(False, description="Ours: copy the rows as of start_ts first.")
    state: dict[str, Any] | None = Field(
        None, description="Ours: the changefeed.json of a folder of tidemill run, which this one continues."
    )


class ResumeBody(PdConfig):
    overwrite_checkpoint_ts: TsField = Field(0, description="0: continue at the checkpoint.")


class UpstreamBody(PdConfig):
    id: TsField = 0


class VerifyTableBody(PdConfig):
    replica_config: dict[str, Any] | None = None
    start_ts: TsField = 0
    sink_uri: Annotated[str, Field(max_length=65_536)] = ""


class ResolveLockBody(PdConfig):
    region_id: TsField = 0
    ts: TsField = 0


class LogBody(Body):
    log_level: str = Field("info", description="debug, info, warn or error; dpanic, panic and fatal count as error.")


class MoveTableBody(Body):
    capture_id: str
    table_id: Annotated[int, Field(ge=0, le=(1 << 63) - 1)]


class DrainBody(Body):
    capture_id: str


class V1ChangefeedBody(Body):
    """As the first version of the API has it: flat."""

    changefeed_id: str = ""
    start_ts: TsField = 0
    target_ts: TsField = 0
    sink_uri: Annotated[str, Field(max_length=65_536)] = ""
    timezone: str = ""
    force_replicate: bool = False
    ignore_ineligible_table: bool = False
    filter_rules: list[str] | None = None
    ignore_txn_start_ts: list[TsField] | None = None
    mounter_worker_num: int | None = None
    sink_config: dict[str, Any] | None = None

    @property
    def replica_config(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "force_replicate": self.force_replicate,
            "ignore_ineligible_table": self.ignore_ineligible_table,
            "filter": {"rules": self.filter_rules, "ignore_txn_start_ts": self.ignore_txn_start_ts},
            "sink": self.sink_config,
        }
        if self.mounter_worker_num is not None:
            found["mounter"] = {"worker_num": self.mounter_worker_num}
        return found
