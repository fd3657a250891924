"""Steps of MODIFY and CHANGE COLUMN.

    same bytes       the column is replaced in place; before NOT NULL comes the rows are looked at
    other bytes      a changing column follows the old one: delete-only → write-only → write-reorganization,
                     rows are filled in → they swap, and the old one follows the new → it goes

After the swap sessions read and write the new column; the old one is written once more (write-only), so that
a session one version behind still finds it, then it is only deleted, then it is gone and the job is done.
"""

import copy
from datetime import UTC, datetime

from tidebox.sql.ddl.column_steps import move_column, remove_column, reorder
from tidebox.sql.ddl.columns import ci, find_column
from tidebox.sql.ddl.defaults import origin_default
from tidebox.sql.ddl.jobs import (
    Change,
    CheckNotNull,
    Document,
    Documents,
    Done,
    Failed,
    FillColumn,
    Moment,
    Reorg,
    Result,
    diff_of,
    finish_with_table,
    roll_back,
    running,
    touch,
    zone_of,
)
from tidebox.sql.types import PREVENT_NULL_FLAG, UNSPECIFIED, FieldType, is_text
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import INTEGER_TYPES, ColumnFlag, ColumnType
from tidemill.tidb.documents import JobState, SchemaState

CHANGING_COLUMN = "_Col$_"
CHANGING_INDEX = "_Idx$_"
TOMBSTONE = "_Tombstone$_"
_DEFAULT_LENGTHS = {
    ColumnType.TINY: 4,
    ColumnType.SHORT: 6,
    ColumnType.INT24: 9,
    ColumnType.LONG: 11,
    ColumnType.LONGLONG: 20,
}
_FLOATS = (ColumnType.FLOAT, ColumnType.DOUBLE)
_COMING = {
    SchemaState.DELETE_ONLY: SchemaState.WRITE_ONLY,
    SchemaState.WRITE_ONLY: SchemaState.WRITE_REORG,
}


def needs_rewrite(old: FieldType, new: FieldType) -> bool:
    """Whether cells of the old type are none of the new: the rows must be written again."""
    is_sign_changed = bool((old["Flag"] ^ new["Flag"]) & ColumnFlag.UNSIGNED)
    before, after = ColumnType(old["Tp"]), ColumnType(new["Tp"])
    is_cut = bool(new["Flen"] > 0 and (new["Flen"] < old["Flen"] or new["Decimal"] < old["Decimal"]))
    if before is after and is_text(old) and (old["Charset"] == "binary") != (new["Charset"] == "binary"):
        return True
    if before is after:
        return _differs(before, old, new, is_cut, is_sign_changed)
    if {before, after} == {ColumnType.STRING, ColumnType.VARCHAR}:
        return True
    if is_text(old) and is_text(new):
        return is_cut or (old["Charset"] == "binary") != (new["Charset"] == "binary")
    if before in INTEGER_TYPES and after in INTEGER_TYPES:
        return _DEFAULT_LENGTHS[after] < _DEFAULT_LENGTHS[before] or is_sign_changed
    if before in _FLOATS and after in _FLOATS:
        return is_cut or is_sign_changed
    return True


def _differs(kind: ColumnType, old: FieldType, new: FieldType, is_cut: bool, is_sign_changed: bool) -> bool:
    if kind is ColumnType.NEWDECIMAL:
        return (old["Flen"], old["Decimal"]) != (new["Flen"], new["Decimal"]) or is_sign_changed
    if kind in (ColumnType.ENUM, ColumnType.SET):
        before, after = old["Elems"] or [], new["Elems"] or []
        return bool(after[: len(before)] != before)
    if kind in INTEGER_TYPES:
        return is_sign_changed
    if kind is ColumnType.STRING and old["Charset"] == "binary":
        return bool(old["Flen"] != new["Flen"])  # BINARY is filled up with zeros to its length
    if kind is ColumnType.VECTOR:
        return bool(new["Flen"] != UNSPECIFIED and new["Flen"] != old["Flen"])
    return is_cut or is_sign_changed


def modify_column(job: Document, documents: Documents, moment: Moment, result: Result | None) -> Change | Reorg:
    table = documents.table(job["schema_id"], job["table_id"])
    args = job["raw_args"]
    if job["state"] == JobState.ROLLING_BACK:
        return _roll_back(running(job, moment), table, moment)
    if "changing_column" in args:
        return _reorganize(job, table, moment, result)
    old = find_column(table["cols"], args["old_column_name"]["L"])
    if old is None:
        raise sql_error(Errno.BAD_FIELD_ERROR, args["old_column_name"]["O"], table["name"]["O"])
    if needs_rewrite(old["type"], args["column"]["type"]):
        return _start(running(job, moment), table, old, moment)
    return _replace(job, table, old, moment, result)


def is_replacement(table: Document, args: Document) -> bool:
    """Whether nothing is left to do but to replace the column in place."""
    old = find_column(table["cols"], args["old_column_name"]["L"])
    if "changing_column" in args or old is None or needs_rewrite(old["type"], args["column"]["type"]):
        return False
    return not _becomes_not_null(old, args["column"])


