"""What a real TiDB did, through schema store, mounter and encoder: Avro that a stranger reads as the rows they were."""

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from tests.flow.encoder.test_histories import NAMES, batches
from tests.histories import load
from tidemill.flow.encoder import Avro
from tidemill.flow.encoder.names import sanitized
from tidemill.flow.encoder.schema_registry import forget
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnInfo
from tidemill.model.table import ColumnType as T
from tidemill.testing.schema_registry import StandInRegistry


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    forget()
    with StandInRegistry() as server:
        yield server
    forget()


def plainly(column: ColumnInfo, value: Any) -> Any:
    """A value of a row as readers of Avro see it, by the shortest way."""
    if value is None:
        return None
    match column.type:
        case T.ENUM:
            return ("", *column.elems)[value]
        case T.SET:
            return ",".join(elem for bit, elem in enumerate(column.elems) if value >> bit & 1)
        case T.BIT:
            return value.to_bytes(max(1, -(-value.bit_length() // 8)), "big")
        case T.NEWDECIMAL:
            return Decimal(value)
        case T.LONGLONG:
            return value - (1 << 64) if value >= 1 << 63 else value
    return value


def expected(rows: RowBatch) -> list[tuple[Any, Any]]:
    columns = rows.table.stored_columns
    keys = {column.offset for column in rows.table.handle_key}
    new, old = iter(rows.new.to_pylist()), iter(rows.old.to_pylist())
    found = []
    for op in rows.op.tolist():
        before = next(old) if op != 1 else None
        after = next(new) if op != 3 else None
        image = before if after is None else after
        assert image is not None
        values = {sanitized(c.name): plainly(c, image[c.name]) for c in columns}
        key = {sanitized(c.name): values[sanitized(c.name)] for c in columns if c.offset in keys}
        found.append((key or None, None if after is None else values))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_read_back(name: str, registry: StandInRegistry) -> None:
    seen = 0
    for rows, _ in batches(load(name)):
        topic = f"{rows.table.full_name}.{rows.table.version_ts}"
        encoded = Avro(registry.uri, topic=topic).encoder(0).encode(rows)
        keys = encoded.message_keys() or [b""] * len(rows)
        found = [
            (read(registry, key), read(registry, value)) for key, value in zip(keys, encoded.messages(), strict=True)
        ]
        assert found == expected(rows)
        seen += len(found)
    assert seen > 140


def read(registry: StandInRegistry, message: bytes) -> Any:
    if not message:
        return None
    schema = json.loads(registry.texts[int.from_bytes(message[1:5])])
    body = io.BytesIO(message[5:])
    found = fastavro.schemaless_reader(body, schema, None)
    assert body.read() == b""
    return found
