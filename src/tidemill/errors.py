"""Everything that can go wrong, as one tree. What the system does follows from the type.

    TidemillError
    ├── UsageError                 the user asked for something impossible; exit code 2
    │   ├── SinkUriError           a sink URI with a wrong scheme, parameter or value
    │   ├── ConfigError            a changefeed's file with a wrong key, value or place
    │   ├── FilterError            a filter that cannot be read, or does not fit the tables it is for
    │   ├── UnsupportedCollationError  a key on text in a collation whose weights we do not have
    │   └── StartTsCollectedError  start-ts lies below what the upstream still keeps
    ├── UpstreamError              PD or TiKV answered with an error, or not at all
    │   ├── UpstreamUnavailableError   (retryable) nobody answers
    │   ├── RegionUnavailableError     (retryable) a region moved, split or has no leader
    │   ├── TransactionConflictError   (retryable) somebody else wrote first; begin a new transaction
    │   ├── TransactionEndedError      (retryable) somebody else has rolled the transaction back: it took too long
    │   ├── UndeterminedError          the answer to a write was lost: it may or may not have been carried out
    │   ├── IncompatibleUpstreamError  wrong cluster, version or API; will not heal by waiting
    │   ├── UntrustedUpstreamError     TLS: one of the two does not trust the other's certificate
    │   └── ProtocolViolationError     the upstream broke its own protocol; the stream is dropped
    ├── SchemaError                a schema or DDL job that we cannot follow
    ├── CorruptDataError           bytes that are not what they should be
    │   ├── HistoryCorruptError    a file given to ``--load``
    │   ├── SegmentCorruptError    a segment of the sorter
    │   └── RowUndecodableError    a row that its schema does not explain
    ├── UnencodableError           a value that its column's type cannot hold
    ├── SinkError                  the downstream refused or could not be reached
    │   ├── SinkUnavailableError   (retryable) it does not answer, is full, or is away for another reason that passes
    │   ├── RowTooLargeError       a row whose message no topic takes
    │   └── SupersededError        a newer generation writes there; what an older one still does has no effect
    ├── DataDirError               the changefeed's own folder: rights, space, another process
    ├── MetadataError              etcd, where a cluster keeps what it remembers, refused or holds what we cannot read
    │   ├── MetadataUnavailableError   (retryable) it does not answer
    │   └── SessionLostError           (retryable) a capture's lease has ended; it begins anew, under another id
    ├── PeerMessageError           bytes from another capture that are no message
    ├── StoppedError               somebody asked us to stop before it was done
    ├── OperationError             a cluster of captures refuses what it is asked
    │   ├── ChangefeedNotFoundError, ChangefeedExistsError, CaptureNotFoundError
    │   ├── UpdateRefusedError         the changefeed runs, or nothing would change
    │   ├── TargetTsError              a target-ts that is not above the start-ts
    │   ├── TableIneligibleError       tables without a key, and nobody said that they may be left out
    │   ├── SameClusterError           it would write into the cluster that it reads
    │   ├── ImportRunningError         rows are being imported into the upstream past its transactions
    │   ├── SchedulerRefusedError      tables cannot be moved so
    │   ├── UnauthorizedError          nobody whom we know, or who may do this
    │   ├── NotReadyError              (retryable) the capture is only starting
    │   ├── OwnerNotFoundError         (retryable) nobody is elected
    │   ├── ForwardError               (retryable) the owner did not answer
    │   ├── UnhealthyError             (retryable) the owner is not at work, or captures' versions do not go together
    │   └── DeletionUnfinishedError    (retryable) the changefeed is still going away
    ├── EngineError                (retryable) Spark failed on its own account: a worker died, an executor was lost
    └── InvariantError             a bug of ours; never caught to go on

A message says what we were doing, to what, what we found, and what to do next. It carries no
password, no row value and no full sink URI. ``cdc_code`` is what TiCDC calls it, for those who know its codes.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import ClassVar


class TidemillError(Exception):
    code: ClassVar[str] = "internal"
    cdc_code: ClassVar[str] = "CDC:ErrInternalServerError"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class UsageError(TidemillError):
    code = "usage"
    cdc_code = "CDC:ErrAPIInvalidParam"
    exit_code = 2


class SinkUriError(UsageError):
    code = "sink-uri"
    cdc_code = "CDC:ErrSinkURIInvalid"


class ConfigError(UsageError):
    code = "config"


class FilterError(UsageError):
    code = "filter"
    cdc_code = "CDC:ErrFilterRuleInvalid"


class StartTsCollectedError(UsageError):
    code = "start-ts-collected"
    cdc_code = "CDC:ErrStartTsBeforeGC"
    exit_code = 1


class UnsupportedCollationError(UsageError):
    """Names the collation; the text itself can be stored, but not be part of a key."""

    code = "unsupported-collation"

    def __init__(self, collation: str) -> None:
        self.collation = collation
        super().__init__(
            f"cannot make keys in collation {collation!r}: its weights are not part of the embedded upstream. "
            "Choose utf8mb4_bin, utf8mb4_general_ci or binary for columns that are part of a key."
        )

    def __reduce__(self) -> tuple[type["UnsupportedCollationError"], tuple[str]]:
        return type(self), (self.collation,)


class UpstreamError(TidemillError):
    code = "upstream"
    cdc_code = "CDC:ErrPDEtcdAPIError"


class UpstreamUnavailableError(UpstreamError):
    code = "upstream-unavailable"
    retryable = True


class RegionUnavailableError(UpstreamError):
    code = "region-unavailable"
    retryable = True


class TransactionConflictError(UpstreamError):
    code = "transaction-conflict"
    retryable = True

    def __init__(self, key: bytes, start_ts: int, conflict_ts: int) -> None:
        self.key, self.start_ts, self.conflict_ts = key, start_ts, conflict_ts
        super().__init__(
            f"the transaction that started at {start_ts} cannot write key {key.hex()}: another one committed it at "
            f"{conflict_ts}. Nothing was written; read again and begin a new transaction."
        )

    def __reduce__(self) -> tuple[type["TransactionConflictError"], tuple[bytes, int, int]]:
        return type(self), (self.key, self.start_ts, self.conflict_ts)


class TransactionEndedError(UpstreamError):
    code = "transaction-ended"
    retryable = True


class UndeterminedError(UpstreamError):
    code = "undetermined"


class IncompatibleUpstreamError(UpstreamError):
    code = "upstream-incompatible"
    cdc_code = "CDC:ErrVersionIncompatible"


class UntrustedUpstreamError(UpstreamError):
    code = "untrusted-upstream"


class ProtocolViolationError(UpstreamError):
    code = "protocol-violation"


class SchemaError(TidemillError):
    code = "schema"
    cdc_code = "CDC:ErrSchemaStorageUnresolved"


class CorruptDataError(TidemillError):
    code = "corrupt-data"


class HistoryCorruptError(CorruptDataError):
    code = "history-corrupt"


class SegmentCorruptError(CorruptDataError):
    code = "segment-corrupt"


class RowUndecodableError(CorruptDataError):
    """A value that its schema does not explain. Names the place, never the value."""

    code = "row-undecodable"
    cdc_code = "CDC:ErrDecodeRowToDatum"

    def __init__(self, table: str, key: bytes, column: str | None, reason: str, commit_ts: int | None = None) -> None:
        self.table = table
        self.key = key
        self.column = column
        self.reason = reason
        self.commit_ts = commit_ts
        where = f"column {column!r} of " if column else ""
        when = f", commit-ts {commit_ts}" if commit_ts is not None else ""
        super().__init__(
            f"cannot decode {where}table {table}, key {key.hex()}{when}: {reason}. "
            "Nothing was skipped; the changefeed stops before this row. "
            "Check the row upstream (its checksum, or 'admin check table'), then start again."
        )

    def __reduce__(self) -> tuple[type["RowUndecodableError"], tuple[str, bytes, str | None, str, int | None]]:
        return type(self), (self.table, self.key, self.column, self.reason, self.commit_ts)


class UnencodableError(TidemillError):
    """A value that cannot be written as its column says. Names the column, never the value."""

    code = "unencodable"


class SinkError(TidemillError):
    code = "sink"


class SinkUnavailableError(SinkError):
    """The downstream is away for a reason that passes: the changefeed waits, and continues by itself."""

    code = "sink-unavailable"
    retryable = True


class RowTooLargeError(SinkError):
    """Rows whose messages no topic takes: ``messages`` has key and value of each, by the row's place in its batch."""

    def __init__(self, message: str, messages: Mapping[int, tuple[bytes | None, bytes]]) -> None:
        super().__init__(message)
        self.messages = messages


