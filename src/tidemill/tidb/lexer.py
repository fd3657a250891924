"""MySQL's text, cut into what it consists of: the one place that knows how strings, names and comments are spelled.

    text ──► pieces   every character of it in order, spaces and comments too: for those who change a text
         └─► tokens   what means something, without quotes and escapes: for those who read it by a grammar

Comments that TiDB executes (``/*!40101 … */``, ``/*T! … */``, ``/*T![feature] … */``) are read as what they hold;
``/*M! … */``, hints and all others are skipped. ``sql_mode`` has TiDB's bits; of these, ANSI_QUOTES (``"a"`` is a name)
and NO_BACKSLASH_ESCAPES change how a text is read.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from typing import Final, NamedTuple

ANSI_QUOTES: Final = 1 << 2
NO_BACKSLASH_ESCAPES: Final = 1 << 20

QUOTED_NAME: Final = r"`(?:[^`]|``)*+`"  # for those who know the rest of their text


class Kind(Enum):
    WORD = "word"  # a keyword, or a name without quotes
    NAME = "name"  # in quotes
    STRING = "string"
    INTEGER = "integer"
    DECIMAL = "decimal"  # with a point
    FLOAT = "float"  # with an exponent
    HEX = "hex"  # 0x…, x'…'
    BITS = "bits"  # 0b…, b'…'
    USER_VARIABLE = "user_variable"  # @…
    SYSTEM_VARIABLE = "system_variable"  # @@…
    PARAMETER = "parameter"
    OPERATOR = "operator"  # and punctuation
    SPACE = "space"
    COMMENT = "comment"
    OPEN = "open"  # of a comment that is executed
    CLOSE = "close"
    UNREADABLE = "unreadable"  # from a quote or a comment that is not closed to the end, or one character
    END = "end"


class Token(NamedTuple):
    """``text``: names and strings without quotes and escapes; of numbers what is written; of hex and bits the digits;
    of variables their names in small letters."""

    kind: Kind
    text: str
    start: int
    end: int
    upper: str = ""  # of words


class Piece(NamedTuple):
    kind: Kind
    text: str  # as it stands
    start: int


class MalformedTextError(ValueError):
    """What stands in ``start`` to ``end`` is no SQL."""

    def __init__(self, text: str, start: int, end: int) -> None:
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        what = f"{text[start : start + 20]!r} cannot be read" if start < len(text) else "a comment is not closed"
        super().__init__(f"line {line} column {column}: {what}")
        self.start = start
        self.end = end


_IN_WORD: Final = r"[0-9A-Za-z_$\x80-\U0010ffff]"
_IN_NUMBER_END: Final = rf"(?!{_IN_WORD})"
_STRINGS: Final = r"""'(?:[^'\\]++|''|\\.)*+'|"(?:[^"\\]++|""|\\.)*+\""""
_PLAIN_STRINGS: Final = r"""'(?:[^']++|'')*+'|"(?:[^"]++|"")*+\""""
_SINGLE_STRINGS: Final = r"""'(?:[^'\\]++|''|\\.)*+'"""
_SINGLE_PLAIN_STRINGS: Final = r"""'(?:[^']++|'')*+'"""
_COMMENT: Final = r"/\*(?!!|T!).*?\*/|\#[^\n]*+|--(?=[\s\x00-\x1f]|\Z)[^\n]*+"
_OPEN: Final = r"/\*!(?:[0-9]{5,6})?|/\*T!(?:\[[^\]*]*\])?"
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


