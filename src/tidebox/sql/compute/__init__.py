"""Expressions computed as MySQL computes them, one row at a time.

    tree (sql.syntax) ── compile, once ──► Computed: type, and a function from a row to a value
                                           kinds, convert, temporal, compare, operators, functions, documents

Values are Python's: int, Decimal, float, str, bytes, Time, timedelta, Json, tuples of floats, and None for
NULL. The type of an expression is known before it runs and says how its values are read.
"""
