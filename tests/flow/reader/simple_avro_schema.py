"""The schema of the simple protocol's messages in Avro, as TiCDC has it."""

from typing import Any

import fastavro

SPACE = "com.pingcap.simple.avro"


def record(called: str, /, **fields: Any) -> dict[str, Any]:
    found = [{"name": each, "type": kind} for each, kind in fields.items()]
    return {"type": "record", "name": called, "namespace": SPACE, "fields": found}


def maybe(kind: Any) -> list[Any]:
    return ["null", kind]


def enum(name: str, *words: str) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(words)}


VALUES = {
    "type": "map",
    "values": ["null", "long", "float", "double", "string", "bytes", "Timestamp", "UnsignedBigint"],
}
WORDS = ("CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY")
SCHEMA = fastavro.parse_schema(
    [
        record(
            "DataType", mysqlType="string", charset="string", collate="string", length="long", decimal=maybe("int"),
            elements=maybe({"type": "array", "items": "string"}), unsigned=maybe("boolean"), zerofill=maybe("boolean"),
        ),
        record("ColumnSchema", name="string", dataType="DataType", nullable="boolean", default=maybe("string")),
        record(
            "IndexSchema", name="string", unique="boolean", primary="boolean", nullable="boolean",
            columns={"type": "array", "items": "string"},
        ),
        record(
            "TableSchema", database="string", table="string", tableID="long", version="long",
            columns={"type": "array", "items": "ColumnSchema"}, indexes={"type": "array", "items": "IndexSchema"},
        ),
        record("Checksum", version="int", corrupted="boolean", current="long", previous="long"),
        record("Watermark", version="int", commitTs="long", buildTs="long"),
        record("Bootstrap", version="int", buildTs="long", tableSchema="TableSchema"),
        record(
            "DDL", version="int", type=enum("DDLType", *WORDS), sql="string", commitTs="long", buildTs="long",
            tableSchema=maybe("TableSchema"), preTableSchema=maybe("TableSchema"),
        ),
        record("Timestamp", location="string", value="string"),
        record("UnsignedBigint", value="long"),
        record(
            "DML", version="int", database="string", table="string", tableID="long",
            type=enum("DMLType", "INSERT", "UPDATE", "DELETE"), commitTs="long", buildTs="long", schemaVersion="long",
            claimCheckLocation=maybe("string"), handleKeyOnly=maybe("boolean"), checksum=maybe("Checksum"),
            data=maybe(VALUES), old=maybe(VALUES),
        ),
        record(
            "Message", type=enum("MessageType", "WATERMARK", "BOOTSTRAP", "DDL", "DML"),
            payload=["Watermark", "Bootstrap", "DDL", "DML"],
        ),
    ]
)  # fmt: skip
