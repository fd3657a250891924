"""Steps of jobs that make, drop, move and mark whole databases and tables."""

import base64
from collections.abc import Callable

from tidebox.sql.ddl.columns import find_column
from tidebox.sql.ddl.jobs import (
    Change,
    Document,
    Documents,
    Gone,
    Moment,
    diff_of,
    finish_with_database,
    finish_with_table,
    running,
    touch,
)
from tidebox.sql.types import is_text
from tidemill.tidb.documents import SchemaState
from tidemill.tidb.keys import table_prefix

# How a database or a table goes: each state is a step.
_GOING = {
    SchemaState.PUBLIC: SchemaState.WRITE_ONLY,
    SchemaState.WRITE_ONLY: SchemaState.DELETE_ONLY,
    SchemaState.DELETE_ONLY: SchemaState.NONE,
}


# Databases


def create_schema(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    database = job["raw_args"]["db_info"]
    database.update(id=job["schema_id"], state=int(SchemaState.PUBLIC))
    finish_with_database(job, SchemaState.PUBLIC, moment.version, database)
    return Change(job, diff_of(job), databases=(database,))


def drop_schema(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    schema_id = job["schema_id"]
    database = documents.database(schema_id)
    state = _GOING[SchemaState(database["state"])]
    database["state"] = int(state)
    if state is not SchemaState.NONE:
        job["schema_state"] = int(state)
        if state is SchemaState.DELETE_ONLY:
            job["raw_args"] = None
        return Change(job, diff_of(job), databases=(database,))
    ids = sorted(table_id for owner, table_id in documents.tables if owner == schema_id)
    job["raw_args"] = {"all_dropped_table_ids": ids} if ids else {}
    finish_with_database(job, state, moment.version, database)
    return Change(job, diff_of(job), gone_databases=(schema_id,))


def modify_schema_charset(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    database = documents.database(job["schema_id"])
    database.update(charset=job["raw_args"]["to_charset"], collate=job["raw_args"]["to_collate"])
    finish_with_database(job, SchemaState.PUBLIC, moment.version, database)
    return Change(job, diff_of(job), databases=(database,))


# Tables


def create_table(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    table = job["raw_args"]["table_info"]
    table.update(id=job["table_id"], state=int(SchemaState.PUBLIC), update_timestamp=moment.start_ts)
    finish_with_table(job, SchemaState.PUBLIC, moment.version, table)
    first = table["auto_inc_id"] - 1
    counters = ((job["schema_id"], table["id"], first),) if first > 0 else ()
    return Change(job, diff_of(job), tables=((job["schema_id"], table),), counters=counters)


def drop_table(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    schema_id, table_id = job["schema_id"], job["table_id"]
    table = documents.table(schema_id, table_id)
    state = _GOING[SchemaState(table["state"])]
    table["state"] = int(state)
    touch(table, moment)
    if state is not SchemaState.NONE:
        job["schema_state"] = int(state)
        return Change(job, diff_of(job), tables=((schema_id, table),))
    start_key = base64.b64encode(table_prefix(table_id)).decode()
    rule = f"schema/{job['schema_name']}/{table['name']['L']}"
    job["raw_args"] = {"start_key": start_key, "old_rule_ids": [rule]}
    finish_with_table(job, state, moment.version, table)
    return Change(
        job, diff_of(job), gone=(Gone(counter_schema_id(table, schema_id), table_id), Gone(schema_id, table_id))
    )


def truncate_table(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    schema_id, old_id = job["schema_id"], job["table_id"]
    table = documents.table(schema_id, old_id)
    table["id"] = job["raw_args"]["new_table_id"]
    finish_with_table(job, SchemaState.PUBLIC, moment.version, table)
    gone = (Gone(counter_schema_id(table, schema_id), old_id), Gone(schema_id, old_id))
    table.pop("old_schema_id", None)
    diff = diff_of(job, table_id=table["id"], old_table_id=old_id)
    return Change(job, diff, tables=((schema_id, table),), gone=gone)


def counter_schema_id(table: Document, schema_id: int) -> int:
    """The database in whose hash the counters of a table are: one that was moved leaves them behind."""
    return int(table.get("old_schema_id") or schema_id)


# Renames


def rename_table(job: Document, documents: Documents, moment: Moment) -> Change:
    """First the table is moved, then, with a version of its own and nothing to change, the job is done."""
    job = running(job, moment)
    args = job["raw_args"]
    new_schema_id, table_id = job["schema_id"], job["table_id"]
    if job["schema_state"] == SchemaState.PUBLIC:
        table = documents.table(new_schema_id, table_id)
        finish_with_table(job, SchemaState.PUBLIC, moment.version, table)
        return Change(job, diff_of(job, old_schema_id=new_schema_id))
    old_schema_id = args["old_schema_id"]
    table = renamed(documents.table(old_schema_id, table_id), old_schema_id, new_schema_id, args["new_table_name"])
    args["new_schema_id"] = new_schema_id
    job["schema_state"] = int(SchemaState.PUBLIC)
    gone = (Gone(old_schema_id, table_id, keeps_counters=True),) if old_schema_id != new_schema_id else ()
    diff = diff_of(job, old_schema_id=old_schema_id)
    return Change(job, diff, tables=((new_schema_id, table),), gone=gone)


def renamed(table: Document, old_schema_id: int, new_schema_id: int, name: Document) -> Document:
    counters = counter_schema_id(table, old_schema_id)
    table.pop("old_schema_id", None)
    moved: Document = {}
    for key, value in table.items():
        moved[key] = value
        if key == "update_timestamp" and counters != new_schema_id:
            moved["old_schema_id"] = counters
    moved["name"] = dict(name)
    return moved


def rename_tables(job: Document, documents: Documents, moment: Moment) -> Change:
    job = running(job, moment)
    pairs = job["raw_args"]["rename_table_infos"]
    last = pairs[-1]
    is_moved = job["schema_state"] == SchemaState.PUBLIC
    diff = _rename_diff(job, pairs, is_moved=is_moved)
    if is_moved:
        tables = {p["table_id"]: documents.table(p["new_schema_id"], p["table_id"]) for p in _final(pairs)}
        listed = [tables[p["table_id"]] for p in pairs]
        finish_with_table(job, SchemaState.PUBLIC, moment.version, listed[-1])
        job["binlog"]["MultipleTableInfos"] = listed
        return Change(job, diff)
    present = dict(documents.tables)
    for pair in pairs:
        place = pair["old_schema_id"], pair["table_id"]
        table = renamed(
            Documents(tables=present).table(*place), place[0], pair["new_schema_id"], pair["new_table_name"]
        )
        del present[place]
        present[pair["new_schema_id"], pair["table_id"]] = table
    job.update(
        table_id=last["table_id"],
        table_name=last["old_table_name"]["L"],
        schema_state=int(SchemaState.PUBLIC),
    )
    places = {(p["new_schema_id"], p["table_id"]) for p in _final(pairs)}
    before = {(p["old_schema_id"], p["table_id"]) for p in pairs} & set(documents.tables)
    gone = tuple(Gone(s, t, keeps_counters=True) for s, t in sorted(before - places))
    return Change(job, diff, tables=tuple((s, present[s, t]) for s, t in sorted(places)), gone=gone)


def _final(pairs: list[Document]) -> list[Document]:
    """The last of the pairs of each table: a table may be moved more than once."""
    return list({p["table_id"]: p for p in pairs}.values())


def _rename_diff(job: Document, pairs: list[Document], *, is_moved: bool) -> Document:
    def old(pair: Document) -> int:
        return int(pair["new_schema_id"] if is_moved else pair["old_schema_id"])

    first = pairs[0]
    affected = [
        {
            "schema_id": p["new_schema_id"],
            "table_id": p["table_id"],
            "old_table_id": p["table_id"],
            "old_schema_id": old(p),
        }
        for p in pairs[1:]
    ]
    return diff_of(
        job,
        schema_id=first["new_schema_id"],
        table_id=first["table_id"],
        old_schema_id=old(first),
        affected_options=affected,
    )


# Settings of tables, each in one step


def modify_comment(job: Document, documents: Documents, moment: Moment) -> Change:
    def apply(table: Document, args: Document) -> None:
        table["comment"] = args["comment"]

    return _in_place(job, documents, moment, apply)


def modify_charset(job: Document, documents: Documents, moment: Moment) -> Change:
    def apply(table: Document, args: Document) -> None:
        table.update(charset=args["to_charset"], collate=args["to_collate"])
        for column in table["cols"] if args.get("needs_overwrite_cols") else ():
            kind = column["type"]
            if (is_text(kind) or kind["Elems"]) and kind["Charset"] != "binary":
                kind.update(Charset=args["to_charset"], Collate=args["to_collate"])

    return _in_place(job, documents, moment, apply)


def rebase_auto_id(job: Document, documents: Documents, moment: Moment) -> Change:
    schema_id, table_id, base = job["schema_id"], job["table_id"], job["raw_args"]["new_base"]

    def apply(table: Document, args: Document) -> None:
        table["auto_inc_id"] = args["new_base"]

    change = _in_place(job, documents, moment, apply)
    owner = counter_schema_id(change.tables[0][1], schema_id)
    return Change(change.job, change.diff, tables=change.tables, counters=((owner, table_id, base - 1),))


def set_default_value(job: Document, documents: Documents, moment: Moment) -> Change:
    def apply(table: Document, args: Document) -> None:
        given = args["column_info"]
        column = find_column(table["cols"], given["name"]["L"])
        if column is None:
            raise KeyError(given["name"]["O"])
        for key in ("default", "default_bit", "default_is_expr", "version"):
            column[key] = given[key]
        column["type"]["Flag"] = given["type"]["Flag"]

    return _in_place(job, documents, moment, apply)


def rename_index(job: Document, documents: Documents, moment: Moment) -> Change:
    def apply(table: Document, args: Document) -> None:
        old, new = (a["index_name"] for a in args["index_args"])
        for index in table["index_info"] or ():
            if index["idx_name"]["L"] == old["L"]:
                index["idx_name"] = dict(new)

    return _in_place(job, documents, moment, apply)


def alter_index_visibility(job: Document, documents: Documents, moment: Moment) -> Change:
    def apply(table: Document, args: Document) -> None:
        for index in table["index_info"] or ():
            if index["idx_name"]["L"] == args["index_name"]["L"]:
                index["is_invisible"] = args.get("invisible", False)

    return _in_place(job, documents, moment, apply)


def _in_place(
    job: Document, documents: Documents, moment: Moment, apply: Callable[[Document, Document], None]
) -> Change:
    job = running(job, moment)
    table = documents.table(job["schema_id"], job["table_id"])
    apply(table, job["raw_args"])
    touch(table, moment)
    finish_with_table(job, SchemaState.PUBLIC, moment.version, table)
    return Change(job, diff_of(job), tables=((job["schema_id"], table),))