class SupersededError(SinkError):
    """Raised to whoever is late: a task of a batch that was taken back, or a process that another one replaced."""

    code = "superseded"
    cdc_code = "CDC:ErrNotOwner"


class DataDirError(TidemillError):
    code = "data-dir"


class MetadataError(TidemillError):
    code = "metadata"


class MetadataUnavailableError(MetadataError):
    code = "metadata-unavailable"
    retryable = True


class SessionLostError(MetadataError):
    code = "session-lost"
    retryable = True


class PeerMessageError(TidemillError):
    code = "peer-message"


class StoppedError(TidemillError):
    code = "stopped"


class OperationError(TidemillError):
    """What a cluster of captures is asked for and does not do."""

    code = "operation"
    cdc_code = "CDC:ErrAPIInvalidParam"


class ChangefeedNotFoundError(OperationError):
    code = "changefeed-not-found"
    cdc_code = "CDC:ErrChangeFeedNotExists"


class ChangefeedExistsError(OperationError):
    code = "changefeed-exists"
    cdc_code = "CDC:ErrChangeFeedAlreadyExists"


class CaptureNotFoundError(OperationError):
    code = "capture-not-found"
    cdc_code = "CDC:ErrCaptureNotExist"


class UpdateRefusedError(OperationError):
    code = "update-refused"
    cdc_code = "CDC:ErrChangefeedUpdateRefused"


