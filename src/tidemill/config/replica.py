"""A changefeed's config in TiCDC's JSON: of its Open API (``replica_config``) and of its metadata in etcd.

    JSON of a client ──document_of──► document, in the spelling of the file ──► config.changefeed.read_config
    document ──api_form──► JSON of an answer        document ──metadata_form──► JSON in etcd

TiCDC's clients always send a whole config, every default in it. So what is TiCDC's default says nothing, be it of a
key that we refuse; but where our own default is another, it is said and stands. Names may be spelled with ``_`` or
with ``-``. Durations are nanoseconds, or texts such as ``10m``.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from tidemill.config.keys import KEYS
from tidemill.config.values import seconds_of
from tidemill.errors import ConfigError

# What TiCDC's clients send if nobody says anything, in the spelling of the file.
DEFAULTS: Final[Mapping[str, Any]] = {
    "memory-quota": 1 << 30,
    "case-sensitive": False,
    "force-replicate": False,
    "ignore-ineligible-table": False,
    "check-gc-safe-point": True,
    "enable-sync-point": False,
    "enable-table-monitor": False,
    "bdr-mode": False,
    "sync-point-interval": "10m",
    "sync-point-retention": "24h",
    "filter": {"rules": ["*.*"]},
    "mounter": {"worker-num": 16},
    "sink": {
        "csv": {
            "delimiter": ",",
            "quote": '"',
            "null": "\\N",
            "include-commit-ts": False,
            "binary-encoding-method": "base64",
            "output-old-value": False,
            "output-handle-key": False,
            "output-field-header": False,
        },
        "encoder-concurrency": 32,
        "terminator": "\r\n",
        "date-separator": "day",
        "enable-partition-separator": True,
        "enable-kafka-sink-v2": False,
        "only-output-updated-columns": False,
        "delete-only-output-handle-key-columns": False,
        "content-compatible": False,
        "advance-timeout-in-sec": 150,
        "send-bootstrap-interval-in-sec": 120,
        "send-bootstrap-in-msg-count": 10000,
        "send-bootstrap-to-all-partition": True,
        "send-all-bootstrap-at-start": False,
        "debezium-disable-schema": False,
        "open": {"output-old-value": True},
        "debezium": {"output-old-value": True},
    },
    "consistent": {
        "level": "none",
        "max-log-size": 64,
        "flush-interval": 2000,
        "meta-flush-interval": 200,
        "encoding-worker-num": 16,
        "flush-worker-num": 8,
        "flush-concurrency": 1,
        "storage": "",
        "use-file-backend": False,
        "compression": "",
        "memory-usage": {"memory-quota-percentage": 50},
    },
    "scheduler": {"enable-table-across-nodes": False, "region-threshold": 100_000, "write-key-threshold": 0},
    "integrity": {"integrity-check-level": "none", "corruption-handle-level": "warn"},
    "changefeed-error-stuck-duration": "30m",
    "synced-status": {"synced-check-interval": 300, "checkpoint-interval": 15},
}
# Where ours is another: what TiCDC's client says is then not the same as nothing.
_OURS: Final[Mapping[str, Any]] = {"memory-quota": 256 << 20, "ignore-ineligible-table": True}
# Other values that ask for nothing, as older and newer clients send them.
_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "memory-quota": (0,),
    "filter.rules": ([],),
    "sql-mode": ("",),
    "consistent.flush-concurrency": (0,),
    "consistent.level": ("",),
}
_DURATIONS = ("sync-point-interval", "sync-point-retention", "changefeed-error-stuck-duration")
# Names in JSON that are not those of the file with ``_`` instead of ``-``.
_API_NAMES: Final[Mapping[str, str]] = {
    "sink.advance-timeout-in-sec": "advance_timeout",
    "sink.file-index-digit": "file_index_width",
    "sink.send-all-bootstrap-at-start": "send-all-bootstrap-at-start",
    "sink.mysql-config.max-multi-update-row": "max_multi_update_row_count",
}
_FILE_NAMES: Final[Mapping[str, str]] = {
    f"{path.rpartition('.')[0]}.{name.replace('_', '-')}": path.rpartition(".")[2] for path, name in _API_NAMES.items()
}
_SAME_IN_JSON = "sink.pulsar-config"
_MOST_DEEP = 8  # tables in tables


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _flat(document: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        here = _join(path, name)
        found |= _flat(value, here) if isinstance(value, Mapping) else {here: value}
    return found


_FLAT: Final = {**_flat(DEFAULTS), **_OURS}


def document_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a client's JSON says, in the spelling of the file and without what says nothing. Keys are not checked:
    ``read_config`` does that. Raises ConfigError where a key is there twice, or tables nest without end."""
    spelled: dict[str, Any] = _in_file_spelling(config, "", 0)
    return _without_nothing(spelled, "")


