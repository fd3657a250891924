"""Names of ours where a format allows few characters: Avro's records and fields, and what Debezium calls schemas."""

import re

_NOT_IN_NAME = re.compile("[^A-Za-z0-9_]")
_NOT_IN_TOPIC = re.compile("[^A-Za-z0-9_.]")


def sanitized(name: str) -> str:
    """Letters, digits and underscores, with no digit first: ``1-é`` becomes ``_1__``."""
    return ("_" if name[:1].isascii() and name[:1].isdigit() else "") + _NOT_IN_NAME.sub("_", name)


def sanitized_topic(name: str) -> str:
    """Dots and leading digits stay."""
    return _NOT_IN_TOPIC.sub("_", name)


def schema_name(cluster_id: str, schema: str, table: str) -> str:
    return f"{sanitized(cluster_id)}.{sanitized(schema)}.{sanitized_topic(table)}"


def allowed_elements(elems: tuple[str, ...]) -> str:
    """The elements of an ENUM, or a SET, in one text."""
    return ",".join(elem.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for elem in elems)
