"""A place among tokens, and what every rule of the grammar asks of it."""

from collections.abc import Callable
from typing import TypeVar

from tidebox.sql.parse.lexer import Kind, Token
from tidebox.sql.wire.errors import Errno, SqlError, sql_error, syntax_error

T = TypeVar("T")


def words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What cannot be a name without back-quotes. The rest of MySQL's keywords may.
RESERVED = words_in("""
    ADD ALL ALTER ANALYZE AND ARRAY AS ASC BETWEEN BIGINT BINARY BLOB BOTH BY CALL CASCADE CASE CHANGE CHAR
    CHARACTER CHECK COLLATE COLUMN CONSTRAINT CONTINUE CONVERT CREATE CROSS CURRENT_DATE CURRENT_ROLE
    CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER CURSOR DATABASE DATABASES DECIMAL DEFAULT DELAYED DELETE DESC
    DESCRIBE DISTINCT DISTINCTROW DIV DOUBLE DROP DUAL ELSE ELSEIF ENCLOSED ESCAPED EXCEPT EXISTS EXIT EXPLAIN
    FALSE FETCH FLOAT FLOAT4 FLOAT8 FOR FORCE FOREIGN FROM FULLTEXT GENERATED GRANT GROUP GROUPS HAVING
    HIGH_PRIORITY IF IGNORE ILIKE IN INDEX INFILE INNER INOUT INSERT INT INT1 INT2 INT3 INT4 INT8 INTEGER
    INTERSECT INTERVAL INTO IS ITERATE JOIN KEY KEYS KILL LEADING LEAVE LEFT LIKE LIMIT LINEAR LINES LOAD
    LOCALTIME LOCALTIMESTAMP LOCK LONG LONGBLOB LONGTEXT LOW_PRIORITY MATCH MAXVALUE MEDIUMBLOB MEDIUMINT
    MEDIUMTEXT MIDDLEINT MOD NATURAL NOT NO_WRITE_TO_BINLOG NULL NUMERIC OF ON OPTIMIZE OPTION OPTIONALLY OR
    ORDER OUT OUTER OUTFILE OVER PARTITION PRECISION PRIMARY PROCEDURE RANGE READ REAL RECURSIVE REFERENCES
    REGEXP RELEASE RENAME REPEAT REPLACE REQUIRE RESTRICT REVOKE RIGHT RLIKE ROW ROWS SELECT SET SHOW SMALLINT
    SQL SQLEXCEPTION SQLSTATE SQLWARNING SQL_BIG_RESULT SQL_CALC_FOUND_ROWS SQL_SMALL_RESULT SSL STARTING
    STATS_EXTENDED STORED STRAIGHT_JOIN TABLE TABLESAMPLE TERMINATED THEN TINYBLOB TINYINT TINYTEXT TO TRAILING
    TRIGGER TRUE UNION UNIQUE UNLOCK UNSIGNED UNTIL UPDATE USAGE USE USING UTC_DATE UTC_TIME UTC_TIMESTAMP
    VALUES VARBINARY VARCHAR VARCHARACTER VARYING VIRTUAL WHEN WHERE WHILE WINDOW WITH WRITE XOR YEAR_MONTH
    ZEROFILL
""")
MAX_NAME = 64


class Cursor:
    def __init__(self, sql: str, tokens: list[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def ahead(self, n: int = 1) -> Token:
        return self.tokens[min(self.at + n, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.token
        if token.kind is not Kind.END:
            self.at += 1
        return token

    def is_word(self, *words: str) -> bool:
        """Whether these words, each or'ed alternative of one token, come next."""
        return self.token.kind is Kind.WORD and self.token.upper in words

    def are_words(self, *words: str) -> bool:
        """Whether these words come next, one after the other."""
        return self.are_words_at(0, *words)

    def are_words_at(self, place: int, *words: str) -> bool:
        """Whether these words come ``place`` tokens ahead."""
        return all(
            self.ahead(place + i).kind is Kind.WORD and self.ahead(place + i).upper == w for i, w in enumerate(words)
        )

    def accept(self, *words: str) -> bool:
        """Take these words, all of them in this order, if they come next."""
        if not self.are_words(*words):
            return False
        self.at += len(words)
        return True

    def one_of(self, *words: str) -> str | None:
        if self.is_word(*words):
            return self.take().upper
        return None

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.error()

    def is_sign(self, sign: str) -> bool:
        return self.token.kind is Kind.SIGN and self.token.text == sign

    def accept_sign(self, sign: str) -> bool:
        if self.is_sign(sign):
            self.at += 1
            return True
        return False

    def expect_sign(self, sign: str) -> None:
        if not self.accept_sign(sign):
            raise self.error()

    def name(self, *, any_word: bool = False) -> str:
        """An identifier; any_word: where MySQL takes reserved words too, right behind a point."""
        token = self.token
        is_name = token.kind is Kind.NAME or (token.kind is Kind.WORD and (any_word or token.upper not in RESERVED))
        if not is_name:
            raise self.error()
        self.at += 1
        if len(token.text) > MAX_NAME:
            raise sql_error(Errno.TOO_LONG_IDENT, token.text[:100])
        return token.text

    def string(self) -> str:
        if self.token.kind is not Kind.STRING:
            raise self.error()
        return self.take().text

    def integer(self) -> int:
        if self.token.kind is not Kind.INTEGER:
            raise self.error()
        return int(self.take().text)

    def listed(self, rule: Callable[[], T]) -> tuple[T, ...]:
        """One or more of ``rule``, in parentheses, between commas."""
        self.expect_sign("(")
        found = [rule()]
        while self.accept_sign(","):
            found.append(rule())
        self.expect_sign(")")
        return tuple(found)

    def end(self) -> None:
        if self.token.kind is not Kind.END:
            raise self.error()

    def error(self) -> SqlError:
        """1064 at the present token."""
        return syntax_error(self.sql, self.token.start, self.token.end)

    @staticmethod
    def refuse(what: str) -> SqlError:
        """1235: a statement or a clause that lies outside of what is served, by its name."""
        return sql_error(Errno.NOT_SUPPORTED_YET, what)