def api_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """All of a config, defaults included, as TiCDC's Open API shows it."""
    shown: dict[str, Any] = _in_json(_merged(document), "", is_api=True)
    return shown


def metadata_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """All of a config, defaults included, as TiCDC stores it."""
    stored: dict[str, Any] = _in_json(_merged(document), "", is_api=False)
    return stored


def synced_intervals(document: Mapping[str, Any]) -> tuple[float, float]:
    """After how many seconds without a change, and with a checkpoint how recent, both sides are equal."""
    section = {**DEFAULTS["synced-status"], **document.get("synced-status", {})}
    return float(section["synced-check-interval"]), float(section["checkpoint-interval"])


def _in_file_spelling(value: Any, path: str, depth: int) -> Any:
    if depth > _MOST_DEEP:
        raise ConfigError("the changefeed's config nests too deeply. Take some brackets out.")
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for name, each in value.items():
            spelled = str(name) if path == _SAME_IN_JSON else str(name).replace("_", "-")
            spelled = _FILE_NAMES.get(_join(path, spelled), spelled)
            if spelled in found:
                raise ConfigError(f"the changefeed's config has {_join(path, spelled)!r} twice. Keep one.")
            if each is not None:
                found[spelled] = _in_file_spelling(each, _join(path, spelled), depth + 1)
        return found
    if isinstance(value, list):
        return [_in_file_spelling(each, f"{path}[]", depth + 1) for each in value]
    if path in _DURATIONS and isinstance(value, int | float) and not isinstance(value, bool):
        return _duration_text(value)
    return value


def _duration_text(nanoseconds: float) -> str:
    milliseconds, rest = divmod(int(nanoseconds), 1_000_000)
    if rest or nanoseconds < 0:
        return f"{int(nanoseconds)}ns"
    seconds, rest = divmod(milliseconds, 1000)
    return f"{milliseconds}ms" if rest else f"{seconds}s"


def _without_nothing(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        here = _join(path, name)
        if isinstance(value, Mapping):
            left = _without_nothing(value, here)
            if left or not value:
                found[name] = left
        elif not _says_nothing(here, value):
            found[name] = value
    return {name: value for name, value in found.items() if value != {}}


def _says_nothing(path: str, value: Any) -> bool:
    if any(value == nothing and type(value) is type(nothing) for nothing in _NOTHING.get(path, ())):
        return True
    if path not in KEYS and (value == "" or value == []):
        return path in _FLAT
    default = _FLAT.get(path)
    if default is None:
        return False
    if path in _DURATIONS and isinstance(value, str):
        try:
            return seconds_of(value) == seconds_of(default)
        except ValueError:
            return False
    return bool(value == default) and type(value) is type(default)


def _merged(document: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {**copy.deepcopy(dict(DEFAULTS)), **_OURS}
    _overlay(merged, document)
    return merged


def _overlay(under: dict[str, Any], over: Mapping[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(under.get(name), dict):
            _overlay(under[name], value)
        else:
            under[name] = value


def _in_json(value: Any, path: str, *, is_api: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            _json_name(_join(path, name), name, is_api): _in_json(each, _join(path, name), is_api=is_api)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_in_json(each, f"{path}[]", is_api=is_api) for each in value]
    if path in _DURATIONS and isinstance(value, str):
        return round(seconds_of(value) * 1e9)
    return value


def _json_name(path: str, name: str, is_api: bool) -> str:
    if not is_api or path.startswith(f"{_SAME_IN_JSON}."):
        return name
    return _API_NAMES.get(path, name.replace("-", "_"))
