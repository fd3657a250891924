"""What of a sink URI may be seen, and what of it says where the sink is.

    safe_uri     for logs and messages: what is not known to be harmless is left out
    place_of     for the changefeed's state: two URIs of one place are one changefeed, whatever their passwords say
    loopbacks    of addresses, those that lead each machine to itself
    split_uri    the parts, or a refusal that shows nothing of what could be a password

Whoever writes a password with a ``/`` or ``?`` in it as it stands has moved the border between the parts of the URI.
So nothing is shown because of where it stands alone: a host has to look like one, and a URI that may be read in two
ways is shown by its scheme.
"""

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from tidemill.errors import SinkUriError

DATABASES = ("mysql", "mysql+ssl", "tidb", "tidb+ssl")
DEFAULT_PORT = 4000  # of databases
QUEUES = ("kafka", "kafka+ssl")
_STORES = ("tikv",)
_LISTS = (*QUEUES, *_STORES)  # which name several hosts, with commas between
_PD_PORT = 2379
_FOLDERS = ("file", "iceberg", "delta", "blackhole")
_BUCKETS = ("s3", "iceberg+s3", "delta+s3")

# Parameters whose values are no secrets.
SHOWN = frozenset({
    "protocol", "enable-tidb-extension", "content-compatible", "only-output-updated-columns", "terminator", "delimiter",
    "quote", "null", "delete-only-output-handle-key-columns", "include-commit-ts", "output-old-value",
    "binary-encoding-method", "output-field-header", "flush-interval", "file-size", "date-separator",
    "enable-partition-separator", "file-index-digit", "output-raw-change-event", "output-column-id", "worker-count",
    "transaction-atomicity", "max-txn-row", "max-multi-update-row", "safe-mode", "time-zone", "read-timeout",
    "write-timeout", "timeout", "tidb-txn-mode", "batch-dml-enable", "multi-stmt-enable", "has-vector-type",
    "enable-sync-point", "sync-point-interval", "sync-point-retention", "changefeed", "namespace", "compression",
    "keep-snapshots", "endpoint", "region", "force-path-style", "partition-num", "replication-factor",
    "auto-create-topic", "max-message-bytes", "max-batch-size", "required-acks", "kafka-version", "kafka-client-id",
    "enable-tls", "insecure-skip-verify", "sasl-mechanism", "dial-timeout",
    "sasl-oauth-grant-type", "encoding-format", "large-message-handle-option", "large-message-handle-compression",
    "concurrency", "batch-size", "batch-bytes", "max-backoff", "deadline", "keyspace",
})  # fmt: skip
# Those whose values are, or may be, so that only their names are shown. Of all others not even the name.
HIDDEN = frozenset({
    "catalog", "ssl-ca", "ssl-cert", "ssl-key", "access-key", "secret-access-key", "session-token", "role-arn",
    "external-id", "sasl-user", "sasl-password", "ca", "cert", "key", "sasl-oauth-token-url", "sasl-oauth-client-id",
    "sasl-oauth-client-secret", "sasl-oauth-scopes", "ca-path", "cert-path", "key-path",
})  # fmt: skip
# Those that say where the sink is.
_PLACING = ("protocol", "endpoint", "catalog", "namespace", "changefeed", "keyspace")

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31})://(.*)", re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]*)(:\d{1,5})?")
_BROKERS = re.compile(rf"{_HOST.pattern}(,{_HOST.pattern})*")
_TOPIC = re.compile(r"/?[A-Za-z0-9._-]{1,249}/?")
_LOOPBACK = re.compile(r"(?<![\w.-])(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?(?![\w.-])", re.IGNORECASE)
_PARAMETERS = "|".join(sorted(SHOWN | HIDDEN))
_MISPLACED = re.compile(rf"[&;](?:{_PARAMETERS})=")  # in a path: a '?' is missing
_WRONGLY_PARTED = re.compile(rf";(?:{_PARAMETERS})=")  # in a value: a '&' is
_VEIL = "…"
_ENCODE = "Write what is special in a user or password (such as / ? # @ : [ ]) in percent form, as %2F %3F %23 %40."


