"""The keys of a changefeed's file: how its value is read, its default and its meaning; and those that we refuse.

Options of a message protocol are not here: each protocol has its own (``flow.encoder``), and whoever reads a file
passes them along.

The names are TiCDC's, but for ``mounter.on-undecodable`` and ``disk-quota``, which are ours. The reference page is
made of these tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.config.values import seconds_of
from tidemill.model.keys import MOST_SPANS

STORAGE = ("file", "s3", "gcs", "gs", "azblob", "azure", "noop")
DATABASE = ("mysql", "mysql+ssl", "tidb", "tidb+ssl")
KAFKA = ("kafka", "kafka+ssl")
QUEUE = ("kafka", "kafka+ssl", "pulsar", "pulsar+ssl", "pulsar+http", "pulsar+https")
MESSAGES = (*STORAGE, *QUEUE, "blackhole")  # sinks of messages, in files or queues

_LARGEST_TS = (1 << 64) - 1

# Readers of values. Each raises ValueError with what it wants.


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text in quotes")


def number(lowest: int = 0) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError(f"a whole number, {lowest} or more")
        return value

    return read


def span_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_SPANS:
        raise ValueError(f"a whole number from 1 to {MOST_SPANS}")
    return value


def prefixes(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else texts(value)


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a whole number")
    return value


def texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError("a list of texts, such as ['shop.*']")


def some_texts(value: Any) -> tuple[str, ...]:
    found = texts(value)
    if not found:
        raise ValueError("a list of at least one text, such as ['shop.*']")
    return found


def timestamps(value: Any) -> frozenset[int]:
    is_list = isinstance(value, list)
    if is_list and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= _LARGEST_TS for i in value):
        return frozenset(value)
    raise ValueError("a list of timestamps, such as [445644800000000005]")


def seconds(value: Any) -> float:
    if not isinstance(value, str):
        raise ValueError("a duration in quotes, such as '30s', '10m' or '1h30m'")
    return seconds_of(value)


def seconds_from(lowest: float, shown: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        found = seconds(value)
        if found < lowest:
            raise ValueError(f"a duration of {shown} or more")
        return found

    return read


def duration_text(value: Any) -> str:
    seconds(value)
    return str(value)


def word(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if isinstance(value, str) and value.lower() in words:
            return value.lower()
        raise ValueError(", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}")

    return read


def only(wanted: Any, why: str) -> Callable[[Any], Any]:
    """A key of which we do just one thing; the value that asks for it is welcome."""

    def read(value: Any) -> Any:
        if value != wanted or type(value) is not type(wanted):
            shown = str(wanted).lower() if isinstance(wanted, bool) else repr(wanted)
            raise ValueError(f"{shown}: {why}")
        return wanted

    return read


@dataclass(frozen=True, slots=True)
class Key:
    """``default`` and ``help`` are for people. ``parameter``: the sink URI's name for it, if it is one there."""

    read: Callable[[Any], Any]
    default: str
    help: str
    parameter: str = ""
    schemes: tuple[str, ...] = ()


def _setting(read: Callable[[Any], Any], default: str, help: str, parameter: str, schemes: tuple[str, ...] = ()) -> Key:
    return Key(read, default, help, parameter, schemes)


_SAME = "See the sink URI's parameter of this name."
_EXPRESSION = "Leave out a row for which this SQL expression is 1"

