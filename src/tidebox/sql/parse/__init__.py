"""The text of DDL into statements. What lies outside of the subset is refused by its name (error 1235).

    text ──► lexer ──► tables, columns, expressions ──► statements

DDL has a grammar of its own because its documents must come out as TiDB's, to the letter; queries and DML
are read by ``sql.syntax``.
"""

from tidebox.sql.parse.entry import parse
from tidebox.sql.parse.statements import Statement

__all__ = ["Statement", "parse"]