def safe_uri(uri: str) -> str:
    """The URI for logs and messages."""
    found = _URI.fullmatch(uri)
    if not found:
        return "(not a URI)"
    scheme, rest = found.groups()
    front, _, query = rest.partition("?")
    authority, slash, path = front.partition("/")
    _, at, host = authority.rpartition("@")
    hosts = _BROKERS if scheme.lower() in _LISTS else _HOST
    if "#" in rest or not hosts.fullmatch(host) or _is_doubtful(scheme.lower(), at, path, query):
        return f"{scheme}://{_VEIL}"
    shown = [*dict.fromkeys(_shown(pair) for pair in query.split("&") if pair)]
    shown.sort(key=_VEIL.__eq__)
    return f"{scheme}://{'xxxxx@' if at else ''}{host}{slash}{path}" + ("?" + "&".join(shown) if shown else "")


def _is_doubtful(scheme: str, at: str, path: str, query: str) -> bool:
    """Whether something of a user's may stand elsewhere than before the host."""
    if scheme in _FOLDERS or scheme in _BUCKETS:
        return bool(at) or bool(_MISPLACED.search(path))
    if scheme in QUEUES:
        return bool(at) or "@" in query or not _TOPIC.fullmatch(path or "-")
    if scheme in _STORES:
        return bool(at) or bool(path.strip("/")) or "@" in query
    return bool(path) or "@" in query


def _shown(pair: str) -> str:
    name, _, value = pair.partition("=")
    if name in SHOWN and "@" not in unquote(value) and not _WRONGLY_PARTED.search(value):
        return pair
    return f"{name}=xxxxx" if name in SHOWN or name in HIDDEN else _VEIL


def is_tikv_uri(uri: str) -> bool:
    """Whether it names a TiKV, which takes keys alone."""
    return uri.partition("://")[0].lower() == "tikv"


def split_uri(uri: str) -> SplitResult:
    """Raises SinkUriError where it cannot be read, or only by guessing where a password ends."""
    if not _is_text(uri):
        raise SinkUriError("the sink URI holds bytes that are not UTF-8 text. Write é as %C3%A9, say.")
    try:
        parts = urlsplit(uri)
        port = parts.port if parts.scheme.lower() not in _LISTS else None
    except ValueError:
        # Without the error's own words, which quote what stands where the port should.
        raise SinkUriError(f"cannot read the sink URI {safe_uri(uri)}: {_trouble(uri)} {_ENCODE}") from None
    try:
        unquote(uri, errors="strict")
    except UnicodeDecodeError:
        raise SinkUriError(
            f"cannot read the sink URI {safe_uri(uri)}: bytes in it that are in percent form are not UTF-8 text. "
            "Write é as %C3%A9, say."
        ) from None
    scheme = parts.scheme.lower()
    if _MISPLACED.search(parts.netloc + parts.path):
        raise SinkUriError(
            f"cannot read the sink URI {safe_uri(uri)}: parameters stand where its path should end. They begin with a "
            "'?': …/path?name=value&name=value."
        )
    if _WRONGLY_PARTED.search(parts.query):
        raise SinkUriError(
            f"cannot read the sink URI {safe_uri(uri)}: parameters have a ';' between them. Write '&', or %3B where it "
            "is part of a value."
        )
    if parts.fragment or "#" in uri:
        raise SinkUriError(f"cannot read the sink URI {safe_uri(uri)}: it has a '#', which would end it. {_ENCODE}")
    if scheme in DATABASES:
        if _is_doubtful(scheme, "", "", parts.query) or "@" in parts.path:
            raise SinkUriError(f"cannot read the sink URI {safe_uri(uri)}: an '@' stands behind its host. {_ENCODE}")
        if port == 0:
            raise SinkUriError(f"the sink URI {safe_uri(uri)} names port 0. A port is a number from 1 to 65535.")
    elif scheme in QUEUES:
        brokers_of(parts.netloc)
    elif scheme in _STORES:
        brokers_of(parts.netloc, _PD_PORT, "TiKV", "PD")
    elif "@" in parts.netloc and scheme in _FOLDERS:
        raise SinkUriError(f"a sink URI of scheme {scheme!r} has no user, password or host. Write {scheme}:///….")
    return parts