# In place


def _replace(job: Document, table: Document, old: Document, moment: Moment, result: Result | None) -> Change | Reorg:
    if _becomes_not_null(old, job["raw_args"]["column"]):
        if not old["type"]["Flag"] & PREVENT_NULL_FLAG:
            # No session may write a NULL any more; then those that are there are looked for.
            job = running(job, moment)
            old["type"]["Flag"] |= PREVENT_NULL_FLAG
            return Change(job, diff_of(job), tables=((job["schema_id"], touch(table, moment)),))
        match result:
            case None:
                return CheckNotNull(
                    job["schema_id"], job["table_id"], old["id"], job["raw_args"]["column"]["name"]["O"]
                )
            case Failed(number, message):
                job = running(job, moment)
                roll_back(job, number, message)
                return Change(job, None)
    job = running(job, moment)
    args = job["raw_args"]
    new = args["column"]
    new.update(id=old["id"], offset=old["offset"], state=int(SchemaState.PUBLIC))
    table["cols"][old["offset"]] = new
    _rename_parts(table, old["offset"], new["name"])
    if args.get("position") and args["position"]["Tp"]:
        move_column(table, new, args["position"])
    job["raw_args"] = {"old_column_name": ci("")}
    finish_with_table(job, SchemaState.PUBLIC, moment.version, touch(table, moment))
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


def _becomes_not_null(old: Document, new: Document) -> bool:
    return bool(not old["type"]["Flag"] & ColumnFlag.NOT_NULL and new["type"]["Flag"] & ColumnFlag.NOT_NULL)


def _rename_parts(table: Document, offset: int, name: Document) -> None:
    for index in table["index_info"] or ():
        for part in index["idx_cols"]:
            if part["offset"] == offset:
                part["name"] = dict(name)


# By a changing column


def _start(job: Document, table: Document, old: Document, moment: Moment) -> Change:
    """The changing column and its indexes come into being, delete-only."""
    new = job["raw_args"]["column"]
    if _becomes_not_null(old, new):
        old["type"]["Flag"] |= PREVENT_NULL_FLAG
    changing = copy.deepcopy(new)
    table["max_col_id"] += 1
    changing.update(
        id=table["max_col_id"],
        name=ci(_free_name(CHANGING_COLUMN, old["name"]["O"], [c["name"]["L"] for c in table["cols"]])),
        offset=len(table["cols"]),
        state=int(SchemaState.DELETE_ONLY),
        change_state_info={"relative_col_offset": old["offset"]},
    )
    now = datetime.fromtimestamp((moment.start_ts >> 18) / 1000, UTC)
    if not changing["default_is_expr"]:
        changing["origin_default"], changing["origin_default_bit"] = origin_default(changing, now, UTC)
    shadows = [_shadow(table, index, old, changing) for index in _indexes_over(table, old["offset"])]
    table["cols"].append(changing)
    if shadows:
        table["index_info"] = [*table["index_info"], *shadows]
    job["raw_args"]["changing_column"] = copy.deepcopy(changing)
    return _changed(job, touch(table, moment), SchemaState.DELETE_ONLY)


def _free_name(prefix: str, name: str, taken: list[str]) -> str:
    number = 0
    while f"{prefix}{name}_{number}".lower() in taken:
        number += 1
    return f"{prefix}{name}_{number}"


def _indexes_over(table: Document, offset: int) -> list[Document]:
    return [i for i in table["index_info"] or () if any(p["offset"] == offset for p in i["idx_cols"])]


def _shadow(table: Document, index: Document, old: Document, changing: Document) -> Document:
    shadow = copy.deepcopy(index)
    table["max_idx_id"] += 1
    taken = [i["idx_name"]["L"] for i in table["index_info"]]
    shadow.update(
        id=table["max_idx_id"],
        idx_name=ci(_free_name(CHANGING_INDEX, index["idx_name"]["O"], taken)),
        state=int(SchemaState.DELETE_ONLY),
    )
    for part in shadow["idx_cols"]:
        if part["offset"] == old["offset"]:
            part.update(name=dict(changing["name"]), offset=changing["offset"])
            if part["length"] != UNSPECIFIED and not is_text(changing["type"]):
                part["length"] = UNSPECIFIED
    return shadow


def _reorganize(job: Document, table: Document, moment: Moment, result: Result | None) -> Change | Reorg:
    changing = _by_id(table, job["raw_args"]["changing_column"]["id"])
    if changing["state"] == SchemaState.PUBLIC:
        return _remove_old(running(job, moment), table, changing, moment)
    shadows = _indexes_over(table, changing["offset"])
    if changing["state"] != SchemaState.WRITE_REORG:
        job = running(job, moment)
        state = _COMING[SchemaState(changing["state"])]
        for part in (changing, *shadows):
            part["state"] = int(state)
        return _changed(job, touch(table, moment), state)
    if job["snapshot_ver"] == 0:
        job = running(job, moment)
        job["snapshot_ver"] = moment.start_ts
        job["reorg_meta"]["reorg_tp"] = 1
        return Change(job, None)
    match result:
        case None:
            ids = tuple(s["id"] for s in shadows)
            name = job["raw_args"]["column"]["name"]["O"]
            return FillColumn(job["schema_id"], job["table_id"], changing["id"], ids, name, zone_of(job))
        case Failed(number, message):
            job = running(job, moment)
            roll_back(job, number, message)
            return Change(job, None)
        case Done(rows):
            job = running(job, moment)
            job["row_count"] = rows
            _swap(job, table, changing, shadows)
            return _changed(job, touch(table, moment), SchemaState.PUBLIC)


