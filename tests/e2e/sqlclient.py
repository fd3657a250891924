"""A MySQL client of the embedded TiDB, and its rows in the words of the recorded marks."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymysql
from pymysql.constants import FIELD_TYPE

_REALS = {FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE}
_TEXTS = {
    FIELD_TYPE.STRING,
    FIELD_TYPE.VAR_STRING,
    FIELD_TYPE.VARCHAR,
    *range(FIELD_TYPE.TINY_BLOB, FIELD_TYPE.BLOB + 1),
}
_BINARY = 63  # the collation of bytes
_ENUM_OR_SET = 256 | 2048


class Client:
    """Connected until ``close``. Values come back as the protocol's text has them, without a client's conversions."""

    def __init__(self, address: str, database: str = "", **options: Any) -> None:
        host, port = address.split(":")
        self.connection = pymysql.connect(
            host=host, port=int(port), user="root", database=database or None, autocommit=True, conv={}, **options
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.connection.open:
            self.connection.close()

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def shown(self, statement: str) -> list[list[object]]:
        """The rows as marks have them: texts, bytes in base64, numbers for bits; floating point as numbers."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            fields = cursor._result.fields
            return [[_shown(v, f) for v, f in zip(row, fields, strict=True)] for row in cursor.fetchall()]

    def table(self, schema: str, table: str, columns: Sequence[str]) -> list[list[object]]:
        names = ", ".join(f"`{column.replace('`', '``')}`" for column in columns)
        return self.shown(f"select {names} from `{schema}`.`{table.replace('`', '``')}`")

    def assert_mark(self, mark: dict[str, Any]) -> None:
        """The table is what TiDB showed."""
        found = self.table(mark["schema"], mark["table"], mark["columns"])
        wanted = [[_expected(v, t) for v, t in zip(row, mark["types"], strict=True)] for row in mark["rows"]]
        assert sorted(map(_text, found)) == sorted(map(_text, wanted)), f"{mark['table']} at {mark['mark']}"


def _shown(value: Any, field: Any) -> object:
    if value is None:
        return None
    if field.type_code == FIELD_TYPE.BIT:
        return str(int.from_bytes(value, "big"))
    if field.type_code == FIELD_TYPE.YEAR:
        return str(int(value))  # the protocol's text of year 0 is 0000
    if field.type_code in _REALS:
        return _single(value) if field.type_code == FIELD_TYPE.FLOAT else float(value)
    if field.type_code in _TEXTS and field.charsetnr == _BINARY and not field.flags & _ENUM_OR_SET:
        return {"b64": base64.b64encode(value).decode()}
    return value.decode() if isinstance(value, bytes) else value


def _expected(value: Any, type_name: str) -> object:
    if value is None or not type_name.startswith(("float", "double")):
        return value
    return _single(value) if type_name.startswith("float") else float(value)


def _single(text: str) -> float:
    """A FLOAT; of one that it writes with an exponent, TiDB's text protocol has six digits."""
    number = float(np.float32(text))
    return number if number == 0 or 1e-15 <= abs(number) < 1e15 else float(f"{number:.5e}")


def _text(row: Sequence[object]) -> str:
    return json.dumps(row, sort_keys=True)