class TargetTsError(OperationError):
    code = "target-ts"
    cdc_code = "CDC:ErrTargetTsBeforeStartTs"


class TableIneligibleError(OperationError):
    code = "table-ineligible"
    cdc_code = "CDC:ErrTableIneligible"


class SameClusterError(OperationError):
    code = "same-cluster"
    cdc_code = "CDC:ErrSameUpstreamDownstream"


class ImportRunningError(OperationError):
    code = "import-running"
    cdc_code = "CDC:ErrUpstreamHasRunningImport"


class SchedulerRefusedError(OperationError):
    code = "scheduler-refused"
    cdc_code = "CDC:ErrSchedulerRequestFailed"


class UnauthorizedError(OperationError):
    code = "unauthorized"
    cdc_code = "CDC:ErrUnauthorized"


class NotReadyError(OperationError):
    code = "not-ready"
    cdc_code = "CDC:ErrServerIsNotReady"
    retryable = True


class OwnerNotFoundError(OperationError):
    code = "owner-not-found"
    cdc_code = "CDC:ErrOwnerNotFound"
    retryable = True


class ForwardError(OperationError):
    code = "forward"
    cdc_code = "CDC:ErrRequestForwardErr"
    retryable = True


class UnhealthyError(OperationError):
    code = "unhealthy"
    cdc_code = "CDC:ErrClusterIsUnhealthy"
    retryable = True


class DeletionUnfinishedError(OperationError):
    code = "deletion-unfinished"
    cdc_code = "CDC:ErrChangeFeedDeletionUnfinished"
    retryable = True


class EngineError(TidemillError):
    code = "engine"
    retryable = True


class InvariantError(TidemillError):
    code = "invariant"


def suggestion(text: str, known: Iterable[str]) -> str:
    """``" Did you mean 'protocol'?"``, or nothing where nothing known is like it."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(text.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
