"""Steps of ADD COLUMN and DROP COLUMN, and how columns change their places in a table's document.

add:   delete-only → write-only → write-reorganization → public, and at its place
drop:  write-only, and behind all others → delete-only → delete-reorganization → gone
"""

from datetime import UTC, datetime

from tidebox.sql.ddl.columns import find_column, unflag_columns
from tidebox.sql.ddl.defaults import origin_default
from tidebox.sql.ddl.jobs import (
    Change,
    Document,
    Documents,
    Moment,
    diff_of,
    finish_with_table,
    finish_without_change,
    running,
    touch,
)
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import ColumnFlag
from tidemill.tidb.documents import JobState, SchemaState

_COMING = {
    SchemaState.DELETE_ONLY: SchemaState.WRITE_ONLY,
    SchemaState.WRITE_ONLY: SchemaState.WRITE_REORG,
    SchemaState.WRITE_REORG: SchemaState.PUBLIC,
}
_GOING = {
    SchemaState.PUBLIC: SchemaState.WRITE_ONLY,
    SchemaState.WRITE_ONLY: SchemaState.DELETE_ONLY,
    SchemaState.DELETE_ONLY: SchemaState.DELETE_REORG,
    SchemaState.DELETE_REORG: SchemaState.NONE,
}
LAST, FIRST, AFTER = 0, 1, 2  # of a position


def add_column(job: Document, documents: Documents, moment: Moment) -> Change:
    if job["state"] == JobState.ROLLING_BACK:
        return _roll_back_addition(job, documents, moment)
    job = running(job, moment)
    args = job["raw_args"]
    table = documents.table(job["schema_id"], job["table_id"])
    column = find_column(table["cols"], args["column_info"]["name"]["L"])
    if column is not None and column["state"] == SchemaState.PUBLIC:
        if args.get("ignore_existence_err"):
            finish_without_change(job)
            return Change(job, None)
        raise sql_error(Errno.DUP_FIELDNAME, args["column_info"]["name"]["O"])
    if column is None:
        column = args["column_info"]
        table["max_col_id"] += 1
        column.update(id=table["max_col_id"], offset=len(table["cols"]), state=int(SchemaState.DELETE_ONLY))
        table["cols"].append(column)
        return _changed(job, touch(table, moment), SchemaState.DELETE_ONLY)
    state = _COMING[SchemaState(column["state"])]
    column["state"] = int(state)
    if state is not SchemaState.PUBLIC:
        return _changed(job, touch(table, moment), state)
    move_column(table, column, args.get("position"))
    finish_with_table(job, state, moment.version, touch(table, moment))
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


def _roll_back_addition(job: Document, documents: Documents, moment: Moment) -> Change:
    """A column that came half way goes the way of a dropped one, from delete-only on."""
    job = running(job, moment)
    table = documents.table(job["schema_id"], job["table_id"])
    column = find_column(table["cols"], job["raw_args"]["column_info"]["name"]["L"])
    if column is None:
        job.update(state=int(JobState.ROLLBACK_DONE), schema_state=int(SchemaState.NONE))
        return Change(job, None)
    state = _GOING.get(SchemaState(column["state"]), SchemaState.DELETE_ONLY)
    column["state"] = int(state)
    if state is not SchemaState.NONE:
        return _changed(job, touch(table, moment), state)
    remove_column(table, column)
    finish_with_table(job, state, moment.version, touch(table, moment))
    job["state"] = int(JobState.ROLLBACK_DONE)
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


def drop_column(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    args = job["raw_args"]
    table = documents.table(job["schema_id"], job["table_id"])
    column = find_column(table["cols"], args["column_info"]["name"]["L"])
    if column is None:
        if args.get("ignore_existence_err"):
            finish_without_change(job)
            return Change(job, None)
        raise sql_error(Errno.CANT_DROP_FIELD_OR_KEY, args["column_info"]["name"]["O"])
    state = _GOING[SchemaState(column["state"])]
    alone = [i for i in table["index_info"] or () if _is_alone(i, column)]
    for part in (column, *alone):
        part["state"] = int(state)
    if state is SchemaState.WRITE_ONLY:
        _prepare_to_go(table, column, moment)
    if state is not SchemaState.NONE:
        return _changed(job, touch(table, moment), state)
    if alone:
        table["index_info"] = [i for i in table["index_info"] if i not in alone]
        args["index_ids"] = [i["id"] for i in alone]
        for index in alone:
            unflag_columns(table["cols"], table["index_info"], index)
    remove_column(table, column)
    finish_with_table(job, state, moment.version, touch(table, moment))
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


def _is_alone(index: Document, column: Document) -> bool:
    """An index over this column only goes with it."""
    return len(index["idx_cols"]) == 1 and index["idx_cols"][0]["offset"] == column["offset"]


def _prepare_to_go(table: Document, column: Document, moment: Moment) -> None:
    """Behind all public columns, with a value for the rows that writers without it leave behind."""
    reorder(table, [c for c in table["cols"] if c is not column] + [column])
    if column["origin_default"] is None and column["type"]["Flag"] & ColumnFlag.NOT_NULL:
        now = datetime.fromtimestamp((moment.start_ts >> 18) / 1000, UTC)
        if not column["default_is_expr"]:
            column["origin_default"], column["origin_default_bit"] = origin_default(column, now, UTC)


def _changed(job: Document, table: Document, state: SchemaState) -> Change:
    job["schema_state"] = int(state)
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


# Places


def move_column(table: Document, column: Document, position: Document | None) -> None:
    """Put a column that has become public to its place: behind the last public one if none is given."""
    others = [c for c in table["cols"] if c is not column]
    public = [c for c in others if c["state"] == SchemaState.PUBLIC]
    tp = position["Tp"] if position else LAST
    if tp == FIRST:
        at = 0
    elif tp == AFTER and position is not None:
        after = find_column(others, position["RelativeColumn"]["Name"]["L"])
        if after is None:
            raise sql_error(Errno.BAD_FIELD_ERROR, position["RelativeColumn"]["Name"]["O"], table["name"]["O"])
        at = others.index(after) + 1
    else:
        at = len(public)
    reorder(table, [*others[:at], column, *others[at:]])


def remove_column(table: Document, column: Document) -> None:
    reorder(table, [c for c in table["cols"] if c is not column])


def reorder(table: Document, columns: list[Document]) -> None:
    """Give a table its columns in this order; indexes and followers find them again."""
    ids = [c["id"] for c in table["cols"]]
    places = {c["id"]: at for at, c in enumerate(columns)}
    for index in table["index_info"] or ():
        for part in index["idx_cols"]:
            part["offset"] = places.get(ids[part["offset"]], part["offset"])
    for column in columns:
        following = column["change_state_info"]
        if following is not None:
            at = places.get(ids[following["relative_col_offset"]])
            following["relative_col_offset"] = following["relative_col_offset"] if at is None else at
    for at, column in enumerate(columns):
        column["offset"] = at
    table["cols"] = columns
