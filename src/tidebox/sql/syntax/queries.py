"""SELECT, and what other statements share with it: tables, orders and limits."""

from typing import Final

from tidebox.sql.cursor import words_in
from tidebox.sql.syntax.expressions import ExpressionParser
from tidebox.sql.syntax.tree import (
    Derived,
    Expression,
    Item,
    Join,
    Limit,
    Literal,
    Locking,
    Ordering,
    Query,
    Select,
    Source,
    Star,
    TableName,
    TableSource,
    Union,
    With,
)
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.tidb.lexer import Kind

_CLAUSES: Final = words_in("""
    WHERE GROUP HAVING ORDER LIMIT UNION ON USING SET JOIN INNER LEFT RIGHT CROSS NATURAL STRAIGHT_JOIN FOR
    LOCK AS USE FORCE IGNORE PARTITION VALUES WINDOW INTO EXCEPT INTERSECT TABLESAMPLE
""")
_SELECT_OPTIONS: Final = words_in("""
    ALL DISTINCT DISTINCTROW HIGH_PRIORITY STRAIGHT_JOIN SQL_SMALL_RESULT SQL_BIG_RESULT SQL_BUFFER_RESULT
    SQL_CACHE SQL_NO_CACHE SQL_CALC_FOUND_ROWS
""")


