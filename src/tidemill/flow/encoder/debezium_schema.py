"""The schemas that Debezium's messages carry beside their payload, as JSON."""

from tidemill.flow.encoder.json_text import plain
from tidemill.flow.encoder.names import sanitized


def row_key(name: str, fields: str) -> str:
    return f'{{"type":"struct","name":{plain(name + ".Key")},"optional":false,"fields":[{fields}]}}'


def row_value(name: str, fields: str) -> str:
    """``fields``: those of a row's columns, for both of its images."""
    value = plain(name + ".Value")
    images = ",".join(
        f'{{"type":"struct","optional":true,"name":{value},"field":"{image}","fields":[{fields}]}}'
        for image in ("before", "after")
    )
    return _envelope(name, images + ",")


def watermark_key(cluster_id: str) -> str:
    return row_key(f"{sanitized(cluster_id)}.watermark", "")


def watermark_value(cluster_id: str) -> str:
    return _envelope(f"{sanitized(cluster_id)}.watermark", "")


def _envelope(name: str, images: str) -> str:
    envelope = plain(name + ".Envelope")
    return (
        f'{{"type":"struct","optional":false,"name":{envelope},"version":1,"fields":[{images}{_SOURCE},'
        f"{_field('string', 'op')},{_field('int64', 'ts_ms', is_optional=True)},{_TRANSACTION}]}}"
    )


def _field(kind: str, name: str, *, is_optional: bool = False) -> str:
    return f'{{"type":"{kind}","optional":{plain(is_optional)},"field":"{name}"}}'


def _changed(name: str, kind: str, *, is_optional: bool = False) -> str:
    """The same in the order of the messages of DDLs."""
    return f'{{"field":"{name}","optional":{plain(is_optional)},"type":"{kind}"}}'


_SOURCE = (
    '{"type":"struct","fields":['
    + ",".join(
        (
            _field("string", "version"),
            _field("string", "connector"),
            _field("string", "name"),
            _field("int64", "ts_ms"),
            '{"type":"string","optional":true,"name":"io.debezium.data.Enum","version":1,'
            '"parameters":{"allowed":"true,last,false,incremental"},"default":"false","field":"snapshot"}',
            _field("string", "db"),
            _field("string", "sequence", is_optional=True),
            _field("string", "table", is_optional=True),
            _field("int64", "server_id"),
            _field("string", "gtid", is_optional=True),
            _field("string", "file"),
            _field("int64", "pos"),
            _field("int32", "row"),
            _field("int64", "thread", is_optional=True),
            _field("string", "query", is_optional=True),
        )
    )
    + '],"optional":false,"name":"io.debezium.connector.mysql.Source","field":"source"}'
)
_TRANSACTION = (
    '{"type":"struct","fields":['
    + ",".join((_field("string", "id"), _field("int64", "total_order"), _field("int64", "data_collection_order")))
    + '],"optional":true,"name":"event.block","version":1,"field":"transaction"}'
)
_COLUMN = ",".join(
    (
        _changed("name", "string"),
        _changed("jdbcType", "int32"),
        _changed("nativeType", "int32", is_optional=True),
        _changed("typeName", "string"),
        _changed("typeExpression", "string", is_optional=True),
        _changed("charsetName", "string", is_optional=True),
        _changed("length", "int32", is_optional=True),
        _changed("scale", "int32", is_optional=True),
        _changed("position", "int32"),
        _changed("optional", "boolean", is_optional=True),
        _changed("autoIncremented", "boolean", is_optional=True),
        _changed("generated", "boolean", is_optional=True),
        _changed("comment", "string", is_optional=True),
        _changed("defaultValueExpression", "string", is_optional=True),
        '{"field":"enumValues","optional":true,"type":"array","items":{"type":"string","optional":false}}',
    )
)
_TABLE = ",".join(
    (
        _changed("defaultCharsetName", "string", is_optional=True),
        '{"field":"primaryKeyColumnNames","optional":true,"type":"array","items":{"type":"string","optional":false}}',
        '{"field":"columns","optional":false,"type":"array","items":{"name":"io.debezium.connector.schema.Column",'
        f'"optional":false,"type":"struct","version":1,"fields":[{_COLUMN}]}}}}',
        _changed("comment", "string", is_optional=True),
    )
)
_CHANGES = (
    '{"field":"tableChanges","optional":false,"type":"array","items":{"name":"io.debezium.connector.schema.Change",'
    f'"optional":false,"type":"struct","version":1,"fields":[{_changed("type", "string")},{_changed("id", "string")},'
    '{"field":"table","optional":true,"type":"struct","name":"io.debezium.connector.schema.Table","version":1,'
    f'"fields":[{_TABLE}]}}]}}}}'
)
DDL_KEY = (
    '{"type":"struct","name":"io.debezium.connector.mysql.SchemaChangeKey","optional":false,"version":1,'
    f'"fields":[{_changed("databaseName", "string")}]}}'
)
DDL_VALUE = (
    '{"optional":false,"type":"struct","version":1,"name":"io.debezium.connector.mysql.SchemaChangeValue",'
    f'"fields":[{_SOURCE},{_changed("ts_ms", "int64")},'
    f"{_changed('databaseName', 'string', is_optional=True)},{_changed('schemaName', 'string', is_optional=True)},"
    f"{_changed('ddl', 'string', is_optional=True)},{_CHANGES}]}}"
)
