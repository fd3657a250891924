"""Avro schemas of keys and rows, read: which columns there are, and how each is written."""

from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from tidemill.flow.reader import type_words
from tidemill.flow.reader.debezium_columns import elements
from tidemill.flow.reader.shape import UnclearError
from tidemill.flow.reader.tables import ColumnSeen
from tidemill.model.table import ColumnType

LONG, FLOAT, DOUBLE, BYTES, BOOLEAN = range(5)  # how a field is written
_FORMS = {
    "int": LONG,
    "long": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "string": BYTES,
    "bytes": BYTES,
    "boolean": BOOLEAN,
}
_WORDS = {"TEXT": "text", "BLOB": "blob", "TIDBVECTORFLOAT32": "vector"}
_FIRST_OF_EXTENSION = "_tidb_op"


class Schemas(Protocol):
    """A schema registry."""

    def schema(self, number: int) -> str:
        """The schema of this number, as JSON. Raises LookupError if there is none."""


class CachedSchemas:
    """Asks a registry once for each schema: what a number means never changes."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._known: dict[int, str] = {}

    def schema(self, number: int) -> str:
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._schemas.schema(number)
        return known


@dataclass(frozen=True, slots=True)
class Field:
    form: int
    null_branch: int  # of its union; -1: it is none
    scale: int = -1  # of a decimal in bytes; -1: it is none


@dataclass(frozen=True, slots=True)
class Record:
    schema: str
    table: str
    fields: tuple[Field, ...]  # all of them, in order
    names: tuple[str, ...]
    columns: tuple[ColumnSeen, ...]  # of the first fields; the rest is TiDB's extension


def read_record(text: str) -> Record:
    """Raises UnclearError, or one of Python's own, for a schema that is none of a table."""
    document = orjson.loads(text)
    if document["type"] != "record":
        raise UnclearError("its schema is no record")
    fields, columns, is_column = [], [], True
    for each in document["fields"]:
        is_column = is_column and each["name"] != _FIRST_OF_EXTENSION
        kind, null_branch = _branches(each["type"])
        logical = kind.get("logicalType") == "decimal"
        fields.append(Field(_FORMS[kind["type"]], null_branch, int(kind["scale"]) if logical else -1))
        if is_column:
            columns.append(_column(each["name"], kind, null_branch >= 0))
    namespace = str(document["namespace"])
    names = tuple(str(each["name"]) for each in document["fields"])
    return Record(namespace.partition(".")[2] or namespace, str(document["name"]), tuple(fields), names, tuple(columns))


def _branches(kind: Any) -> tuple[dict[str, Any], int]:
    """What is written, and which branch of its union is null."""
    if isinstance(kind, str):
        return {"type": kind}, -1
    if isinstance(kind, dict):
        return kind, -1
    null_branch = kind.index("null")
    if len(kind) != 2:
        raise UnclearError("a field is a union of several types")
    return _branches(kind[1 - null_branch])[0], null_branch


def _column(name: str, kind: dict[str, Any], is_nullable: bool) -> ColumnSeen:
    parameters = kind.get("connect.parameters") or {}
    word = str(parameters["tidb_type"])
    seen = type_words.column_seen(name, _WORDS.get(word.upper(), word.lower()))
    listed = seen.type in (ColumnType.ENUM, ColumnType.SET)
    return ColumnSeen(
        name,
        seen.type,
        is_binary=seen.is_binary,
        is_unsigned=seen.is_unsigned,
        is_nullable=is_nullable,
        flen=int(parameters.get("length", kind.get("precision", -1))),
        decimal=int(kind.get("scale", -1)),
        elems=elements(str(parameters.get("allowed", ""))) if listed else (),
    )