def _by_id(table: Document, column_id: int) -> Document:
    found: Document = next(c for c in table["cols"] if c["id"] == column_id)
    return found


def _swap(job: Document, table: Document, changing: Document, shadows: list[Document]) -> None:
    """From here on the changing column is the column, and the old one follows it, write-only."""
    args = job["raw_args"]
    old = table["cols"][changing["change_state_info"]["relative_col_offset"]]
    pairs = [(_shadowed(table, shadow, old, changing), shadow) for shadow in shadows]
    changing.update(
        state=int(SchemaState.PUBLIC),
        name=dict(args["column"]["name"]),
        change_state_info=None,
        origin_default=None,
        origin_default_bit=None,
    )
    old.update(state=int(SchemaState.WRITE_ONLY), name=ci(TOMBSTONE + old["name"]["O"]))
    old["type"]["Flag"] &= ~PREVENT_NULL_FLAG
    at = old["offset"]
    others = [c for c in table["cols"] if c is not changing and c is not old]
    reorder(table, [*others[:at], changing, *others[at:], old])
    if args.get("position") and args["position"]["Tp"]:
        move_column(table, changing, args["position"])
    old["change_state_info"] = {"relative_col_offset": changing["offset"]}
    for index, shadow in pairs:
        _swap_indexes(table, index, shadow)
    _rename_parts(table, changing["offset"], changing["name"])
    _rename_parts(table, old["offset"], old["name"])


def _shadowed(table: Document, shadow: Document, old: Document, changing: Document) -> Document:
    """The index that a shadow stands for: over the same columns, with the old one for the changing one."""
    offsets = [old["offset"] if p["offset"] == changing["offset"] else p["offset"] for p in shadow["idx_cols"]]
    prefix = shadow["idx_name"]["O"].removeprefix(CHANGING_INDEX).rpartition("_")[0].lower()
    candidates = [i for i in table["index_info"] if [p["offset"] for p in i["idx_cols"]] == offsets]
    found: Document = next((i for i in candidates if i["idx_name"]["L"] == prefix), candidates[0])
    return found


def _swap_indexes(table: Document, index: Document, shadow: Document) -> None:
    shadow.update(state=int(SchemaState.PUBLIC), idx_name=dict(index["idx_name"]))
    index.update(state=int(SchemaState.WRITE_ONLY), idx_name=ci(TOMBSTONE + index["idx_name"]["O"]))
    places = table["index_info"]
    at = places.index(index)
    rest = [i for i in places if i is not shadow and i is not index]
    table["index_info"] = [*rest[:at], shadow, *rest[at:], index]


def _remove_old(job: Document, table: Document, changing: Document, moment: Moment) -> Change:
    old = next(
        c
        for c in table["cols"]
        if c["change_state_info"] is not None and c["change_state_info"]["relative_col_offset"] == changing["offset"]
    )
    indexes = _indexes_over(table, old["offset"])
    if old["state"] == SchemaState.WRITE_ONLY:
        for part in (old, *indexes):
            part["state"] = int(SchemaState.DELETE_ONLY)
        return _changed(job, touch(table, moment), SchemaState.PUBLIC)
    if indexes:
        table["index_info"] = [i for i in table["index_info"] if i not in indexes]
        job["raw_args"]["index_ids"] = [i["id"] for i in indexes]
    remove_column(table, old)
    finish_with_table(job, SchemaState.PUBLIC, moment.version, touch(table, moment))
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


# Going back


def _roll_back(job: Document, table: Document, moment: Moment) -> Change:
    """The changing column and its indexes leave; NULLs are welcome again."""
    args = job["raw_args"]
    old = find_column(table["cols"], args["old_column_name"]["L"])
    if old is not None:
        old["type"]["Flag"] &= ~PREVENT_NULL_FLAG
    if "changing_column" in args:
        changing = _by_id(table, args["changing_column"]["id"])
        shadows = _indexes_over(table, changing["offset"])
        if shadows:
            table["index_info"] = [i for i in table["index_info"] if i not in shadows]
            args["index_ids"] = [i["id"] for i in shadows]
        remove_column(table, changing)
    finish_with_table(job, SchemaState.NONE, moment.version, touch(table, moment))
    job["state"] = int(JobState.ROLLBACK_DONE)
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))


def _changed(job: Document, table: Document, state: SchemaState) -> Change:
    job["schema_state"] = int(state)
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))
