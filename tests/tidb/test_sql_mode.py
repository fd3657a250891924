"""Statements typed under another sql_mode, respelled for the default one."""

import pytest

from tidemill.tidb.lexer import ANSI_QUOTES, NO_BACKSLASH_ESCAPES
from tidemill.tidb.sql_mode import in_default_mode, modes_of

BOTH = ANSI_QUOTES | NO_BACKSLASH_ESCAPES
STRICT = 1 << 21


@pytest.mark.parametrize(
    ("mode", "typed", "expected"),
    [
        (STRICT, r"""CREATE TABLE t (a CHAR(9) DEFAULT "x\"y")""", r"""CREATE TABLE t (a CHAR(9) DEFAULT "x\"y")"""),
        (ANSI_QUOTES, """ALTER TABLE "t" ADD "a b" INT""", "ALTER TABLE `t` ADD `a b` INT"),
        (ANSI_QUOTES, '''DROP TABLE "a""b`c"''', """DROP TABLE `a"b``c`"""),
        (ANSI_QUOTES, """ALTER TABLE t COMMENT 'it "is"' """, """ALTER TABLE t COMMENT 'it "is"' """),
        (ANSI_QUOTES, r"""ALTER TABLE "t" COMMENT 'a\'"b"\'' """, r"""ALTER TABLE `t` COMMENT 'a\'"b"\'' """),
        (ANSI_QUOTES, '''DROP /* "no" */ TABLE "t" -- "no"''', '''DROP /* "no" */ TABLE `t` -- "no"'''),
        (ANSI_QUOTES, '''DROP TABLE `a"b`, "c"''', """DROP TABLE `a"b`, `c`"""),
        (NO_BACKSLASH_ESCAPES, r"ALTER TABLE t COMMENT 'c:\dir\'", r"ALTER TABLE t COMMENT 'c:\\dir\\'"),
        (NO_BACKSLASH_ESCAPES, r'''ALTER TABLE `a\b` COMMENT "\n"''', r'''ALTER TABLE `a\b` COMMENT "\\n"'''),
        (ANSI_QUOTES, """CREATE TABLE t (a INT /*T! "x" */)""", """CREATE TABLE t (a INT /*T! `x` */)"""),
        (BOTH, r"""ALTER TABLE "a\b" COMMENT '\' """, r"""ALTER TABLE `a\b` COMMENT '\\' """),
    ],
)
def test_it_means_the_same_under_the_default_mode(mode: int, typed: str, expected: str) -> None:
    assert in_default_mode(typed, mode) == expected


def test_modes_that_no_spelling_undoes_are_told_by_name() -> None:
    strict, ansi_quotes = 1 << 21, 1 << 2
    assert modes_of(strict | ansi_quotes) == ()
    assert modes_of(strict | 1 << 1 | 1 << 29) == ("PIPES_AS_CONCAT", "HIGH_NOT_PRECEDENCE")