class QueryParser(ExpressionParser):
    _was_parenthesis = False

    def query(self) -> Query:
        if self.is_word("WITH"):
            return self._with()
        parts: list[Query] = [self._query_term()]
        is_all: bool | None = None
        while self.is_word("UNION", "EXCEPT", "INTERSECT"):
            if not self.accept("UNION"):
                raise self.refuse(self.token.upper)
            every = self.accept("ALL")
            if not every:
                self.accept("DISTINCT")
            if is_all is not None and every != is_all:
                raise self.refuse("UNION and UNION ALL in one query")
            is_all = every
            parts.append(self._query_term())
        if is_all is None:
            return parts[0]
        last = parts[-1]
        order_by, limit = self.order_by(), self.limit()
        if isinstance(last, Select) and (last.order_by or last.limit) and not self._was_parenthesis:
            # Written behind the last part, they belong to the whole.
            order_by, limit = last.order_by, last.limit
            parts[-1] = _without_tail(last)
        return Union(tuple(parts), bool(is_all), order_by, limit)

    def _query_term(self) -> Query:
        self._was_parenthesis = self.is_sign("(")
        if self.accept_sign("("):
            found = self.query()
            self.expect_sign(")")
            self._was_parenthesis = True
            if isinstance(found, Select) and not found.order_by and found.limit is None:
                order_by, limit = self.order_by(), self.limit()
                if order_by or limit:
                    return Union((found,), True, order_by, limit)
            return found
        self.expect("SELECT")
        found = self._select()
        self._was_parenthesis = False
        return found

    def _with(self) -> With:
        self.at += 1
        if self.is_word("RECURSIVE"):
            raise self.refuse("recursive common table expressions")
        tables = []
        while True:
            name = self.name()
            columns = self.name_list() if self.is_sign("(") else ()
            self.expect("AS")
            self.expect_sign("(")
            tables.append((name, columns, self.query()))
            self.expect_sign(")")
            if not self.accept_sign(","):
                break
        return With(tuple(tables), self.query())

    def _select(self) -> Select:
        is_distinct = False
        while self.token.kind is Kind.WORD and self.token.upper in _SELECT_OPTIONS:
            is_distinct = is_distinct or self.token.upper in ("DISTINCT", "DISTINCTROW")
            self.at += 1
        items = [self._item()]
        while self.accept_sign(","):
            items.append(self._item())
        if self.is_word("INTO"):
            raise self.refuse("SELECT INTO")
        source = where = having = None
        group_by: tuple[Expression, ...] = ()
        if self.accept("FROM") and not self.accept("DUAL"):
            source = self._sources()
        if self.accept("WHERE"):
            where = self.expression()
        if self.accept("GROUP", "BY"):
            group_by = tuple(ordering.by for ordering in self.orderings())
            if self.is_word("WITH"):
                raise self.refuse("WITH ROLLUP")
        if self.accept("HAVING"):
            having = self.expression()
        if self.is_word("WINDOW"):
            raise self.refuse("window functions")
        order_by, limit = self.order_by(), self.limit()
        locking, is_nowait = self._locking()
        if self.is_word("INTO"):
            raise self.refuse("SELECT INTO")
        return Select(tuple(items), source, where, group_by, having, order_by, limit, is_distinct, locking, is_nowait)

    def _locking(self) -> tuple[Locking, bool]:
        if self.accept("LOCK", "IN", "SHARE", "MODE"):
            return Locking.SHARE, False
        if not self.accept("FOR"):
            return Locking.NONE, False
        locking = Locking.SHARE if self.accept("SHARE") else Locking.UPDATE
        if locking is Locking.UPDATE:
            self.expect("UPDATE")
        if self.accept("OF"):
            self.table_name()
        if self.is_word("SKIP", "WAIT"):
            raise self.refuse(f"FOR UPDATE {self.token.upper}")
        return locking, self.accept("NOWAIT")

    def order_by(self) -> tuple[Ordering, ...]:
        return self.orderings() if self.accept("ORDER", "BY") else ()

    def limit(self) -> Limit | None:
        if not self.accept("LIMIT"):
            return None
        first = self._limit_number()
        if self.accept_sign(","):
            return Limit(self._limit_number(), first)
        if self.accept("OFFSET"):
            return Limit(first, self._limit_number())
        return Limit(first)

    def _limit_number(self) -> Expression:
        if self.token.kind is Kind.PARAMETER:
            return self.expression()
        return Literal(self.integer())

    def _item(self) -> Item:
        start = self.token.start
        value = self.expression()
        text = self.sql[start : self.tokens[self.at - 1].end]
        if isinstance(value, Star):
            return Item(value, text)
        return Item(value, text, self._alias(has_strings=True))

    def _alias(self, *, has_strings: bool = False) -> str:
        is_explicit = self.accept("AS")
        token = self.token
        if token.kind is Kind.STRING and has_strings:
            return self.string()
        if token.kind is Kind.NAME or is_explicit:
            return self.name(any_word=True)
        if token.kind is Kind.WORD and token.upper not in _CLAUSES:
            try:
                return self.name()
            except Exception:
                return ""
        return ""

    def table_name(self) -> TableName:
        first = self.name()
        if self.accept_sign("."):
            return TableName(self.name(any_word=True), first)
        return TableName(first)

    def _sources(self) -> Source:
        left = self._joined()
        while self.accept_sign(","):
            left = Join("INNER", left, self._joined())
        return left

    def _joined(self) -> Source:
        left = self._one_source()
        while True:
            is_natural = self.accept("NATURAL")
            if self.accept("LEFT") or self.accept("RIGHT"):
                kind = self.tokens[self.at - 1].upper
                self.accept("OUTER")
                self.expect("JOIN")
            elif (
                self.accept("INNER", "JOIN")
                or self.accept("CROSS", "JOIN")
                or self.accept("JOIN")
                or self.accept("STRAIGHT_JOIN")
            ):
                kind = "INNER"
            else:
                if is_natural:
                    raise self.error()
                return left
            right = self._one_source()
            on: Expression | None = None
            using: tuple[str, ...] = ()
            if self.accept("ON"):
                on = self.expression()
            elif self.accept("USING"):
                using = self.name_list()
            left = Join(kind, left, right, on, using, is_natural)

    def _one_source(self) -> Source:
        if self.accept_sign("("):
            if self.is_word("SELECT", "WITH") or self.is_sign("("):
                query = self.query()
                self.expect_sign(")")
                alias = self._alias()
                if not alias:
                    raise sql_error(Errno.DERIVED_MUST_HAVE_ALIAS)
                columns = self.name_list() if self.is_sign("(") else ()
                return Derived(query, alias, columns)
            source = self._sources()
            self.expect_sign(")")
            return source
        return self.table_source()

    def table_source(self) -> TableSource:
        table = self.table_name()
        if self.is_word("PARTITION") and self.ahead().text == "(":
            raise self.refuse("PARTITION")
        as_of = None
        if self.is_word("AS") and self.ahead().upper == "OF":
            as_of = self.as_of()
        alias = self._alias()
        if self.is_word("AS") and self.ahead().upper == "OF":
            as_of = self.as_of()
        while self.is_word("USE", "FORCE", "IGNORE") and self.ahead().upper in ("INDEX", "KEY"):
            self.at += 2
            if self.accept("FOR"):
                self.at += 2 if self.is_word("ORDER", "GROUP") else 1
            self._skip_parenthesis()
        return TableSource(table, alias, as_of)

    def as_of(self) -> Expression:
        self.expect("AS", "OF", "TIMESTAMP")
        return self.expression()

    def _skip_parenthesis(self) -> None:
        self.expect_sign("(")
        while not self.accept_sign(")"):
            if self.token.kind is Kind.END:
                raise self.error()
            self.at += 1

    def name_list(self) -> tuple[str, ...]:
        self.expect_sign("(")
        if self.accept_sign(")"):
            return ()
        names = [self.name(any_word=True)]
        while self.accept_sign(","):
            names.append(self.name(any_word=True))
        self.expect_sign(")")
        return tuple(names)


def _without_tail(select: Select) -> Select:
    return Select(
        select.items,
        select.source,
        select.where,
        select.group_by,
        select.having,
        (),
        None,
        select.is_distinct,
        select.locking,
        select.is_nowait,
    )