def tokens(text: str, sql_mode: int = 0) -> list[Token]:
    """What means something in ``text``, in order, the last one of kind END. Raises MalformedTextError."""
    found: list[Token] = []
    add, kinds, has_escapes = found.append, _KINDS, not sql_mode & NO_BACKSLASH_ESCAPES
    make = partial(tuple.__new__, Token)  # a third of the time that Token(…) takes, which is most of the loop's
    depth = 0
    for match in _scan(text, sql_mode):
        group = match.lastgroup
        if group == "space":
            continue
        start, end = match.span()
        written = match[0]
        if group == "word":
            add(make((Kind.WORD, written, start, end, written.upper())))
        elif group == "operator":
            add(make((Kind.OPERATOR, written, start, end, "")))
        elif group == "string":
            add(make((Kind.STRING, _string(written, has_escapes), start, end, "")))
        elif group == "open":
            depth += 1
        elif group == "close":
            depth -= 1
        elif group == "unreadable":
            raise MalformedTextError(text, start, end)
        elif group != "comment":
            kind = kinds[group or ""]
            add(make((kind, _said(kind, written), start, end, written.upper() if kind is Kind.WORD else "")))
    if depth:
        raise MalformedTextError(text, len(text), len(text))
    add(Token(Kind.END, "", len(text), len(text)))
    return found


def pieces(text: str, sql_mode: int = 0) -> Iterator[Piece]:
    """All of ``text``: joined again they are it, whatever it is."""
    for match in _scan(text, sql_mode):
        yield Piece(_KINDS[match.lastgroup or ""], match[0], match.start())


def split_statements(text: str, sql_mode: int = 0) -> list[str]:
    """The statements of ``text``, trimmed, without their semicolons; what holds nothing but comments is left out.

    A semicolon ends no statement in a string, a quoted name or a comment, be it one that is executed. What is not
    closed goes to the end.
    """
    trimmed = text.strip().rstrip(";").rstrip()
    if ";" not in trimmed and trimmed[:1].isalpha():
        return [trimmed]  # nearly all
    statements: list[str] = []
    start = depth = 0
    has_content = False
    for match in _scan(text, sql_mode):
        group = match.lastgroup
        if group == "operator" and match[0] == ";" and not depth:
            if has_content:
                statements.append(text[start : match.start()].strip())
            start, has_content = match.end(), False
            continue
        depth += (group == "open") - (group == "close")
        is_comment = group in ("space", "comment") or (group == "unreadable" and text.startswith("/*", match.start()))
        has_content = has_content or not is_comment
    if has_content:
        statements.append(text[start:].strip())
    return statements


def number(token: Token) -> int | Decimal | float:
    """What a token of one of the three kinds of numbers says."""
    if token.kind is Kind.INTEGER:
        return int(token.text)
    return Decimal(token.text) if token.kind is Kind.DECIMAL else float(token.text)