# Dotted paths; ``[]`` stands for any entry of a list of tables.
KEYS: Mapping[str, Key] = {
    "case-sensitive": Key(boolean, "`false`", "Whether names in rules are compared with their case."),
    "force-replicate": Key(
        boolean,
        "`false`",
        "Capture tables without a primary or NOT NULL unique key too. `true` is refused: a row could come twice.",
    ),
    "ignore-ineligible-table": Key(
        boolean,
        "`true`",
        "`true`: start although some tables have no such key, and leave them out. `false`, TiCDC's default: refuse to "
        "start. A table created later without a key is left out either way. All are named in the log and the summary.",
    ),
    "check-gc-safe-point": Key(
        only(True, "a changefeed below the safepoint would lose changes"), "`true`", "Only `true` is possible."
    ),
    "bdr-mode": Key(only(False, "changes go one way"), "`false`", "Only `false` is possible."),
    "enable-sync-point": Key(boolean, "`false`", "Record pairs of timestamps at which both sides are equal."),
    "sync-point-interval": Key(seconds_from(30, "30s"), "`10m`", "How far apart sync points are; at least 30s."),
    "sync-point-retention": Key(seconds_from(3600, "1h"), "`24h`", "How long they are kept downstream; at least 1h."),
    "memory-quota": Key(
        number(16 << 20),
        "`268435456`",
        "Bytes of changes that may wait in memory before they are written to the data folder: counted before "
        "they are taken in, and exceeded only by a single row that is larger. The process itself, what is "
        "being received (8 MiB per store) and a batch's tasks come on top.",
    ),
    "disk-quota": Key(
        number(1),
        "half of what is free at the start",
        "Bytes of changes that may wait in memory and in the data folder together, counted before they are "
        "taken in. When they are used up nothing more is read from the upstream until the sink has taken "
        "some. Exceeded only by what a batch cannot end without: changes above the resolved-ts, as during an "
        "incremental scan, when the sink has taken all below it. Not counted: open transactions of the "
        "upstream, and rows of table partitions that a DDL is just making.",
    ),
    "security.ca-path": Key(text, "", "File with the certificate of the upstream's authority: PD and TiKV over TLS."),
    "security.cert-path": Key(text, "", "File with our own certificate, where the upstream wants one."),
    "security.key-path": Key(text, "", "File with the key of our own certificate."),
    "mounter.on-undecodable": Key(
        word("stop", "quarantine"),
        "`stop`",
        "What to do with a row that its schema does not explain: stop before it, or put it aside and continue.",
    ),
    "filter.rules": Key(texts, "`['*.*']`", "Which tables are captured. The last rule that matches decides."),
    "filter.ignore-txn-start-ts": Key(timestamps, "`[]`", "Leave out the transactions with these start-ts."),
    "filter.event-filters[].matcher": Key(some_texts, "required", "The tables that the entry is for."),
    "filter.event-filters[].ignore-event": Key(texts, "`[]`", "Kinds of changes to leave out; the words are below."),
    "filter.event-filters[].ignore-sql": Key(
        texts, "`[]`", "Leave out a DDL in whose text one of these regular expressions is found; case does not matter."
    ),
    "filter.event-filters[].ignore-insert-value-expr": Key(text, "", f"{_EXPRESSION}: inserts."),
    "filter.event-filters[].ignore-update-old-value-expr": Key(text, "", f"{_EXPRESSION}: updates, by the old row."),
    "filter.event-filters[].ignore-update-new-value-expr": Key(text, "", f"{_EXPRESSION}: updates, by the new row."),
    "filter.event-filters[].ignore-delete-value-expr": Key(text, "", f"{_EXPRESSION}: deletes."),
    "filter.key-prefix": Key(prefixes, "", "Only keys that begin so, in the format `escaped`; a list of some: any."),
    "filter.key-pattern": Key(
        text, "", "Only keys in which this regular expression of RE2 is found. Bytes are Latin-1."
    ),
    "filter.value-pattern": Key(text, "", "Only puts in whose value it is found. Deletes always pass."),
    "keys.start-key": Key(text, "", "Keys are captured in place of tables: from this one on."),
    "keys.end-key": Key(text, "", "And below this one; empty: to the last of the keyspace."),
    "keys.ranges[].start-key": Key(text, "", "The same of each of several ranges."),
    "keys.ranges[].end-key": Key(text, "", "The same of each of several ranges."),
    "keys.format": Key(word("hex", "raw", "escaped"), "`hex`", "How keys are written in this section."),
    "keys.keyspace": Key(text, "`DEFAULT`", "The keyspace, by its name."),
    "keys.api": Key(
        word("raw", "txn"), "`raw`", "`raw`: RawKV. `txn`: keys that are written by transactions, without SQL."
    ),
    "keys.safe-interval": Key(seconds_from(0, "0s"), "`3s`", "See `--safe-interval` of `tidemill run`."),
    "keys.span-count": Key(span_count, "`2`", "Into how many parts the ranges are cut, along regions; at most 64."),
    "integrity.integrity-check-level": Key(
        word("none", "correctness"), "`none`", "`correctness`: compare rows with the checksums that TiDB put into them."
    ),
    "integrity.corruption-handle-level": Key(
        word("warn", "error"), "`warn`", "Must be `error` where checksums are compared: a bad row is undecodable."
    ),
    "consistent.level": Key(only("none", "there is no redo log"), "`none`", "Only `none` is possible."),
    "scheduler.enable-table-across-nodes": Key(
        only(False, "a table is captured in one place"), "`false`", "Only `false` is possible."
    ),
    "sink.column-selectors[].matcher": Key(some_texts, "required", "The tables that the entry is for."),
    "sink.column-selectors[].columns": Key(
        some_texts, "required", "Which of their columns go out: `['*', '!note']`. A whole key must remain."
    ),
    "sink.dispatchers[].matcher": Key(some_texts, "required", "The tables that the entry is for. Message queues only."),
    "sink.dispatchers[].partition": Key(text, "", "How rows are spread over partitions. Message queues only."),
    "sink.dispatchers[].dispatcher": Key(text, "", "The old name of `partition`."),
    "sink.dispatchers[].topic": Key(text, "", "The topic, perhaps with `{schema}` and `{table}`. Message queues only."),
    "sink.dispatchers[].index": Key(text, "", "The index whose values choose the partition. Message queues only."),
    "sink.dispatchers[].columns": Key(texts, "`[]`", "The columns that choose the partition. Message queues only."),
    "sink.protocol": _setting(text, "", "The form of messages.", "protocol", MESSAGES),
    "sink.transaction-atomicity": _setting(word("none", "table"), "", _SAME, "transaction-atomicity"),
    "sink.safe-mode": _setting(boolean, "`false`", _SAME, "safe-mode", DATABASE),
    "sink.terminator": _setting(text, "`\\r\\n`", _SAME, "terminator", (*STORAGE, "blackhole")),
    "sink.date-separator": _setting(text, "`day`", _SAME, "date-separator", STORAGE),
    "sink.enable-partition-separator": _setting(boolean, "`true`", _SAME, "enable-partition-separator", STORAGE),
    "sink.file-index-digit": _setting(number(), "`20`", _SAME, "file-index-digit", STORAGE),
    **{
        f"sink.cloud-storage-config.{name}": _setting(read, default, _SAME, name, STORAGE)
        for name, read, default in (
            ("worker-count", number(1), "`16`"),
            ("flush-interval", duration_text, "`0s`"),
            ("file-size", number(), "`67108864`"),
            ("output-column-id", boolean, "`false`"),
            ("output-raw-change-event", boolean, "`false`"),
        )
    },
    **{
        f"sink.mysql-config.{name}": _setting(read, "", f"The sink URI's `{parameter}`.", parameter, DATABASE)
        for name, read, parameter in (
            ("worker-count", number(1), "worker-count"),
            ("max-txn-row", number(1), "max-txn-row"),
            ("max-multi-update-row", number(), "max-multi-update-row"),
            ("max-multi-update-row-size", number(), "max-multi-update-row-size"),
            ("tidb-txn-mode", text, "tidb-txn-mode"),
            ("ssl-ca", text, "ssl-ca"),
            ("ssl-cert", text, "ssl-cert"),
            ("ssl-key", text, "ssl-key"),
            ("time-zone", text, "time-zone"),
            ("read-timeout", duration_text, "read-timeout"),
            ("write-timeout", duration_text, "write-timeout"),
            ("timeout", duration_text, "timeout"),
            ("enable-batch-dml", boolean, "batch-dml-enable"),
            ("enable-multi-statement", boolean, "multi-stmt-enable"),
            ("enable-cache-prepared-statement", boolean, "cache-prep-stmts"),
        )
    },
    **{
        f"sink.kafka-config.{name}": _setting(read, "", f"The sink URI's `{parameter}`.", parameter, KAFKA)
        for name, read, parameter in (
            ("partition-num", number(1), "partition-num"),
            ("replication-factor", number(1), "replication-factor"),
            ("auto-create-topic", boolean, "auto-create-topic"),
            ("max-message-bytes", number(1), "max-message-bytes"),
            ("compression", text, "compression"),
            ("required-acks", whole_number, "required-acks"),
            ("kafka-version", text, "kafka-version"),
            ("kafka-client-id", text, "kafka-client-id"),
            ("enable-tls", boolean, "enable-tls"),
            ("ca", text, "ca"),
            ("cert", text, "cert"),
            ("key", text, "key"),
            ("insecure-skip-verify", boolean, "insecure-skip-verify"),
            ("sasl-user", text, "sasl-user"),
            ("sasl-password", text, "sasl-password"),
            ("sasl-mechanism", text, "sasl-mechanism"),
            ("sasl-oauth-token-url", text, "sasl-oauth-token-url"),
            ("sasl-oauth-client-id", text, "sasl-oauth-client-id"),
            ("sasl-oauth-client-secret", text, "sasl-oauth-client-secret"),
            ("sasl-oauth-grant-type", text, "sasl-oauth-grant-type"),
            ("dial-timeout", duration_text, "dial-timeout"),
            ("read-timeout", duration_text, "read-timeout"),
            ("write-timeout", duration_text, "write-timeout"),
            ("output-raw-change-event", boolean, "output-raw-change-event"),
            ("consistency", text, "consistency"),
            ("on-too-large", text, "on-too-large"),
        )
    },
}

