"""One step of a DDL job, whatever its kind: pure, so that every state can be asked "and then?"."""

from collections.abc import Callable, Mapping

from tidebox.sql.ddl import column_steps, index_steps, modify_steps, multi_steps, table_steps
from tidebox.sql.ddl.jobs import Change, Document, Documents, Moment, Reorg, Result
from tidemill.model.ddl import ActionType

_PLAIN: Mapping[int, Callable[[Document, Documents, Moment], Change]] = {
    ActionType.CREATE_SCHEMA: table_steps.create_schema,
    ActionType.DROP_SCHEMA: table_steps.drop_schema,
    ActionType.MODIFY_SCHEMA_CHARSET: table_steps.modify_schema_charset,
    ActionType.CREATE_TABLE: table_steps.create_table,
    ActionType.DROP_TABLE: table_steps.drop_table,
    ActionType.TRUNCATE_TABLE: table_steps.truncate_table,
    ActionType.RENAME_TABLE: table_steps.rename_table,
    ActionType.RENAME_TABLES: table_steps.rename_tables,
    ActionType.MODIFY_TABLE_COMMENT: table_steps.modify_comment,
    ActionType.MODIFY_TABLE_CHARSET: table_steps.modify_charset,
    ActionType.REBASE_AUTO_ID: table_steps.rebase_auto_id,
    ActionType.SET_DEFAULT_VALUE: table_steps.set_default_value,
    ActionType.RENAME_INDEX: table_steps.rename_index,
    ActionType.ALTER_INDEX_VISIBILITY: table_steps.alter_index_visibility,
    ActionType.ADD_COLUMN: column_steps.add_column,
    ActionType.DROP_COLUMN: column_steps.drop_column,
    ActionType.DROP_INDEX: index_steps.drop_index,
    ActionType.DROP_PRIMARY_KEY: index_steps.drop_index,
}
_FILLING: Mapping[int, Callable[[Document, Documents, Moment, Result | None], Change | Reorg]] = {
    ActionType.ADD_INDEX: index_steps.add_index,
    ActionType.ADD_PRIMARY_KEY: index_steps.add_index,
    ActionType.MODIFY_COLUMN: modify_steps.modify_column,
}


def step(job: Document, documents: Documents, moment: Moment, result: Result | None = None) -> Change | Reorg:
    """The next thing to do for ``job``: a change of the schema, or rows to go through first, whose ``result`` is
    then given to the same step again."""
    if job["type"] == ActionType.MULTI_SCHEMA_CHANGE:
        return multi_steps.multi_schema_change(job, documents, moment, result, step)
    if job["type"] in _PLAIN:
        return _PLAIN[job["type"]](job, documents, moment)
    return _FILLING[job["type"]](job, documents, moment, result)
