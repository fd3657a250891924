"""SQL text as tokens that can be looked at, removed and replaced; what lies between them is kept.

Only words outside strings, quoted names and comments count as words.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidemill.tidb.lexer import Kind, pieces, unquoted

_IN_QUOTES: Final = (Kind.STRING, Kind.NAME, Kind.OPEN, Kind.CLOSE)


@dataclass(slots=True)
class Token:
    kind: Kind  # OPEN: a whole comment of TiDB's, ``/*T! … */``
    text: str

    @property
    def word(self) -> str:
        return "" if self.kind in _IN_QUOTES else self.text.upper()

    @property
    def name(self) -> str:
        """What it names, were it a name, in small letters."""
        return unquoted(self.text).lower()


class Tokens:
    """The tokens that mean something; white space is kept before each."""

    def __init__(self, query: str, *, keeps_features: bool = True) -> None:
        """Without its features, the text says by itself what TiDB executes of comments: others need not."""
        self.tokens: list[Token] = []
        self.before: list[str] = []
        space = ""
        for token in _meaning(query, executes=not keeps_features):
            is_left_out = token.kind is Kind.OPEN and token.text.startswith("/*T!") and not keeps_features
            if token.kind in (Kind.SPACE, Kind.COMMENT) or is_left_out:
                space += " " if is_left_out else token.text
                continue
            self.tokens.append(token)
            self.before.append(space)
            space = ""

    def result(self) -> str:
        self._tidy()
        text = "".join(b + t.text for b, t in zip(self.before, self.tokens, strict=True)).strip().rstrip(";").strip()
        words = [token.word for token in self.tokens if token.word != ";"]
        is_empty_alter = words[:2] == ["ALTER", "TABLE"] and len(self.tokens) <= self.name_end(2)
        return "" if is_empty_alter else text

    def sweep(self, rules: Sequence[Callable[[int], int]]) -> None:
        at = 0
        while at < len(self.tokens):
            count = next((n for rule in rules if (n := rule(at))), 0)
            if count:
                self.remove(at, at + count)
            else:
                at += 1

    def _tidy(self) -> None:
        """Commas that stand alone where a clause of an ALTER TABLE was taken out."""
        at = self.name_end(2)
        if [self.word(0), self.word(1), self.word(at)] == ["ALTER", "TABLE", ","]:
            self.remove(at, at + 1)
        at = 0
        while at < len(self.tokens):
            is_alone = self.tokens[at].word == "," and self.word(at + 1) in (",", "", ";")
            if is_alone and (at + 1 >= len(self.tokens) or self.tokens[at + 1].kind is Kind.OPERATOR):
                self.remove(at, at + 1)
            else:
                at += 1

    def word(self, at: int) -> str:
        return self.tokens[at].word if 0 <= at < len(self.tokens) else ""

    def insert(self, at: int, text: str) -> None:
        self.tokens.insert(at, Token(Kind.WORD, text))
        self.before.insert(at, " ")

    def remove(self, first: int, last: int) -> None:
        del self.tokens[first:last]
        del self.before[first:last]

    def closing(self, at: int) -> int:
        """Behind the parenthesis that closes the one at ``at``."""
        depth = 0
        while at < len(self.tokens):
            depth += {"(": 1, ")": -1}.get(self.tokens[at].word, 0)
            at += 1
            if depth == 0:
                break
        return at

    def opening(self, at: int) -> int:
        """The parenthesis that the one at ``at`` closes."""
        depth = 0
        while at > 0:
            depth += {")": 1, "(": -1}.get(self.tokens[at].word, 0)
            if depth == 0:
                break
            at -= 1
        return at

    def name_end(self, at: int) -> int:
        """Behind a name that may have two parts."""
        return at + 3 if self.word(at + 1) == "." else at + 1

    def elements(self) -> Iterator[tuple[int, int]]:
        """What stands between commas: the lines of a CREATE TABLE, the clauses of an ALTER TABLE; from the last on, so
        that each may be removed."""
        found: list[tuple[int, int]] = []
        is_creation = self.word(0) == "CREATE" and "TABLE" in (self.word(1), self.word(2))
        at = begin = self.name_end(2) if not is_creation else self.first_parenthesis() + 1
        end = self.closing(at - 1) - 1 if is_creation else len(self.tokens)
        while at < end:
            if self.word(at) == "(":
                at = self.closing(at)
                continue
            if self.word(at) == ",":
                found.append((begin, at))
                begin = at + 1
            at += 1
        found.append((begin, end))
        yield from reversed(found)

    def clause(self, at: int) -> tuple[int, int]:
        """Begin and end of what stands between commas or within parentheses around ``at``."""
        begin, end = at, at + 1
        while begin > 0 and self.word(begin - 1) not in (",", "("):
            begin = self.opening(begin - 1) if self.word(begin - 1) == ")" else begin - 1
        while end < len(self.tokens) and self.word(end) not in (",", ")"):
            end = self.closing(end) if self.word(end) == "(" else end + 1
        return begin, end

    def remove_element(self, begin: int, end: int) -> None:
        """With one of the commas beside it."""
        if self.word(end) == ",":
            self.remove(begin, end + 1)
        else:
            self.remove(begin - (self.word(begin - 1) == ","), end)

    def first_parenthesis(self) -> int:
        return next((at for at in range(len(self.tokens)) if self.word(at) == "("), len(self.tokens))


def tokens_of(text: str) -> list[Token]:
    """What means something in ``text``."""
    return [token for token in _meaning(text) if token.kind not in (Kind.SPACE, Kind.COMMENT, Kind.OPEN)]


def _meaning(text: str, *, executes: bool = False) -> Iterator[Token]:
    """All of ``text``, with each comment of TiDB's as one token. ``executes``: without the signs around what every TiDB
    executes, such as ``/*!80000 … */`` and ``/*T! … */``."""
    feature: list[str] = []
    opening = "/*T![" if executes else "/*T!"
    for piece in pieces(text):
        if feature or (piece.kind is Kind.OPEN and piece.text.startswith(opening)):
            feature.append(piece.text)
            if piece.kind is Kind.CLOSE:
                yield Token(Kind.OPEN, "".join(feature))
                feature = []
        elif executes and piece.kind in (Kind.OPEN, Kind.CLOSE):
            yield Token(Kind.SPACE, " ")
        else:
            yield Token(piece.kind, piece.text)
    if feature:
        yield Token(Kind.OPEN, "".join(feature))
