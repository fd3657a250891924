"""A DDL as a message tells of it, in the form that sinks run."""

from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import DdlSeen
from tidemill.tidb.lexer import MalformedTextError, tokens
from tidemill.tidb.statements import is_create_like

# By the first words of a statement, where the protocol does not tell the kind. Others are run as they are.
_KINDS: dict[tuple[str, ...], ActionType] = {
    ("CREATE", "DATABASE"): ActionType.CREATE_SCHEMA,
    ("CREATE", "SCHEMA"): ActionType.CREATE_SCHEMA,
    ("DROP", "DATABASE"): ActionType.DROP_SCHEMA,
    ("DROP", "SCHEMA"): ActionType.DROP_SCHEMA,
    ("ALTER", "DATABASE"): ActionType.MODIFY_SCHEMA_CHARSET,
    ("ALTER", "SCHEMA"): ActionType.MODIFY_SCHEMA_CHARSET,
    ("CREATE", "TABLE"): ActionType.CREATE_TABLE,
    ("DROP", "TABLE"): ActionType.DROP_TABLE,
    ("TRUNCATE",): ActionType.TRUNCATE_TABLE,
    ("RENAME", "TABLE"): ActionType.RENAME_TABLE,
    ("CREATE", "VIEW"): ActionType.CREATE_VIEW,
    ("CREATE", "OR", "REPLACE"): ActionType.CREATE_VIEW,
    ("DROP", "VIEW"): ActionType.DROP_VIEW,
    ("CREATE", "INDEX"): ActionType.ADD_INDEX,
    ("CREATE", "UNIQUE"): ActionType.ADD_INDEX,
    ("DROP", "INDEX"): ActionType.DROP_INDEX,
}


def event_of(seen: DdlSeen, seq: int) -> DdlEvent:
    """``seq``: of the DDLs of one ts."""
    kind = seen.type if seen.type is not None else kind_of(seen.query)
    return DdlEvent(
        seen.ts,
        seen.ts,
        seq,
        kind,
        kind,
        seen.query,
        seen.schema,
        seen.table,
        None,
        is_like=is_create_like(seen.query),
    )


def kind_of(query: str) -> int:
    try:
        words = tuple(token.upper for token in tokens(query)[:3])
    except MalformedTextError:
        return int(ActionType.NONE)
    for length in (3, 2, 1):
        if words[:length] in _KINDS:
            return int(_KINDS[words[:length]])
    return int(ActionType.NONE)
