"""Queries, conditions and expressions drawn by lot."""

import random
from collections.abc import Sequence
from typing import Protocol

from tests.tidebox.sql.random_values import INTEGERS, ColumnType, draw_value


class QueriedColumn(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def type(self) -> ColumnType: ...


Columns = Sequence[QueriedColumn]


class Queries:
    def __init__(self, lot: random.Random) -> None:
        self.lot = lot

    # Conditions

    def condition(self, columns: Columns, depth: int = 0) -> str:
        drawn = self.lot.random()
        if depth < 2 and drawn < 0.2:
            joint = self.lot.choice(("and", "or"))
            return f"({self.condition(columns, depth + 1)} {joint} {self.condition(columns, depth + 1)})"
        if depth < 2 and drawn < 0.25:
            return f"not ({self.condition(columns, depth + 1)})"
        column = self.lot.choice(columns)
        name, kind = column.name, column.type
        if (
            kind.kind == "decimal" or kind.kind in INTEGERS
        ):  # a comparison must not need rounding, of which only TiDB's planner tells
            return f"{name} {self._comparison()} {self.lot.randint(-3, 9)}"
        if kind.kind in (
            "time",
            "year",
            "enum",
            "set",
            "bit",
        ):  # texts and numbers side by side are compared in the planner's own ways
            return f"{name} {self._comparison()} {self._plain(kind)}"
        value = draw_value(self.lot, kind, wrong=0)
        match self.lot.randint(0, 9):
            case 0:
                return f"{name} is {self.lot.choice(('', 'not '))}null"
            case 1 if kind.fits_keys:
                return f"{name} in ({value}, {draw_value(self.lot, kind, wrong=0)})"
            case 2 if kind.fits_keys:
                return f"{name} between {value} and {draw_value(self.lot, kind, wrong=0)}"
            case 3 if kind.is_text:
                return f"{name} like '{self.lot.choice(('a%', '%b%', '_', '%', 'A_c%'))}'"
            case 4 if kind.is_number:
                return f"{name} {self.lot.choice('+-*')} 1 {self._comparison()} {self.lot.randint(-3, 10)}"
            case 5:
                return f"{name} <=> {value}" if kind.fits_keys else f"{name} is null"
            case _ if kind.fits_keys:
                return f"{name} {self._comparison()} {value}"
            case _:
                return f"{name} is not null"

    def _plain(self, kind: ColumnType) -> str:
        match kind.kind:
            case "time":
                return self.lot.choice(("'00:00:00'", "'10:00:00.5'", "'-838:59:59'"))
            case "year":
                return self.lot.choice(("0", "1999", "2024", "2155"))
            case "bit":
                return str(self.lot.randint(0, 9))
        return f"'{self.lot.choice(kind.elems)}'"

    def _comparison(self) -> str:
        return self.lot.choice(("=", "=", "<", ">", "<=", ">=", "<>", "!="))

    # Expressions

    def value(self, kind: ColumnType) -> str:
        """An expression without columns, of about this type."""
        one = draw_value(self.lot, kind, wrong=0)
        if kind.is_number:
            return self.lot.choice((f"{one} + 1", "1 + 1", "3 * 2", "7 div 2", "abs(-4)", "10 % 4", "- 3", "1 / 4"))
        if kind.is_text:
            return self.lot.choice((f"concat({one}, 'z')", "upper('abc')", "repeat('ab', 2)", "left('hello', 2)"))
        if kind.is_time:
            return self.lot.choice(("date_add('2024-01-31', interval 1 month)", f"date({one})", one))
        if kind.kind == "json":
            return self.lot.choice(("json_array(1, 'a', null)", "json_object('k', 1.5)", one))
        return self.lot.choice((f"ifnull({one}, {one})", f"if(1 > 0, {one}, null)", f"coalesce(null, {one})"))

    def expression(self, column: QueriedColumn) -> str:
        name, kind = column.name, column.type
        if_null = name if kind.is_zerofill else f"ifnull({name}, 'none')"
        anything = [if_null, f"{name} is null", f"length({name})", f"hex({name})", name, name, name]
        if kind.is_number:
            anything += [f"{name} + 1", f"{name} * 2", f"abs({name})", f"{name} > 3", f"{name} / 2"]
            anything += [f"cast({name} as char)", f"{name} % 3", f"{name} div 2"]
        elif kind.is_text:
            anything += [f"upper({name})", f"lower({name})", f"concat({name}, '!')", f"substring({name}, 2, 3)"]
            anything += [f"char_length({name})", f"left({name}, 2)", f"replace({name}, 'a', 'b')", f"trim({name})"]
            anything += [f"concat_ws(',', {name}, 1)", f"case when {name} = 'a' then 1 else 0 end", f"{name} = 'A'"]
        elif kind.is_time:
            anything += [f"year({name})", f"date_add({name}, interval 1 day)", f"cast({name} as char)"]
            anything += [f"date({name})", f"cast({name} as char)"]
        elif kind.kind == "json":
            anything = [name, f"{name}->'$.a'", f"{name}->>'$.b[1]'", f"json_type({name})", f"json_length({name})"]
            anything += [f"json_extract({name}, '$[0]')", f"{name} is null", f"json_valid({name})"]
        elif kind.kind == "vector":
            anything = [name, f"vec_dims({name})"]
        elif kind.kind in ("enum", "set", "bit"):
            anything += [f"{name} + 0", f"concat({name})", f"{name} = 1"]
        return self.lot.choice(anything)

    # Queries

    def select(self, table: str, columns: Columns, primary: Sequence[str]) -> str:
        drawn = self.lot.random()
        if drawn < 0.2:
            return self._grouped(table, columns)
        if drawn < 0.3:
            column = self.lot.choice([c for c in columns if c.type.fits_keys] or list(columns))
            text = f"select distinct {column.name} from {table}"
            return text if not column.type.is_text else f"select count(distinct {column.name}) from {table}"
        if drawn < 0.35:
            inner = self.lot.choice(columns).name
            return (
                f"select count(*) from {table} where {inner} in (select {inner} from {table} where {inner} is not null)"
            )
        if drawn < 0.4:
            name = self.lot.choice([c for c in columns if c.type.kind not in ("float", "double")] or columns[:1]).name
            return f"select {name} from {table} union all select {name} from {table} where {self.condition(columns)}"
        what = "*" if self.lot.random() < 0.3 else ", ".join(self.expression(c) for c in self._some(columns))
        text = f"select {what} from {table}"
        if self.lot.random() < 0.7:
            text += f" where {self.condition(columns)}"
        if primary and self.lot.random() < 0.3:
            text += f" order by {', '.join(primary)}{self.lot.choice(('', ' desc'))} limit {self.lot.randint(0, 6)}"
        if self.lot.random() < 0.05:
            text += " for update"
        return text

    def _some(self, columns: Columns) -> Columns:
        return self.lot.sample(list(columns), self.lot.randint(1, len(columns)))

    def _grouped(self, table: str, columns: Columns) -> str:
        numbers = [c.name for c in columns if c.type.is_number and (c.type.kind == "decimal" or not c.type.sizes)]
        usable = [c for c in columns if c.type.fits_keys]
        found = ["count(*)", f"count({self.lot.choice(columns).name})"]
        if numbers:
            name = self.lot.choice(numbers)
            found += [f"sum({name})", f"avg({name})"]
        if usable:
            chosen = self.lot.choice(usable)
            if not chosen.type.is_text and not (chosen.type.sizes and chosen.type.kind in ("float", "double")):
                found += [f"min({chosen.name})", f"max({chosen.name})"]
        groups = [c.name for c in usable if not c.type.is_text]
        if not groups or self.lot.random() < 0.4:
            return f"select {', '.join(found)} from {table}"
        by = self.lot.choice(groups)
        having = " having count(*) > 1" if self.lot.random() < 0.2 else ""
        return f"select {by}, {', '.join(found)} from {table} group by {by}{having}"

    def join(self, left: str, columns: Columns, right: str, others: Columns) -> str:
        kind = self.lot.choice(("join", "left join", "inner join", "right join"))
        pairs = [(a.name, b.name) for a in columns for b in others if a.type.kind == b.type.kind and a.type.fits_keys]
        a, b = self.lot.choice(pairs) if pairs else (columns[0].name, others[0].name)
        if not pairs:
            return f"select count(*) from {left} x, {right} y"
        shown = f"x.{self.lot.choice(columns).name}, y.{self.lot.choice(others).name}"
        return f"select {shown} from {left} x {kind} {right} y on x.{a} = y.{b}"
