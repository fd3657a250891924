"""Sink URIs of MySQL, MariaDB and TiDB, read once into options that cannot be wrong.

    mysql://user:password@host:3306/?worker-count=16&max-txn-row=2048
    tidb+ssl://root@host:4000/?ssl-ca=/etc/ca.pem&transaction-atomicity=table

Names and words are TiCDC's. Two defaults are ours: ``max-txn-row`` is 2048, TiCDC's upper bound, because rows are
merged by key before they are cut into transactions and few large ones cost the downstream least; and ``worker-count``
counts connections a table, not a changefeed. A parameter that we do not know, or know and cannot honour, is refused.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Any
from urllib.parse import parse_qsl, unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemill.config.sink_uri import DATABASES, DEFAULT_PORT, safe_uri, split_uri
from tidemill.config.values import boolean_of, number_from, seconds_from, sentence, word_of
from tidemill.errors import SinkUriError, suggestion
from tidemill.model.address import is_host
from tidemill.model.ts import Ts
from tidemill.sinks.port import OwnerSink, Rescan, Sharing, SinkWriter, Traits

SCHEMES = DATABASES


@dataclass(frozen=True, slots=True)
class MysqlOptions:
    """A checked sink URI. Small and picklable: it travels to executors. It holds the password: never show it."""

    host: str
    port: int = DEFAULT_PORT
    user: str = "root"
    password: str = field(default="", repr=False)
    is_tls: bool = False
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    worker_count: int = 16
    max_txn_row: int = 2048
    max_multi_update_row: int = 256
    safe_mode: bool = False
    time_zone: str | None = None  # None: that of the changefeed; "": DDLs run in the downstream's own
    read_timeout_seconds: float = 120.0
    write_timeout_seconds: float = 120.0
    dial_timeout_seconds: float = 120.0
    tidb_txn_mode: str = "optimistic"
    is_atomic: bool = False  # transaction-atomicity=table
    batch_dml: bool = True
    multi_statements: bool = True
    has_vector_type: bool = False
    sync_point: bool = False
    sync_point_interval_seconds: float = 600.0
    sync_point_retention_seconds: float = 86400.0
    write_source: int = 1
    changefeed: str = "default"
    cluster_id: str = "default"
    safe_uri: str = field(default="", compare=False)  # for logs and messages: no secrets

    @property
    def place(self) -> str:
        """For messages: where this is."""
        return f"{self.host}:{self.port}"

    @property
    def traits(self) -> Traits:
        return Traits(
            most_tasks=self.worker_count,
            splits_large=True,
            joins_partitions=True,
            needs_tables=True,
            copies_by_region=True,
            sharing=Sharing.NEVER if self.is_atomic else Sharing.ONE_KEY,
            joins_transactions=True,
            does_small=True,
        )

    def named(self, changefeed: str, cluster_id: int) -> "MysqlOptions":
        return replace(self, changefeed=changefeed, cluster_id=str(cluster_id))

    def answers(self, seconds: float) -> bool:
        from tidemill.sinks.mysql.session import answers

        return answers(self, seconds)

    def open_owner(
        self,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> OwnerSink:
        from tidemill.sinks.mysql.sink import MysqlOwner

        return MysqlOwner(self, state, start_ts=start_ts, zone=zone, rescan=rescan)

    def open_writer(self, name: str, *, zone: tzinfo = UTC) -> SinkWriter:
        from tidemill.sinks.mysql.sink import MysqlWriter

        return MysqlWriter(self, name, zone=zone)


def is_mysql_uri(uri: str) -> bool:
    """Whether ``parse_mysql_uri`` is the one to read it."""
    return uri.partition("://")[0].lower() in SCHEMES


def parse_mysql_uri(uri: str) -> MysqlOptions:
    """Raises SinkUriError, which names what is wrong and never shows a secret of the URI."""
    parts = split_uri(uri)
    host, port = parts.hostname, parts.port
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        raise SinkUriError(f"unknown scheme {parts.scheme!r} of a MySQL sink. Known are {', '.join(SCHEMES)}.")
    if not host:
        raise SinkUriError(
            f"the sink URI {safe_uri(uri)} names no host. Write {scheme}://user:password@host:3306/?worker-count=16."
        )
    if not is_host(host):
        raise SinkUriError(
            f"the sink URI {safe_uri(uri)} names a host that cannot be one: between two dots stand 1 to 63 characters."
        )
    if parts.path.strip("/"):
        raise SinkUriError(
            f"the sink URI {safe_uri(uri)} names a database. Rows go to the databases they come from: end it with '/'."
        )
    values = _values(parts.query)
    _check_tls(scheme, values)
    return MysqlOptions(
        host=host,
        port=port or DEFAULT_PORT,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        is_tls=scheme.endswith("+ssl") or "ssl_ca" in values,
        safe_uri=safe_uri(uri),
        **values,
    )


def decoded_password(password: str) -> str | None:
    """The password that ``password`` is the base64 text of; None if it is none. TiCDC takes both."""
    try:
        return base64.b64decode(password, validate=True).decode() if password else None
    except (binascii.Error, UnicodeDecodeError):
        return None


# Reading a value. Each reader raises ValueError with what it wants.


def _atomicity(text: str) -> bool:
    return word_of("none", "table")(text) == "table"


def _zone(text: str) -> str:
    text = text.strip('"')
    if text and not re.fullmatch(r"[+-]\d{1,2}:\d{2}|SYSTEM|UTC", text):
        try:
            ZoneInfo(text)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder, such as Europe
            raise ValueError("a time zone such as UTC, Europe/Berlin or +08:00, or nothing") from None
    return text


def _path(text: str) -> str:
    if not text:
        raise ValueError("the path of a file")
    return text


@dataclass(frozen=True, slots=True)
class MysqlParameter:
    """``default`` and ``help`` are for people: the reference page is made of them."""

    field: str
    read: Callable[[str], Any]
    default: str
    help: str


PARAMETERS: Mapping[str, MysqlParameter] = {
    "worker-count": MysqlParameter(
        "worker_count", number_from(1, most=1024), "16", "At most so many connections write one table at the same time."
    ),
    "max-txn-row": MysqlParameter(
        "max_txn_row",
        number_from(1, most=2048),
        "2048",
        "Rows of one downstream transaction, and of one statement, at most.",
    ),
    "max-multi-update-row": MysqlParameter(
        "max_multi_update_row",
        number_from(1, most=2048),
        "256",
        "Rows of one statement that updates rows in place, at most.",
    ),
    "safe-mode": MysqlParameter(
        "safe_mode", boolean_of, "false", "Always `REPLACE`; otherwise only for what may have been written before."
    ),
    "transaction-atomicity": MysqlParameter(
        "is_atomic",
        _atomicity,
        "none",
        "`none`: changes of a key are merged. `table`: a table's transaction stays one.",
    ),
    "time-zone": MysqlParameter(
        "time_zone", _zone, "the changefeed's", "Session time zone of DDLs; empty: the downstream's own."
    ),
    "ssl-ca": MysqlParameter(
        "ssl_ca", _path, "", "File with the certificate of who signed the server's; turns TLS on."
    ),
    "ssl-cert": MysqlParameter("ssl_cert", _path, "", "File with our own certificate; with `ssl-key`."),
    "ssl-key": MysqlParameter("ssl_key", _path, "", "File with the key of our own certificate."),
    "read-timeout": MysqlParameter(
        "read_timeout_seconds", seconds_from(0.1), "2m", "How long an answer may take; a DDL may take longer."
    ),
    "write-timeout": MysqlParameter("write_timeout_seconds", seconds_from(0.1), "2m", "How long sending may take."),
    "timeout": MysqlParameter("dial_timeout_seconds", seconds_from(0.1), "2m", "How long connecting may take."),
    "tidb-txn-mode": MysqlParameter(
        "tidb_txn_mode", word_of("optimistic", "pessimistic"), "optimistic", "How TiDB runs our transactions."
    ),
    "batch-dml-enable": MysqlParameter("batch_dml", boolean_of, "true", "Several rows a statement."),
    "multi-stmt-enable": MysqlParameter("multi_statements", boolean_of, "true", "Several statements a round trip."),
    "has-vector-type": MysqlParameter(
        "has_vector_type",
        boolean_of,
        "false",
        "Vector columns become LONGTEXT; always so for MySQL and MariaDB, which have none.",
    ),
    "enable-sync-point": MysqlParameter(
        "sync_point", boolean_of, "false", "Record pairs of upstream and downstream ts in `tidb_cdc.syncpoint_v1`."
    ),
    "sync-point-interval": MysqlParameter(
        "sync_point_interval_seconds",
        seconds_from(30),
        "10m",
        "So much commit time between two sync points, from 30s on.",
    ),
    "sync-point-retention": MysqlParameter(
        "sync_point_retention_seconds", seconds_from(3600), "24h", "How long rows of sync points are kept, from 1h on."
    ),
}

REFUSED: Mapping[str, str] = {
    "protocol": "rows are written as SQL",
    "cache-prep-stmts": "statements carry their values, so nothing is prepared",
    "max-multi-update-row-size": "updates need no CASE whose size would matter",
    "where-clause": "rows are found by their key in a list",
    "enable-ddl-ts": "the changefeed keeps its own progress",
    "async-ddl-timeout": "a DDL is waited for, however long it runs",
    "dry-run": "use blackhole:// to measure what comes before the sink",
    "dry-run-delay": "use blackhole:// to measure what comes before the sink",
}


def _values(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in REFUSED:
            raise SinkUriError(f"sink URI parameter {name!r} is not supported: {REFUSED[name]}. Take it out.")
        parameter = PARAMETERS.get(name)
        if parameter is None:
            hint = suggestion(name, PARAMETERS) or f" Known are {', '.join(sorted(PARAMETERS))}."
            raise SinkUriError(f"unknown sink URI parameter {name!r}.{hint}")
        if parameter.field in values:
            raise SinkUriError(f"sink URI parameter {name!r} is given twice. Keep one of them.")
        try:
            values[parameter.field] = parameter.read(text)
        except ValueError as wanted:
            shown = "this value" if name.startswith("ssl-") else repr(text)
            raise SinkUriError(f"sink URI parameter {name!r} is {shown}; it must be {sentence(wanted)}") from None
    return values


def _check_tls(scheme: str, values: Mapping[str, Any]) -> None:
    if ("ssl_cert" in values) != ("ssl_key" in values):
        raise SinkUriError("sink URI parameters 'ssl-cert' and 'ssl-key' belong together. Give both, or neither.")
    if "ssl_cert" in values and not scheme.endswith("+ssl") and "ssl_ca" not in values:
        raise SinkUriError(
            "sink URI parameter 'ssl-cert' means nothing without TLS. Give 'ssl-ca', or a scheme that ends in '+ssl'."
        )