def _is_text(given: str) -> bool:
    """Whether a word of the command line is text: bytes that are not come as what no encoding takes."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def brokers_of(netloc: str, default_port: int = 9092, kind: str = "Kafka", server: str = "broker") -> list[str]:
    """The addresses in the first part of a URI of a message queue or a store, each with its port. Raises
    SinkUriError. ``kind`` and ``server`` are for people."""
    if "@" in netloc:
        instead = "sasl-user and sasl-password" if kind == "Kafka" else "ca-path, cert-path and key-path"
        raise SinkUriError(f"a sink URI of {kind} has no user or password before its {server}s. Give {instead}.")
    found = []
    for each in netloc.split(",") if netloc else []:
        match = _HOST.fullmatch(each)
        if not match or not match[1]:
            raise SinkUriError(
                f"the sink URI of {kind} names a {server} that cannot be one. Write host:{default_port}, several with "
                "commas between."
            )
        port = int(match[2][1:]) if match[2] else default_port
        if not 1 <= port <= 65535:
            raise SinkUriError(f"the sink URI names port {port} of a {server}. A port is a number from 1 to 65535.")
        found.append(f"{match[1]}:{port}")
    return found


def _trouble(uri: str) -> str:
    port = re.search(r":(\d+)$", uri.partition("://")[2].partition("/")[0])
    if port and int(port[1]) > 65535 and safe_uri(uri) != f"{uri.partition('://')[0]}://{_VEIL}":
        return "a port is a number from 1 to 65535."
    return "what stands where its host and port should is none."


def place_of(uri: str, from_file: Mapping[str, str] | None = None) -> str:
    """A URI of the same place without anything else. ``from_file``: parameters where the URI says nothing."""
    parts = split_uri(uri)
    scheme = parts.scheme.lower()
    given = {**(from_file or {}), **dict(parse_qsl(parts.query, keep_blank_values=True))}
    placing = {name: _placing(name, given[name]) for name in _PLACING if given.get(name)}
    query = "&".join(f"{name}={quote(text, safe=':/')}" for name, text in placing.items())
    host = _hosts(scheme, parts)
    path = quote("/" + unquote(parts.path).strip("/"), safe="/")
    if scheme in DATABASES:
        scheme, path, query = "mysql", "/", ""
        host = f"[{host}]" if ":" in host else host
        host = f"{host}:{parts.port or DEFAULT_PORT}"
    elif scheme in QUEUES:
        scheme = "kafka"
    elif scheme in _STORES:
        path = ""
    elif scheme in _FOLDERS:
        host, path = "", "" if scheme == "blackhole" else path
    return f"{scheme}://{host}{path}" + (f"?{query}" if query and scheme != "blackhole" else "")


def _hosts(scheme: str, parts: SplitResult) -> str:
    if scheme in QUEUES:
        return ",".join(brokers_of(parts.netloc))
    if scheme in _STORES:
        return ",".join(brokers_of(parts.netloc, _PD_PORT, "TiKV", "PD"))
    return parts.hostname or ""


def _placing(name: str, text: str) -> str:
    if name not in ("catalog", "endpoint"):
        return text.lower() if name == "protocol" else text
    front = text.partition("?")[0]
    scheme, sign, rest = front.rpartition("://")
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    if not _HOST.fullmatch(host) or "@" in path or "#" in front:
        return f"{scheme}{sign}{_VEIL}"
    return f"{scheme}{sign}{host}{slash}{path}"


def loopbacks(place: str, *others: str) -> tuple[str, ...]:
    """Of the sink's place, and of other texts with addresses, those that lead each machine to itself."""
    parts = split_uri(place)
    endpoint = dict(parse_qsl(parts.query)).get("endpoint", "")
    texts = ([parts.netloc] if parts.scheme in (*DATABASES, *_LISTS) else []) + [endpoint, *others]
    return tuple(dict.fromkeys(found[0] for text in texts for found in _LOOPBACK.finditer(text)))


def differences(was: str, now: str) -> str:
    """What makes two places two, for people; empty: they are one."""
    one, other = _facts(was), _facts(now)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name) and one.get(name) != "xxxxx"]
    return "; ".join(f"{name}: {one.get(name) or 'nothing'}, now {other.get(name) or 'nothing'}" for name in names)


def _facts(place: str) -> dict[str, str]:
    parts = split_uri(place_of(place))
    if parts.scheme in QUEUES:  # brokers come and go; which cluster they are of, they tell themselves
        return {"kind": parts.scheme, "topic": parts.path, **dict(parse_qsl(parts.query))}
    if parts.scheme in _STORES:  # nor PDs: which cluster they are of is part of the sink's own state
        return {"kind": parts.scheme, **dict(parse_qsl(parts.query))}
    facts = {"kind": parts.scheme, "host": parts.hostname or "", "port": str(parts.port or ""), "path": parts.path}
    if parts.scheme == "blackhole":
        return {"kind": parts.scheme}
    return {**facts, **dict(parse_qsl(parts.query))}
