"""Tables as sinks know them, made of what messages tell: ids in place of names, and every key that there may be.

Messages name tables and columns and have no ids; sinks go by ids. So each name gets one, for good: it is part of the
consumer's state. Messages do not say either which columns form a unique index together: each column of one counts as
unique by itself. Then more rows than necessary are taken to be in each other's way, and none too few.
"""

from dataclasses import replace

from tidemill.model.table import ColumnFlag, ColumnInfo, IndexColumn, IndexInfo, TableInfo

Place = tuple[str, str]  # schema and table, in small letters

_FIRST_ID = 1


class Tables:
    def __init__(self, ids: dict[str, int]) -> None:
        """``ids``: those given so far, by names."""
        self.ids = dict(ids)
        self._known: dict[TableInfo, TableInfo] = {}

    def known(self, seen: TableInfo) -> TableInfo:
        """The same one, for what a reader takes to be the same."""
        found = self._known.get(seen)
        if found is None:
            found = self._known[seen] = self._made(seen)
        return found

    def _made(self, seen: TableInfo) -> TableInfo:
        place = f"{seen.schema}.{seen.name}"
        columns = tuple(replace(c, id=self._id(f"{place}.{c.name}")) for c in seen.columns)
        return replace(
            seen,
            id=self._id(place),
            schema_id=self._id(seen.schema),
            columns=columns,
            indexes=(*seen.indexes, *_suspected(seen)),
            partitions=(),
        )

    def _id(self, name: str) -> int:
        return self.ids.setdefault(name, _FIRST_ID + len(self.ids))


def table_place(schema: str, table: str) -> Place:
    """Names are told apart as upstream does: in small letters."""
    return schema.lower(), table.lower()


def has_several_keys(table: TableInfo) -> bool:
    """Whether rows of different handle keys may take each other's place in another unique key."""
    return sum(index.is_unique for index in table.indexes) > (0 if table.pk_is_handle else 1)


def _suspected(seen: TableInfo) -> list[IndexInfo]:
    """One for each column that is part of a unique index of which no more is known."""
    told = {part.offset for index in seen.indexes if len(index.columns) == 1 for part in index.columns}
    handle = {column.offset for column in seen.handle_key}
    unknown = [c for c in seen.columns if _is_unique(c) and c.offset not in told | handle]
    first = 1 + max((index.id for index in seen.indexes), default=0)
    return [IndexInfo(first + n, c.name, (IndexColumn(c.offset, -1),), True, False) for n, c in enumerate(unknown)]


def _is_unique(column: ColumnInfo) -> bool:
    return bool(column.flag & ColumnFlag.UNIQUE_KEY)
