"""A place among tokens, and what every rule of a grammar asks of it."""

from collections.abc import Callable
from typing import ClassVar, TypeVar

from tidebox.sql.wire.errors import Errno, SqlError, sql_error, syntax_error
from tidemill.tidb.lexer import Kind, MalformedTextError, Token, tokens

T = TypeVar("T")


def words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Cursor:
    reserved: ClassVar[frozenset[str]] = frozenset()  # what cannot be a name without back-quotes

    def __init__(self, sql: str) -> None:
        """Raises 1064 where ``sql`` is not made of tokens."""
        self.sql = sql
        self.tokens = tokenized(sql)
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
        """Whether one of these words comes next."""
        token = self.tokens[self.at]
        return token.kind is Kind.WORD and token.upper in words

    def are_words(self, *words: str) -> bool:
        """Whether these words come next, one after the other."""
        return self.are_words_at(0, *words)

    def are_words_at(self, place: int, *words: str) -> bool:
        """Whether these words come ``place`` tokens ahead."""
        for n, word in enumerate(words, place):
            token = self.ahead(n)
            if token.kind is not Kind.WORD or token.upper != word:
                return False
        return True

    def accept(self, *words: str) -> bool:
        """Take these words, all of them in this order, if they come next."""
        if not self.are_words_at(0, *words):
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
        token = self.tokens[self.at]
        return token.kind is Kind.OPERATOR and token.text == sign

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
        token = self.tokens[self.at]
        is_word = token.kind is Kind.WORD and (any_word or token.upper not in self.reserved)
        if not is_word and token.kind is not Kind.NAME:
            raise self.error()
        self.at += 1
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
        found = self.several(rule)
        self.expect_sign(")")
        return found

    def several(self, rule: Callable[[], T]) -> tuple[T, ...]:
        """One or more of ``rule``, between commas."""
        found = [rule()]
        while self.accept_sign(","):
            found.append(rule())
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


def tokenized(sql: str) -> list[Token]:
    try:
        return tokens(sql)
    except MalformedTextError as e:
        raise syntax_error(sql, e.start, e.end) from None
