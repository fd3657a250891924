"""Steps of ADD and DROP INDEX, and of primary keys that are no handles.

add:   delete-only → write-only → write-reorganization, rows are filled in → public
drop:  write-only → delete-only → delete-reorganization → gone
back:  delete-only → delete-reorganization → gone, when rows are in the way of an index that was to come
"""

from tidebox.sql.ddl.columns import PRIMARY, build_index, ci, flag_columns, unflag_columns
from tidebox.sql.ddl.jobs import (
    STRICT_SQL_MODE,
    Change,
    CheckNotNull,
    Document,
    Documents,
    Done,
    Failed,
    FillIndexes,
    Moment,
    Reorg,
    Result,
    diff_of,
    finish_with_table,
    finish_without_change,
    roll_back,
    running,
    touch,
)
from tidebox.sql.ddl.refusals import no_index
from tidebox.sql.parse.statements import KeyDef, KeyKind, KeyPart
from tidebox.sql.types import NO_DEFAULT_FLAG, PREVENT_NULL_FLAG
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.ddl import ActionType
from tidemill.model.table import ColumnFlag
from tidemill.tidb.documents import JobState, SchemaState

_INDEX_TYPES = {0: None, 1: "BTREE", 2: "HASH", 3: "RTREE"}
_GOING = {
    SchemaState.PUBLIC: SchemaState.WRITE_ONLY,
    SchemaState.WRITE_ONLY: SchemaState.DELETE_ONLY,
    SchemaState.DELETE_ONLY: SchemaState.DELETE_REORG,
    SchemaState.DELETE_REORG: SchemaState.NONE,
}


def index_args(key: KeyDef, name: str) -> Document:
    """The arguments of ADD INDEX, as a job keeps them; what is zero or empty is left out."""
    args: Document = {}
    if key.kind in (KeyKind.UNIQUE, KeyKind.PRIMARY):
        args["unique"] = True
    args["index_name"] = ci(name)
    args["index_part_specifications"] = [
        {
            "Column": {"Schema": ci(""), "Table": ci(""), "Name": ci(part.column)},
            "Length": -1 if part.length is None else part.length,
            "Desc": False,
            "Expr": None,
        }
        for part in key.parts
    ]
    options = _options(key)
    if options is not None:
        args["index_option"] = options
    if key.kind is KeyKind.PRIMARY:
        args["sql_mode"] = STRICT_SQL_MODE
        args["is_pk"] = True
    return args


def _options(key: KeyDef) -> Document | None:
    if not key.comment and not key.is_invisible and key.type is None and key.is_clustered is None:
        return None
    types = {None: 0, "BTREE": 1, "HASH": 2, "RTREE": 3}
    return {
        "KeyBlockSize": 0,
        "Tp": types[key.type],
        "Comment": key.comment,
        "ParserName": ci(""),
        "Visibility": 2 if key.is_invisible else 0,
        "PrimaryKeyTp": 0 if key.is_clustered is None else 1 if key.is_clustered else 2,
        "Global": False,
    }


def key_of(args: Document) -> KeyDef:
    """The key that ``index_args`` wrote down."""
    options = args.get("index_option") or {}
    kind = KeyKind.PRIMARY if args.get("is_pk") else KeyKind.UNIQUE if args.get("unique") else KeyKind.INDEX
    parts = tuple(
        KeyPart(p["Column"]["Name"]["O"], None if p["Length"] < 0 else p["Length"])
        for p in args["index_part_specifications"]
    )
    return KeyDef(
        kind,
        args["index_name"]["O"],
        parts,
        comment=options.get("Comment", ""),
        is_invisible=options.get("Visibility") == 2,
        type=_INDEX_TYPES[options.get("Tp", 0)],
    )


# Adding


def add_index(job: Document, documents: Documents, moment: Moment, result: Result | None) -> Change | Reorg:
    table = documents.table(job["schema_id"], job["table_id"])
    if job["state"] == JobState.ROLLING_BACK:
        return _roll_back(running(job, moment), table, moment)
    args = job["raw_args"]["index_args"][0]
    index = find_index(table, args["index_name"]["L"])
    if index is not None and index["state"] == SchemaState.WRITE_REORG:
        return _after_fill(job, table, index, moment, result)
    job = running(job, moment)
    if index is not None and index["state"] == SchemaState.PUBLIC:
        if args.get("if_not_exist"):
            finish_without_change(job)
            return Change(job, None)
        raise sql_error(Errno.DUP_KEYNAME, args["index_name"]["O"])
    if index is None:
        table["max_idx_id"] += 1
        index = build_index(
            table["name"]["O"],
            table["cols"],
            key_of(args),
            args["index_name"]["O"],
            table["max_idx_id"],
            int(SchemaState.DELETE_ONLY),
        )
        table["index_info"] = [*(table["index_info"] or ()), index]
        job["reorg_meta"]["reorg_tp"] = 1
        return _changed(job, touch(table, moment), SchemaState.DELETE_ONLY)
    is_ready = index["state"] == SchemaState.WRITE_ONLY
    state = SchemaState.WRITE_REORG if is_ready else SchemaState.WRITE_ONLY
    index["state"] = int(state)
    if index["is_primary"] and not is_ready:
        for column in _nullable(table, index):
            column["type"]["Flag"] |= PREVENT_NULL_FLAG
    return _changed(job, touch(table, moment), state)


