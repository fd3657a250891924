"""The clauses of ALTER TABLE as jobs or parts of one, each checked against the table as it is."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidebox.sql.catalog import CatalogTable
from tidebox.sql.ddl.column_steps import AFTER, FIRST, LAST
from tidebox.sql.ddl.columns import PRIMARY, Document, build_column, build_index, ci, find_column
from tidebox.sql.ddl.defaults import Default, Settings, build_default, origin_default
from tidebox.sql.ddl.index_steps import find_index, index_args
from tidebox.sql.ddl.modify_steps import needs_rewrite
from tidebox.sql.ddl.refusals import can_change, check_type_change, no_index, only_column, unsupported
from tidebox.sql.ddl.tables import check_dependency, check_index_name, free_index_name
from tidebox.sql.parse.expressions import Constant
from tidebox.sql.parse.statements import (
    AddColumn,
    AddKey,
    After,
    AlterSpec,
    DropColumn,
    DropKey,
    DropPrimaryKey,
    First,
    KeyDef,
    KeyKind,
    KeyPart,
    ModifyColumn,
    Position,
    RenameColumn,
    RenameKey,
    RenameTo,
    SetAutoIncrement,
    SetCharset,
    SetComment,
    SetDefault,
    SetKeyVisibility,
)
from tidebox.sql.types import NO_DEFAULT_FLAG, Charset, is_blob, is_text, resolve_charset
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.ddl import ActionType
from tidemill.model.table import ColumnFlag
from tidemill.tidb.documents import SchemaState

_KEY_FLAGS = int(ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY)
_NULL_TO_NOT_NULL = 6
_BINARY_ORDERS = frozenset({"utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin", "binary", "utf8mb4_0900_bin"})
_WIDER = {"utf8": "utf8mb4", "ascii": "utf8mb4", "latin1": "utf8mb4"}


@dataclass(frozen=True, slots=True)
class Clause:
    kind: ActionType
    args: dict[str, Any]
    schema_state: SchemaState = SchemaState.NONE
    is_reorg: bool = False  # may have to go through the rows
    columns: tuple[str, ...] = ()  # that it changes, in lower case: no two clauses may
    reads: tuple[str, ...] = ()  # columns that none of the others may change
    gone: tuple[str, ...] = ()  # columns whose name is no more
    after: tuple[str, ...] = ()  # the column that another is put behind: it must stay
    indexes: tuple[str, ...] = ()


def clauses_of(
    specs: Iterable[AlterSpec], table: CatalogTable, settings: Settings, now: datetime
) -> tuple[list[Clause], tuple[SqlError, ...]]:
    """One for each spec that has something to do, and notes on those that have not."""
    builder = _Builder(table, settings, now)
    clauses: list[Clause] = []
    notes: list[SqlError] = []
    for spec in specs:
        found = builder.build(spec)
        if isinstance(found, SqlError):
            notes.append(found)
        elif found is not None:
            clauses.append(found)
    _check_apart(clauses)
    return clauses, tuple(notes)


def _check_apart(clauses: list[Clause]) -> None:
    columns: set[str] = set()
    indexes: set[str] = set()
    for clause in clauses:
        for name in clause.columns:
            if name in columns:
                raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"operate same column '{name}'")
        for name in clause.indexes:
            if name in indexes:
                raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"operate same index '{name}'")
        columns.update(clause.columns)
        indexes.update(clause.indexes)
    gone = {name for clause in clauses for name in clause.gone}
    for name in (name for clause in clauses for name in (*clause.reads, *clause.after)):
        if name in gone or (any(name in clause.reads for clause in clauses) and name in columns):
            raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"operate same column '{name}'")


class _Builder:
    """Builds each clause against the table as it was before all of them, as TiDB does; names that an earlier
    clause brings are known to later ones."""

    def __init__(self, table: CatalogTable, settings: Settings, now: datetime) -> None:
        self.table = table
        self.document = table.document
        self.columns = [c for c in self.document["cols"] if c["state"] == SchemaState.PUBLIC]
        self.settings = settings
        self.now = now
        self.charset = Charset(self.document["charset"], self.document["collate"])
        self.added: list[Document] = []
        self.dropped = 0

    def build(self, spec: AlterSpec) -> Clause | SqlError | None:
        """None: there is nothing to do."""
        match spec:
            case AddColumn():
                return self._add_column(spec)
            case DropColumn():
                return self._drop_column(spec)
            case ModifyColumn():
                return self._modify(spec)
            case RenameColumn():
                return self._rename_column(spec)
            case SetDefault():
                return self._set_default(spec)
            case AddKey():
                return self._add_key(spec)
            case DropKey():
                return self._drop_key(spec)
            case DropPrimaryKey():
                return self._drop_primary_key()
            case RenameKey():
                return self._rename_key(spec)
            case SetKeyVisibility():
                return self._set_visibility(spec)
            case SetComment():
                return Clause(ActionType.MODIFY_TABLE_COMMENT, {"comment": spec.comment})
            case SetCharset():
                return self._set_charset(spec)
            case SetAutoIncrement():
                return Clause(ActionType.REBASE_AUTO_ID, {"new_base": max(spec.value, 1)})
            case RenameTo():
                raise AssertionError("a rename is no clause: the planner takes it")

    # Columns

    def _column(self, name: str) -> Document:
        found = find_column(self.columns, name)
        if found is None:
            raise sql_error(Errno.BAD_FIELD_ERROR, name, self.table.name)
        return found

    def _add_column(self, spec: AddColumn) -> Clause | SqlError:
        definition, name = spec.column, spec.column.name
        if find_column(self.columns, name) is not None:
            return _noted_or_raised(sql_error(Errno.DUP_FIELDNAME, name), is_note=spec.if_not_exists)
        self._check_added(spec)
        column = build_column(definition, len(self.document["cols"]), self.charset, self.settings)
        column["state"] = int(SchemaState.NONE)
        column["origin_default"], column["origin_default_bit"] = origin_default(column, self.now, self.settings.zone)
        if definition.generated is not None:
            self._check_reads(column, [*self.columns, *self.added, column])
        args: dict[str, Any] = {"column_info": column, "position": self._position(spec.position)}
        if spec.if_not_exists:
            args["ignore_existence_err"] = True
        self.added.append(column)
        after = (spec.position.column.lower(),) if isinstance(spec.position, After) else ()
        return Clause(ActionType.ADD_COLUMN, args, columns=(name.lower(),), after=after)

    def _check_added(self, spec: AddColumn) -> None:
        definition = spec.column
        what = None
        if definition.is_auto_increment:
            what = "AUTO_INCREMENT"
        elif definition.key is KeyKind.PRIMARY:
            what = "PRIMARY KEY"
        elif definition.key is KeyKind.UNIQUE:
            what = "UNIQUE KEY"
        if what is not None:
            place = f"'{self.table.schema}.{self.table.name}'"
            raise unsupported(f"unsupported add column '{definition.name}' constraint {what} when altering {place}")
        if definition.generated is not None and definition.generated.is_stored:
            what = "Adding generated stored column through ALTER TABLE"
            raise sql_error(Errno.UNSUPPORTED_ON_GENERATED_COLUMN, what)

    def _check_reads(self, column: Document, columns: list[Document]) -> None:
        places = {c["name"]["L"]: at for at, c in enumerate(columns)}
        for name in column["dependences"]:
            check_dependency(columns, column, name, places.get(name), places[column["name"]["L"]])

    def _position(self, position: Position) -> Document:
        match position:
            case None:
                return {"Tp": LAST, "RelativeColumn": None}
            case First():
                return {"Tp": FIRST, "RelativeColumn": None}
            case After(name):
                if find_column(self.columns, name) is None:
                    raise sql_error(Errno.BAD_FIELD_ERROR, name, self.table.name)
                relative = {"Schema": ci(""), "Table": ci(""), "Name": ci(name)}
                return {"Tp": AFTER, "RelativeColumn": relative}

    def _drop_column(self, spec: DropColumn) -> Clause | SqlError:
        column = find_column(self.columns, spec.name)
        if column is None:
            error = sql_error(Errno.CANT_DROP_FIELD_OR_KEY, spec.name)
            return _noted_or_raised(error, is_note=spec.if_exists)
        self.dropped += 1
        if len(self.columns) + len(self.added) - self.dropped < 1:
            raise only_column(spec.name, self.table.name)
        self._check_droppable(column)
        named = _nameless_column(column["name"]["O"])
        args: dict[str, Any] = {"column_info": named}
        if spec.if_exists:
            args["ignore_existence_err"] = True
        named_so = (spec.name.lower(),)
        return Clause(ActionType.DROP_COLUMN, args, SchemaState.PUBLIC, columns=named_so, gone=named_so)

    def _check_droppable(self, column: Document) -> None:
        name = column["name"]["O"]
        for other in self.columns:
            if column["name"]["L"] in (other["dependences"] or ()):
                raise sql_error(Errno.DEPENDENT_BY_GENERATED_COLUMN, name)
        covering = [
            i for i in self.document["index_info"] or () if any(p["offset"] == column["offset"] for p in i["idx_cols"])
        ]
        is_handle = self.document["pk_is_handle"] and column["type"]["Flag"] & ColumnFlag.PRI_KEY
        if any(i["is_primary"] or len(i["idx_cols"]) > 1 for i in covering):
            message = f"can't drop column {name} with composite index covered or Primary Key covered now"
            raise unsupported(message)
        if is_handle:
            raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, "drop integer primary key")

    # Changes of columns

    def _modify(self, spec: ModifyColumn) -> Clause | SqlError:
        old = find_column(self.columns, spec.old_name)
        if old is None:
            error = sql_error(Errno.BAD_FIELD_ERROR, spec.old_name, self.table.name)
            return _noted_or_raised(error, is_note=spec.if_exists)
        definition = spec.column
        is_renamed = definition.name.lower() != old["name"]["L"]
        if is_renamed and find_column([*self.columns, *self.added], definition.name) is not None:
            raise sql_error(Errno.DUP_FIELDNAME, definition.name)
        new = build_column(definition, old["offset"], self.charset, self.settings)
        self._carry_over(spec, old, new)
        if definition.is_not_null is False and old["type"]["Flag"] & ColumnFlag.PRI_KEY:
            raise sql_error(Errno.PRIMARY_CANT_HAVE_NULL)
        self._check_modified(spec, old, new)
        position = self._position(spec.position)
        args: dict[str, Any] = {"column": new, "old_column_name": dict(old["name"]), "position": position}
        if new["type"]["Flag"] & ColumnFlag.NOT_NULL and not old["type"]["Flag"] & ColumnFlag.NOT_NULL:
            args["modify_column_type"] = _NULL_TO_NOT_NULL
        columns = {old["name"]["L"], definition.name.lower()}
        gone = (old["name"]["L"],) if is_renamed else ()
        return Clause(ActionType.MODIFY_COLUMN, args, is_reorg=True, columns=tuple(columns), gone=gone)

    def _carry_over(self, spec: ModifyColumn, old: Document, new: Document) -> None:
        """What a column keeps whatever is said about it: its id, its keys, and what older rows show for it."""
        flags = old["type"]["Flag"] & _KEY_FLAGS
        new["type"]["Flag"] = new["type"]["Flag"] & ~_KEY_FLAGS | flags
        if flags & ColumnFlag.PRI_KEY:
            new["type"]["Flag"] |= int(ColumnFlag.NOT_NULL)
            if isinstance(spec.column.default, Constant) and spec.column.default.value is None:
                raise sql_error(Errno.INVALID_DEFAULT, new["name"]["O"])
            if spec.column.default is None and not new["type"]["Flag"] & ColumnFlag.AUTO_INCREMENT:
                new["type"]["Flag"] |= NO_DEFAULT_FLAG
        new.update(
            id=old["id"],
            origin_default=old["origin_default"],
            origin_default_bit=old["origin_default_bit"],
            version=old["version"],
        )

    def _check_modified(self, spec: ModifyColumn, old: Document, new: Document) -> None:
        if spec.column.key is KeyKind.PRIMARY and not old["type"]["Flag"] & ColumnFlag.PRI_KEY:
            raise _cannot_modify("can't change column constraint (PRIMARY KEY)")
        if spec.column.key is KeyKind.UNIQUE and not old["type"]["Flag"] & ColumnFlag.UNIQUE_KEY:
            raise _cannot_modify("can't change column constraint (UNIQUE KEY)")
        numbered = int(ColumnFlag.AUTO_INCREMENT)
        if not can_change(old["type"], new["type"]):
            check_type_change(old["type"], new["type"])
        self._check_handle(old, new)
        if old["type"]["Flag"] & numbered and not new["type"]["Flag"] & numbered:
            raise _cannot_modify("can't remove auto_increment without @@tidb_allow_remove_auto_inc enabled")
        if new["type"]["Flag"] & numbered and not old["type"]["Flag"] & numbered:
            raise _cannot_modify("can't set auto_increment")
        self._check_generated(old, new)
        _check_charset(old, new)
        if needs_rewrite(old["type"], new["type"]):
            self._check_rewrite(old, new)
        elif is_blob(new["type"]) and not is_blob(old["type"]):
            self._check_indexes(old, new)

    def _check_handle(self, old: Document, new: Document) -> None:
        if old["type"]["Flag"] & ColumnFlag.PRI_KEY and needs_rewrite(old["type"], new["type"]):
            raise _cannot_modify("this column has primary key flag")

    def _check_generated(self, old: Document, new: Document) -> None:
        if old["generated_expr_string"] != new["generated_expr_string"] or (
            old["generated_stored"] != new["generated_stored"]
        ):
            what = "Changing the definition of a generated column through ALTER TABLE"
            raise sql_error(Errno.UNSUPPORTED_ON_GENERATED_COLUMN, what)
        for other in self.columns:
            if old["name"]["L"] in (other["dependences"] or ()):
                raise sql_error(Errno.DEPENDENT_BY_GENERATED_COLUMN, old["name"]["O"])

    def _check_rewrite(self, old: Document, new: Document) -> None:
        """What cannot be cast."""
        if old["generated_expr_string"]:
            raise _cannot_modify("type of a generated column")
        self._check_indexes(old, new)

    def _check_indexes(self, old: Document, new: Document) -> None:
        columns = [{**new, "name": old["name"]} if c is old else c for c in self.columns]
        for index in self.document["index_info"] or ():
            if any(p["offset"] == old["offset"] for p in index["idx_cols"]):
                _check_index(index, columns)

    def _rename_column(self, spec: RenameColumn) -> Clause | None:
        old = self._column(spec.old_name)
        if spec.new_name == old["name"]["O"]:
            return None
        if spec.new_name.lower() != old["name"]["L"] and find_column(self.columns, spec.new_name) is not None:
            raise sql_error(Errno.DUP_FIELDNAME, spec.new_name)
        for other in self.columns:
            if old["name"]["L"] in (other["dependences"] or ()):
                raise sql_error(Errno.DEPENDENT_BY_GENERATED_COLUMN, old["name"]["O"])
        new = copy.deepcopy(old)
        new["name"] = ci(spec.new_name)
        args = {"column": new, "old_column_name": dict(old["name"])}
        columns = {old["name"]["L"], spec.new_name.lower()}
        gone = (old["name"]["L"],)
        return Clause(ActionType.MODIFY_COLUMN, args, is_reorg=True, columns=tuple(columns), gone=gone)

    def _set_default(self, spec: SetDefault) -> Clause:
        column = copy.deepcopy(self._column(spec.column))
        kind = column["type"]
        if column["generated_expr_string"]:
            raise sql_error(Errno.WRONG_USAGE, "DEFAULT", "generated column")
        if spec.default is None:
            default = Default(None)
            kind["Flag"] |= NO_DEFAULT_FLAG
        else:
            default = build_default(column["name"]["O"], kind, spec.default, spec.default_is_expression, self.settings)
            if default.value is None and kind["Flag"] & ColumnFlag.PRI_KEY:
                raise sql_error(Errno.PRIMARY_CANT_HAVE_NULL)
            if default.value is None and kind["Flag"] & ColumnFlag.NOT_NULL:
                raise sql_error(Errno.INVALID_DEFAULT, column["name"]["O"])
            kind["Flag"] &= ~NO_DEFAULT_FLAG
        column.update(default=default.value, default_bit=default.bits, default_is_expr=default.is_expression)
        return Clause(ActionType.SET_DEFAULT_VALUE, {"column_info": column}, columns=(spec.column.lower(),))

    # Indexes

    def _add_key(self, spec: AddKey) -> Clause | SqlError:
        key = spec.key
        is_primary = key.kind is KeyKind.PRIMARY
        name = PRIMARY if is_primary else self._key_name(spec)
        if find_index(self.document, name.lower()) is not None or (is_primary and self.document["pk_is_handle"]):
            error = sql_error(Errno.MULTIPLE_PRI_KEY) if is_primary else sql_error(Errno.DUP_KEYNAME, name)
            return _noted_or_raised(error, is_note=spec.if_not_exists and not is_primary)
        if is_primary and key.is_clustered:
            message = "Adding clustered primary key is not supported. Please consider adding NONCLUSTERED primary key"
            raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, message)
        build_index(self.table.name, self.columns, key, name, 0)
        kind = ActionType.ADD_PRIMARY_KEY if is_primary else ActionType.ADD_INDEX
        args = {"index_args": [index_args(key, name)]}
        if spec.if_not_exists:
            args["index_args"][0]["if_not_exist"] = True
        reads = tuple(part.column.lower() for part in key.parts)
        return Clause(kind, args, is_reorg=True, indexes=(name.lower(),), reads=reads)

    def _key_name(self, spec: AddKey) -> str:
        if spec.key.name is not None:
            check_index_name(spec.key.name)
            return spec.key.name
        taken = {i["idx_name"]["L"] for i in self.document["index_info"] or ()}
        column = find_column([*self.columns, *self.added], spec.key.parts[0].column)
        return free_index_name(column["name"]["O"] if column else spec.key.parts[0].column, taken)

    def _drop_key(self, spec: DropKey) -> Clause | SqlError:
        if spec.name.upper() == PRIMARY:
            return self._drop_primary_key()
        index = find_index(self.document, spec.name.lower())
        if index is None:
            return _noted_or_raised(no_index(spec.name), is_note=spec.if_exists)
        args: dict[str, Any] = {"index_name": ci(spec.name), "index_part_specifications": None}
        if spec.if_exists:
            args["if_exist"] = True
        return Clause(ActionType.DROP_INDEX, {"index_args": [args]}, SchemaState.PUBLIC, indexes=(spec.name.lower(),))

    def _drop_primary_key(self) -> Clause:
        if self.document["pk_is_handle"] or self.document["is_common_handle"]:
            message = "drop primary key when the table is using clustered index"
            raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, message)
        index = find_index(self.document, PRIMARY.lower())
        if index is None:
            raise sql_error(Errno.CANT_DROP_FIELD_OR_KEY, PRIMARY)
        args = {"index_name": ci(PRIMARY), "index_part_specifications": None}
        return Clause(
            ActionType.DROP_PRIMARY_KEY, {"index_args": [args]}, SchemaState.PUBLIC, indexes=(PRIMARY.lower(),)
        )

    def _rename_key(self, spec: RenameKey) -> Clause:
        if find_index(self.document, spec.old_name.lower()) is None:
            raise sql_error(Errno.KEY_DOES_NOT_EXIST, spec.old_name, self.table.name)
        check_index_name(spec.new_name)
        is_other = spec.new_name.lower() != spec.old_name.lower()
        if is_other and find_index(self.document, spec.new_name.lower()) is not None:
            raise sql_error(Errno.DUP_KEYNAME, spec.new_name)
        names = [{"index_name": ci(n), "index_part_specifications": None} for n in (spec.old_name, spec.new_name)]
        indexes = {spec.old_name.lower(), spec.new_name.lower()}
        return Clause(ActionType.RENAME_INDEX, {"index_args": names}, indexes=tuple(indexes))

    def _set_visibility(self, spec: SetKeyVisibility) -> Clause:
        index = find_index(self.document, spec.name.lower())
        if index is None:
            raise sql_error(Errno.KEY_DOES_NOT_EXIST, spec.name, self.table.name)
        if index["is_primary"]:
            raise sql_error(Errno.PK_INDEX_CANT_BE_INVISIBLE)
        args: dict[str, Any] = {"index_name": ci(spec.name)}
        if spec.is_invisible:
            args["invisible"] = True
        return Clause(ActionType.ALTER_INDEX_VISIBILITY, args, indexes=(spec.name.lower(),))

    # The table

    def _set_charset(self, spec: SetCharset) -> Clause:
        to = resolve_charset(spec.charset, spec.collate, self.charset)
        if to.name != self.charset.name and _WIDER.get(self.charset.name) != to.name:
            message = f"modify charset from {self.charset.name} to {to.name}"
            raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, message)
        args: dict[str, Any] = {"to_charset": to.name, "to_collate": to.collate}
        if spec.converts:
            for column in self.columns:
                _check_conversion(column, to, self.document)
            args["needs_overwrite_cols"] = True
        return Clause(ActionType.MODIFY_TABLE_CHARSET, args)


def _check_conversion(column: Document, to: Charset, table: Document) -> None:
    kind = column["type"]
    if not (is_text(kind) or kind["Elems"]) or kind["Charset"] == "binary":
        return
    if kind["Charset"] != to.name and _WIDER.get(kind["Charset"]) != to.name:
        message = f"converting column '{column['name']['O']}' from charset {kind['Charset']} to {to.name}"
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, message)
    if kind["Collate"] != to.collate and kind["Flag"] & _KEY_FLAGS:
        change = f"from '{kind['Collate']}' to '{to.collate}'"
        message = f"converting collation of column '{column['name']['O']}' {change} when index is defined on it."
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, message)


def _check_charset(old: Document, new: Document) -> None:
    before, after = old["type"], new["type"]
    is_weighed = is_text(before) and before["Collate"] not in _BINARY_ORDERS
    if is_weighed and not is_text(after) and before["Flag"] & _KEY_FLAGS:
        change = f"'{old['name']['O']}' from '{before['Collate']}' to '{after['Collate']}'"
        what = f"modifying collation of column {change} when index is defined on it."
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, what)
    if not is_text(before) or not is_text(after) or before["Charset"] == "binary":
        return
    if before["Collate"] != after["Collate"] and before["Flag"] & _KEY_FLAGS:
        message = (
            f"modifying collation of column '{old['name']['O']}' from '{before['Collate']}' to '{after['Collate']}'"
        )
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"{message} when index is defined on it.")
    if before["Charset"] != after["Charset"] and _WIDER.get(before["Charset"]) != after["Charset"]:
        message = f"charset from {before['Charset']} to {after['Charset']}"
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"modify {message}")


def _check_index(index: Document, columns: list[Document]) -> None:
    """Whether an index can be over the new column: a BLOB needs a length, JSON has no order."""
    offsets = {c["offset"]: c for c in columns}
    parts = tuple(
        # Where the new type has no prefixes the index takes the whole column.
        KeyPart(
            offsets[p["offset"]]["name"]["O"],
            p["length"] if p["length"] >= 0 and is_text(offsets[p["offset"]]["type"]) else None,
        )
        for p in index["idx_cols"]
        if p["offset"] in offsets
    )
    build_index("", columns, KeyDef(KeyKind.INDEX, None, parts), "", 0)


def _cannot_modify(why: str) -> SqlError:
    return sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"modify column: {why}")


def _nameless_column(name: str) -> Document:
    """A column of which a job keeps the name only."""
    return {
        "id": 0,
        "name": ci(name),
        "offset": 0,
        "origin_default": None,
        "origin_default_bit": None,
        "default": None,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "dependences": None,
        "type": {
            "Tp": 0,
            "Flag": 0,
            "Flen": 0,
            "Decimal": 0,
            "Charset": "",
            "Collate": "",
            "Elems": None,
            "ElemsIsBinaryLit": None,
            "Array": False,
        },
        "state": 0,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 0,
    }


def _noted_or_raised(error: SqlError, *, is_note: bool) -> SqlError:
    if not is_note:
        raise error
    return error