def digits_as_bytes(token: Token) -> bytes:
    """What a token of kind HEX or BITS says."""
    digits = token.text
    if token.kind is Kind.HEX:
        return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
    return int(digits, 2).to_bytes((len(digits) + 7) // 8, "big") if digits else b""


def quoted(name: str) -> str:
    """A name as it may stand in any statement."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """What a name in a statement says, with or without its quotes."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def qualified(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(table)}"


def literal(text: str) -> str:
    """A string as it may stand in a statement of the default sql_mode."""
    escaped = text.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n").replace("\r", "\\r")
    return "'" + escaped.replace("\0", "\\0") + "'"


@cache
def _pattern(has_ansi_quotes: bool, has_escapes: bool) -> re.Pattern[str]:
    if has_ansi_quotes:
        strings = _SINGLE_STRINGS if has_escapes else _SINGLE_PLAIN_STRINGS
    else:
        strings = _STRINGS if has_escapes else _PLAIN_STRINGS
    ansi_name = r'|"(?:[^"]|"")*+"' if has_ansi_quotes else ""
    return re.compile(
        rf"""(?P<space>[\s\x00]++)
        | (?P<word>(?![xXbBnN]')[A-Za-z_$\x80-\U0010ffff]{_IN_WORD}*+)
        | (?P<operator>[(),=;])
        | (?P<comment>{_COMMENT})
        | (?P<open>{_OPEN})
        | (?P<close>\*/)
        | (?P<hex>0x[0-9A-Fa-f]++{_IN_NUMBER_END}|[xX]'(?:[0-9A-Fa-f]{{2}})*')
        | (?P<bits>0b[01]++{_IN_NUMBER_END}|[bB]'[01]*')
        | (?P<float>(?:[0-9]++(?:\.[0-9]*+)?|(?<!{_BEFORE_POINT})\.[0-9]++)[eE][+-]?[0-9]++{_IN_NUMBER_END})
        | (?P<integer>[0-9]++(?!\.|{_IN_WORD}))
        | (?P<decimal>[0-9]++\.[0-9]*+|(?<!{_BEFORE_POINT})\.[0-9]++)
        | (?P<digits>[0-9]{_IN_WORD}*+)
        | (?P<string>[nN]?(?:{strings}))
        | (?P<name>{QUOTED_NAME}{ansi_name})
        | (?P<system_variable>@@(?:(?:{_IN_WORD}+\.)?{_IN_WORD}+|`[^`]+`))
        | (?P<user_variable>@(?:[0-9A-Za-z_$.\x80-\U0010ffff]+|'[^']*'|"[^"]*"|`[^`]*`))
        | (?P<parameter>\?)
        | (?P<sign><=>|->>|->|<<|>>|<=|>=|<>|!=|:=|\|\||&&|(?!/\*)[-+*/%^&|~!<>.{{}}:@\[\]])
        | (?P<unreadable>['"`].*|/\*.*|.)
        """,
        re.VERBOSE | re.DOTALL,
    )


_BEFORE_POINT: Final = r"[0-9A-Za-z_$\x80-\U0010ffff`]"  # t.1 is a column of a table
_STAR: Final = re.compile(r"(?P<operator>\*)")
_KINDS: Final = {kind.value: kind for kind in Kind} | {"digits": Kind.WORD, "sign": Kind.OPERATOR}


def _scan(text: str, sql_mode: int) -> Iterator[re.Match[str]]:
    """Each match one piece."""
    pattern = _pattern(bool(sql_mode & ANSI_QUOTES), not sql_mode & NO_BACKSLASH_ESCAPES)
    return pattern.finditer(text) if "*/" not in text else _scan_comments(text, pattern)


def _scan_comments(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """``*/`` closes only what is open; elsewhere it is a star and a slash."""
    at: int | None = 0
    depth = 0
    while at is not None:
        start, at = at, None
        for match in pattern.finditer(text, start):
            if match.lastgroup == "open":
                depth += 1
            elif match.lastgroup == "close":
                if not depth:
                    star = _STAR.match(text, match.start())
                    assert star is not None
                    yield star
                    at = match.start() + 1
                    break
                depth -= 1
            yield match


def _said(kind: Kind, written: str) -> str:
    match kind:
        case Kind.NAME:
            quote = written[0]
            return written[1:-1].replace(quote * 2, quote)
        case Kind.HEX | Kind.BITS:
            return written[2:].removesuffix("'")
        case Kind.USER_VARIABLE | Kind.SYSTEM_VARIABLE:
            return written.lstrip("@").strip("'\"`").lower()
        case _:
            return written


_ESCAPE: Final = {quote: re.compile(rf"\\(.)|{quote}{quote}", re.DOTALL) for quote in ("'", '"')}


def _string(written: str, has_escapes: bool) -> str:
    if written[0] in "nN":
        written = written[1:]
    quote, body = written[0], written[1:-1]
    if quote not in body and "\\" not in body:
        return body
    return _ESCAPE[quote].sub(_unescaped, body) if has_escapes else body.replace(quote * 2, quote)


def _unescaped(found: re.Match[str]) -> str:
    escaped: str | None = found[1]
    if escaped is None:
        return found[0][0]
    if escaped in "%_":
        return "\\" + escaped  # LIKE wants to see it
    return _ESCAPES.get(escaped, escaped)