def _nullable(table: Document, index: Document) -> list[Document]:
    columns = (table["cols"][part["offset"]] for part in index["idx_cols"])
    return [c for c in columns if not c["type"]["Flag"] & ColumnFlag.NOT_NULL]


def _after_fill(
    job: Document, table: Document, index: Document, moment: Moment, result: Result | None
) -> Change | Reorg:
    """In write-reorganization: fill in first, and then either be public or go back."""
    if job["snapshot_ver"] == 0:
        # From here on every writer writes the index: what is older than this ts is to be filled in.
        job = running(job, moment)
        job["snapshot_ver"] = moment.start_ts
        return Change(job, None)
    match result:
        case None:
            nullable = _nullable(table, index)
            if index["is_primary"] and nullable and not job["row_count"]:
                return CheckNotNull(job["schema_id"], job["table_id"], nullable[0]["id"])
            return FillIndexes(job["schema_id"], job["table_id"], (index["id"],))
        case Failed(number, message):
            return start_roll_back(running(job, moment), table, index, moment, number, message)
        case Done(rows):
            job = running(job, moment)
            job["row_count"] = rows
            index["state"] = int(SchemaState.PUBLIC)
            flag_columns(table["cols"], index)
            if index["is_primary"]:
                _forbid_nulls(table, index)
            job["raw_args"] = {"index_args": [_finished(index["id"])]}
            finish_with_table(job, SchemaState.PUBLIC, moment.version, touch(table, moment))
            return Change(job, diff_of(job), tables=((job["schema_id"], table),))


def _forbid_nulls(table: Document, index: Document) -> None:
    for part in index["idx_cols"]:
        column = table["cols"][part["offset"]]
        kind = column["type"]
        if not kind["Flag"] & ColumnFlag.NOT_NULL and column["default"] is None:
            kind["Flag"] |= NO_DEFAULT_FLAG
        kind["Flag"] = (kind["Flag"] | int(ColumnFlag.NOT_NULL)) & ~PREVENT_NULL_FLAG


def _finished(index_id: int) -> Document:
    return {"index_name": ci(""), "index_part_specifications": None, "index_id": index_id}


# Going back


def start_roll_back(
    job: Document, table: Document, index: Document, moment: Moment, number: int, message: str
) -> Change:
    roll_back(job, number, message)
    # What the key was made of is needed no more, and is not kept.
    job["raw_args"] = {"index_args": [{"index_name": dict(index["idx_name"]), "index_part_specifications": None}]}
    index["state"] = int(SchemaState.DELETE_ONLY)
    for part in index["idx_cols"]:
        table["cols"][part["offset"]]["type"]["Flag"] &= ~PREVENT_NULL_FLAG
    return _changed(job, touch(table, moment), SchemaState.DELETE_ONLY)


def _roll_back(job: Document, table: Document, moment: Moment) -> Change:
    args = job["raw_args"]["index_args"][0]
    index = find_index(table, args["index_name"]["L"])
    if index is None:
        job.update(state=int(JobState.ROLLBACK_DONE), schema_state=int(SchemaState.NONE))
        return Change(job, None)
    state = _GOING.get(SchemaState(index["state"]), SchemaState.DELETE_ONLY)
    index["state"] = int(state)
    for part in index["idx_cols"]:
        table["cols"][part["offset"]]["type"]["Flag"] &= ~PREVENT_NULL_FLAG
    if state is not SchemaState.NONE:
        return _changed(job, touch(table, moment), state)
    table["index_info"] = [i for i in table["index_info"] if i is not index]
    job["raw_args"] = {"index_args": [_finished(index["id"])]}
    finish_with_table(job, state, moment.version, touch(table, moment))
    job["state"] = int(JobState.ROLLBACK_DONE)
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


# Dropping


def drop_index(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    args = job["raw_args"]["index_args"][0]
    table = documents.table(job["schema_id"], job["table_id"])
    name = PRIMARY.lower() if job["type"] == ActionType.DROP_PRIMARY_KEY else args["index_name"]["L"]
    index = find_index(table, name)
    if index is None:
        if args.get("if_exist"):
            finish_without_change(job)
            return Change(job, None)
        raise no_index(args["index_name"]["O"])
    state = _GOING[SchemaState(index["state"])]
    index["state"] = int(state)
    if state is not SchemaState.NONE:
        return _changed(job, touch(table, moment), state)
    table["index_info"] = [i for i in table["index_info"] if i is not index]
    unflag_columns(table["cols"], table["index_info"], index)
    args["index_id"] = index["id"]
    finish_with_table(job, state, moment.version, touch(table, moment))
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


def find_index(table: Document, name: str) -> Document | None:
    """By its name in lower case."""
    return next((i for i in table["index_info"] or () if i["idx_name"]["L"] == name), None)


def _changed(job: Document, table: Document, state: SchemaState) -> Change:
    job["schema_state"] = int(state)
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))