_SIMPLE = "it is for the protocol simple"

# Keys and whole sections of TiCDC that are not honoured, each with the reason.
REFUSED: Mapping[str, str] = {
    "enable-old-value": "old values are always there",
    "enable-table-monitor": "there are no metrics by table",
    "changefeed-error-stuck-duration": "a changefeed retries as long as its error can pass",
    "sql-mode": "TiCDC has given it up too",
    "synced-status": "ask for the checkpoint instead",
    "mounter.worker-num": "rows are decoded by Spark's tasks: choose their number with --spark-master",
    "filter.ignore-dbs": "write rules instead",
    "filter.ignore-tables": "write rules instead",
    "filter.do-dbs": "write rules instead",
    "filter.do-tables": "write rules instead",
    "filter.event-filters[].ignore-update-only-columns": "it is for Kafka; compare columns in an expression instead",
    "scheduler.region-threshold": "a table is captured in one place",
    "scheduler.region-per-span": "a table is captured in one place",
    "scheduler.write-key-threshold": "a table is captured in one place",
    "consistent": "there is no redo log",
    "security.cert-allowed-cn": "the upstream decides whom it lets in",
    "security.mtls": "nobody connects to us",
    "security.client-user-required": "nobody connects to us",
    "security.client-allowed-user": "nobody connects to us",
    "sink.dispatchers[].target-schema": "tables keep their names",
    "sink.dispatchers[].target-table": "tables keep their names",
    "sink.encoder-concurrency": "rows are encoded by Spark's tasks: choose their number with --spark-master",
    "sink.enable-kafka-sink-v2": "there is one Kafka sink",
    "sink.advance-timeout-in-sec": "TiCDC has given it up too",
    "sink.kafka-config.max-retry": "messages are sent again until they are confirmed",
    "sink.kafka-config.sasl-oauth-scopes": "it is a list in TiCDC; give them in the sink URI, with spaces between them",
    "sink.kafka-config.sasl-oauth-audience": "tokens are asked for by scope",
    "sink.pulsar-config": "there is no sink for Pulsar",
    "sink.csv.output-handle-key": "csv records have no such column",
    "sink.cloud-storage-config.flush-concurrency": "a file is written in one piece",
    "sink.cloud-storage-config.file-expiration-days": "files are kept until you delete them",
    "sink.cloud-storage-config.file-cleanup-cron-spec": "files are kept until you delete them",
    "sink.cloud-storage-config.use-table-id-as-path": "folders carry the table's name",
    "sink.cloud-storage-config.spool-disk-quota": "batches are kept in the changefeed's own data folder",
    "sink.cloud-storage-config.spool-base-dir": "batches are kept in the changefeed's own data folder",
}
