"""SQL text into statements. What lies outside of the subset is refused by its name (error 1235).

    text ──► lexer ──► tables, columns, expressions ──► statements     DDL, by our own grammar
                  └──► rows ────────────────────────► statements     SELECT and DML, by sqlglot's

DDL is parsed here because its documents must come out as TiDB's, to the letter; queries are handed on.
"""

from tidemill.store.sql.parse.rows import parse, split
from tidemill.store.sql.parse.statements import Statement

__all__ = ["Statement", "parse", "split"]
