"""Sink URIs of another TiKV: ``tikv://pd1:2379,pd2:2379?concurrency=4``.

Scheme, hosts and the names ``concurrency``, ``ca-path``, ``cert-path`` and ``key-path`` are TiKV-CDC's; so is what they
mean. A parameter that we do not know is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Any
from urllib.parse import parse_qsl

from tidemill.config.sink_uri import SHOWN, brokers_of, safe_uri, split_uri
from tidemill.config.values import number_from, seconds_from, sentence
from tidemill.errors import SinkUriError, TidemillError, suggestion
from tidemill.model.security import PLAIN, Security
from tidemill.model.ts import Ts
from tidemill.sinks.port import OwnerSink, Rescan, Sharing, SinkWriter, Traits

_DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class TikvOptions:
    """A checked sink URI. Small and picklable: it travels to executors."""

    pd: str  # addresses, comma separated
    concurrency: int = 4  # requests of a task at the same time
    batch_size: int = 1024  # keys in a request, at most
    batch_bytes: int = 512 << 10  # and bytes; a larger value goes alone
    max_backoff_seconds: float = 2.0  # between two tries of a request
    rate_limit: int = 0  # bytes of keys and values a second that a task sends; 0: no limit
    deadline_seconds: float = 30.0  # of a unit, from when it is made
    grace_seconds: float = 1.0  # behind a deadline, for a request that was sent just before it to be carried out
    keyspace: str = ""  # by its name; empty: the default one
    security: Security = field(default=PLAIN, repr=False)
    source_cluster_id: int = 0  # which must not be the target's; see ``named``
    safe_uri: str = field(default="", compare=False)

    @property
    def traits(self) -> Traits:
        return Traits(sharing=Sharing.ALWAYS, ends_never_earlier=True, copies_by_region=True, has_fence=False)

    def named(self, changefeed: str, cluster_id: int) -> "TikvOptions":
        return replace(self, source_cluster_id=cluster_id)

    def answers(self, seconds: float) -> bool:
        from tidemill.sinks.tikv.cluster import TargetCluster

        cluster = TargetCluster(self, patience_seconds=seconds)
        try:
            cluster.ts()
        except TidemillError:
            return False
        finally:
            cluster.close()
        return True

    def open_owner(
        self,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        rescan: Rescan | None = None,
        is_resumed: bool = False,
    ) -> OwnerSink:
        from tidemill.sinks.tikv.sink import TikvOwner

        return TikvOwner(self, state, is_resumed=is_resumed)

    def open_writer(self, name: str, *, zone: tzinfo = UTC) -> SinkWriter:
        from tidemill.sinks.tikv.sink import TikvWriter

        return TikvWriter(self, name)


def parse_tikv_uri(uri: str) -> TikvOptions:
    """Raises SinkUriError, which names what is wrong and never shows a secret of the URI."""
    parts = split_uri(uri)
    if parts.path.strip("/"):
        raise SinkUriError(
            f"the sink URI {safe_uri(uri)} has a path. A TiKV has none: write tikv://pd-host:2379, with parameters "
            "behind a '?'."
        )
    hosts = brokers_of(parts.netloc, _DEFAULT_PORT, "TiKV", "PD")
    if not hosts:
        raise SinkUriError("the sink URI of TiKV names no PD. Write tikv://pd-host:2379, several with commas between.")
    fields: dict[str, Any] = {}
    paths: dict[str, str] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        parameter = _PARAMETERS.get(name)
        if parameter is None:
            raise SinkUriError(f"unknown sink URI parameter {name!r}.{_hint(name)}")
        if parameter.field in fields or parameter.field in paths:
            raise SinkUriError(f"sink URI parameter {name!r} is given twice. Keep one of them.")
        try:
            (paths if name in _PATHS else fields)[parameter.field] = parameter.read(text)
        except ValueError as wanted:
            shown = repr(text) if name in SHOWN else "this value"
            raise SinkUriError(f"sink URI parameter {name!r} is {shown}; it must be {sentence(wanted)}") from None
    return TikvOptions(",".join(hosts), **fields, security=_security(paths), safe_uri=safe_uri(uri))


def _security(paths: Mapping[str, str]) -> Security:
    if not paths:
        return PLAIN
    if "ca" not in paths or len(paths) == 2:
        raise SinkUriError(
            "TLS to the target needs 'ca-path', and 'cert-path' and 'key-path' either both or not at all. Add what is "
            "missing."
        )
    return Security(paths["ca"], paths.get("cert", ""), paths.get("key", ""))


def _hint(name: str) -> str:
    return suggestion(name, _PARAMETERS) or f" Known are {', '.join(sorted(_PARAMETERS))}."


def _text(what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not text:
            raise ValueError(what)
        return text

    return read


@dataclass(frozen=True, slots=True)
class Parameter:
    """``default`` and ``help`` are for people: the reference page is made of them."""

    field: str
    read: Callable[[str], Any]
    default: str
    help: str


_PATHS = ("ca-path", "cert-path", "key-path")
_PARAMETERS: Mapping[str, Parameter] = {
    "concurrency": Parameter(
        "concurrency", number_from(1, most=256), "4", "Requests that a task has under way at the same time."
    ),
    "batch-size": Parameter("batch_size", number_from(1, most=65536), "1024", "Keys in a request, at most."),
    "batch-bytes": Parameter(
        "batch_bytes",
        number_from(1024, most=4 << 20),
        "524288",
        "Bytes of keys and values in a request, at most, from 1 KiB to 4 MiB; a larger value goes alone.",
    ),
    "max-backoff": Parameter(
        "max_backoff_seconds", seconds_from(0.01), "2s", "The longest pause between two tries of a request."
    ),
    "rate-limit": Parameter(
        "rate_limit",
        number_from(0, most=1 << 40),
        "0",
        "Bytes of keys and values that a task sends in a second, at most; 0: no limit. As many tasks write at the same "
        "time as Spark has cores.",
    ),
    "deadline": Parameter(
        "deadline_seconds",
        seconds_from(1.0),
        "30s",
        "How long a unit of a batch may take. A restart waits as long before it writes.",
    ),
    "keyspace": Parameter("keyspace", _text("the name of a keyspace"), "DEFAULT", "The target's keyspace, by name."),
    "ca-path": Parameter("ca", _text("a file"), "", "File with the certificate of the target's authority, for TLS."),
    "cert-path": Parameter("cert", _text("a file"), "", "File with our own certificate, where the target wants one."),
    "key-path": Parameter("key", _text("a file"), "", "File with the key of our own certificate."),
}


def known_parameters() -> Mapping[str, Parameter]:
    return _PARAMETERS
