"""A changefeed's file, in TiCDC's spelling, read once into a ``ChangefeedConfig`` that cannot be wrong.

    TOML ──► keys and values checked one by one ──► ChangefeedConfig ──► filters (flow), sink URI (sink_parameters)

A key that we do not know, or know and cannot honour, is refused: an option that silently does nothing is worse.
What a sink URI says wins over the file.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemill.config.keys import KEYS, REFUSED, Key
from tidemill.config.keytext import keys_from
from tidemill.errors import ConfigError, UsageError
from tidemill.model.changefeed import (
    ChangefeedConfig,
    ColumnSelection,
    Dispatch,
    EventFilter,
    OnUndecodable,
    SinkSetting,
)
from tidemill.model.keys import KeyRange
from tidemill.model.security import Security

_LARGEST_NUMBER = (1 << 64) - 1
_SECRET = re.compile(r"(?i)password|secret|token|-key$")


def load_config(path: Path | str, more: Mapping[str, Key] | None = None) -> ChangefeedConfig:
    """``more`` are keys that are known beside ``KEYS``: the options of message protocols.

    Raises ConfigError, which says what is wrong and where.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}. Give the changefeed's TOML file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read {path}: it is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from error
    return parse_config(text, str(path), more)


def parse_config(
    text: str, name: str = "the changefeed's file", more: Mapping[str, Key] | None = None
) -> ChangefeedConfig:
    """As ``load_config``, from the file's text; ``name`` stands for it in messages."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot read {name}: {error}. It must be TOML, as TiCDC's changefeed files are.") from error
    except ValueError:  # of Python, which converts no number of thousands of digits
        raise ConfigError(f"cannot read {name}: it holds a number of thousands of digits. Correct it.") from None
    except RecursionError:
        raise ConfigError(f"cannot read {name}: its values are nested too deeply. Take some brackets out.") from None
    return _Reader(text, name, {**KEYS, **(more or {})}).read(document)


def read_config(
    document: Mapping[str, Any], name: str = "the changefeed's config", more: Mapping[str, Key] | None = None
) -> ChangefeedConfig:
    """As ``load_config``, from tables that were read elsewhere, in the spelling of the file."""
    return _Reader("", name, {**KEYS, **(more or {})}).read(document)


def sink_parameters(config: ChangefeedConfig, scheme: str) -> dict[str, str]:
    """The file's settings for a sink of ``scheme``, by the names of the sink URI's parameters.

    The URI's own parameters win over them. Raises ConfigError where the file sets what this sink does not have.
    """
    for setting in config.sink_settings:
        if setting.schemes and scheme not in setting.schemes:
            raise ConfigError(
                f"{setting.key!r} of the changefeed's file means nothing to a sink of scheme {scheme!r}; it is for "
                f"{', '.join(setting.schemes)}. Take it out."
            )
    if config.dispatchers and not scheme.startswith(("kafka", "pulsar")):
        raise ConfigError(
            "'sink.dispatchers' of the changefeed's file chooses topics and partitions of message queues, which a "
            f"sink of scheme {scheme!r} does not have. Take it out."
        )
    return {setting.parameter: setting.text for setting in config.sink_settings}


class _Reader:
    def __init__(self, text: str, name: str, keys: Mapping[str, Key]) -> None:
        self._name = name
        self._keys = keys
        self._list_paths = {path.partition("[]")[0] for path in keys if "[]" in path}
        sections = {path[: dot.start()].replace("[]", "") for path in keys for dot in re.finditer(r"\.", path)}
        self._sections = sections - self._list_paths
        self._lines = dict(_lines_of_keys(text))

    def read(self, document: Mapping[str, Any]) -> ChangefeedConfig:
        values: dict[str, Any] = {}
        self._section(document, "", "", values)
        self._check_together(values)
        named = {
            field: values[path]
            for field, path in (
                ("case_sensitive", "case-sensitive"),
                ("force_replicate", "force-replicate"),
                ("ignore_ineligible_table", "ignore-ineligible-table"),
                ("enable_sync_point", "enable-sync-point"),
                ("sync_point_interval_seconds", "sync-point-interval"),
                ("sync_point_retention_seconds", "sync-point-retention"),
                ("ignore_txn_start_ts", "filter.ignore-txn-start-ts"),
                ("memory_quota", "memory-quota"),
                ("disk_quota", "disk-quota"),
            )
            if path in values
        }
        return ChangefeedConfig(
            **named,
            security=self._security(values),
            keys=self._keys_of(values),
            rules=values.get("filter.rules") or ("*.*",),
            event_filters=tuple(EventFilter(**_fields(e)) for e in values.get("filter.event-filters", ())),
            column_selectors=tuple(ColumnSelection(**_fields(e)) for e in values.get("sink.column-selectors", ())),
            dispatchers=tuple(self._dispatch(*e) for e in enumerate(values.get("sink.dispatchers", ()))),
            on_undecodable=OnUndecodable(values.get("mounter.on-undecodable", "stop")),
            verifies_checksums=values.get("integrity.integrity-check-level") == "correctness",
            sink_settings=tuple(
                SinkSetting(path, key.parameter, _text(values[path]), key.schemes)
                for path, key in self._keys.items()
                if key.parameter and path in values
            ),
        )

    def _section(self, table: Mapping[str, Any], kind: str, place: str, into: dict[str, Any]) -> None:
        """``kind`` is the section's path as the tables of keys spell it, ``place`` as this file does."""
        for name, value in table.items():
            path, where = _join(kind, name), _join(place, name)
            if path in self._keys:
                into[path] = self._value(self._keys[path], where, value)
            elif path in self._list_paths:
                into[path] = self._list(value, path, where)
            elif path in self._sections:
                if not isinstance(value, Mapping):
                    raise self._error(where, f"is a section, not a value. Write [{where}] and its keys below")
                self._section(value, path, where, into)
            else:
                raise self._unknown(path, where, name)

    def _list(self, value: Any, path: str, place: str) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
            raise self._error(place, f"must be a list of tables. Write [[{place}]] before each")
        entries: list[dict[str, Any]] = []
        for at, entry in enumerate(value):
            entries.append({})
            self._section(entry, path + "[]", f"{place}[{at}]", entries[-1])
            for needed in self._keys:
                is_missing = needed.startswith(path + "[].") and needed not in entries[-1]
                if is_missing and self._keys[needed].default == "required":
                    raise self._error(f"{place}[{at}]", f"lacks the key {needed.rpartition('.')[2]!r}. Add it")
        return entries

    def _value(self, key: Key, place: str, value: Any) -> Any:
        if _has_long_number(value):
            raise self._error(place, "holds a number that is too large: 64 bits are the most")
        try:
            return key.read(value)
        except ValueError as wanted:
            shown = "this value" if _SECRET.search(place) else _shown(value)
            raise self._error(place, f"is {shown}; it must be {wanted}") from None

    def _unknown(self, path: str, place: str, name: str) -> ConfigError:
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            why = REFUSED.get(".".join(parts[:length]))
            if why:
                return self._error(place, f"is not supported: {why}. Take it out")
        known = {p.replace("[]", "") for p in self._keys} | self._list_paths | self._sections
        spelled = path.replace("[]", "")
        close = difflib.get_close_matches(spelled, known, n=1, cutoff=0.8)
        if not close:  # the right key, perhaps, in the wrong section
            close = [p for p in sorted(known) if p.rpartition(".")[2] == name][:1]
        if not close:
            section = spelled.rpartition(".")[0]
            siblings = {p.rpartition(".")[2]: p for p in known if p.rpartition(".")[0] == section}
            close = [siblings[n] for n in difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)]
        if close:
            return self._error(place, f"is unknown. Did you mean {close[0]!r}?")
        return self._error(place, "is unknown. The reference page of changefeed files lists the keys")

    def _check_together(self, values: Mapping[str, Any]) -> None:
        checks = values.get("integrity.integrity-check-level") == "correctness"
        if checks and values.get("integrity.corruption-handle-level") != "error":
            raise self._error(
                "integrity.corruption-handle-level",
                "must be 'error' where integrity-check-level is 'correctness': a row with a wrong checksum never goes "
                "out. Add it; with mounter.on-undecodable = 'quarantine' such rows are put aside",
            )

    def _security(self, values: Mapping[str, Any]) -> Security:
        given = (values.get(f"security.{name}", "") for name in ("ca-path", "cert-path", "key-path"))
        try:
            return Security(*given)
        except UsageError as error:
            raise self._error("security", f"is not complete: {error}") from None

    def _keys_of(self, values: Mapping[str, Any]) -> KeyRange | None:
        for path in ("filter.key-prefix", "filter.key-pattern", "filter.value-pattern"):
            if path in values and not any(other.startswith("keys.") for other in values):
                raise self._error(
                    path, "is for keys, and the file captures tables. Add a section [keys], or take it out"
                )
        try:
            return keys_from(values)
        except UsageError as error:
            raise self._error("keys", f"is not right: {error}") from None

    def _dispatch(self, at: int, entry: Mapping[str, Any]) -> Dispatch:
        fields = _fields(entry)
        old = fields.pop("dispatcher", None)
        if old is not None:
            if "partition" in fields:
                place = f"sink.dispatchers[{at}]"
                raise self._error(place, "has both 'partition' and its old name 'dispatcher'. Keep one")
            fields["partition"] = old
        return Dispatch(**fields)

    def _error(self, place: str, what: str) -> ConfigError:
        line = self._lines.get(place)
        where = f"{self._name}, line {line}" if line else self._name
        end = "" if what.endswith((".", "?")) else "."
        return ConfigError(f"{where}: {place!r} {what}{end}")


def _join(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {path.rpartition(".")[2].replace("-", "_"): value for path, value in entry.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _has_long_number(value: Any) -> bool:
    """TOML allows numbers of any length in hex, Python shows none of thousands of digits, and states hold 64 bits."""
    if isinstance(value, list):
        return any(map(_has_long_number, value))
    if isinstance(value, Mapping):
        return any(map(_has_long_number, value.values()))
    return isinstance(value, int) and not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if len(repr(value)) < 80 else f"a {type(value).__name__}"


_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\- ]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*=")


def _lines_of_keys(text: str) -> Iterator[tuple[str, int]]:
    """(dotted path, line number) of sections and of keys at the beginning of a line; other ways of writing TOML have
    no line numbers, just paths."""
    section, counts = "", dict[str, int]()
    for at, line in enumerate(text.splitlines(), 1):
        header, assignment = _HEADER.match(line), _ASSIGNMENT.match(line)
        if header:
            section = header[2].replace(" ", "")
            if header[1] == "[[":
                counts[section] = counts.get(section, -1) + 1
                section = f"{section}[{counts[section]}]"
            yield section, at
        elif assignment:
            yield _join(section, assignment[1]), at
