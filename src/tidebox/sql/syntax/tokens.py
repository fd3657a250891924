"""MySQL's text cut into tokens."""

import re
from decimal import Decimal
from enum import Enum, auto
from typing import Final, NamedTuple

from tidebox.sql.wire.errors import syntax_error


class Kind(Enum):
    WORD = auto()  # a name or keyword as written
    QUOTED = auto()  # a name in backquotes
    STRING = auto()
    INTEGER = auto()
    DECIMAL = auto()
    FLOAT = auto()
    BITS = auto()  # x'…', b'…', 0x…, 0b…: the value is bytes
    OPERATOR = auto()
    USER_VARIABLE = auto()
    SYSTEM_VARIABLE = auto()
    PARAMETER = auto()
    END = auto()


class Token(NamedTuple):
    kind: Kind
    value: str | int | Decimal | float | bytes
    start: int
    end: int
    upper: str = ""  # of a word


_PATTERN: Final = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*|--(?=[\s\x00]|$)[^\n]*|/\*(?![!+T])[\s\S]*?\*/|/\*\+[\s\S]*?\*/)
  | (?P<hint>/\*(?:!\d{0,6}|T!(?:\[[^\]]*\])?)|\*/)
  | (?P<bits>0x[0-9a-fA-F]+(?![\w$])|0b[01]+(?![\w$])|[xX]'[0-9a-fA-F]*'|[bB]'[01]*')
  | (?P<number>(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+(?![\w$])|\d+\.\d*|\.\d+|\d+(?![\w$\x80-\U0010ffff]))
  | (?P<string>[nN]?'(?:[^'\\]|''|\\[\s\S])*'|"(?:[^"\\]|""|\\[\s\S])*")
  | (?P<word>[\w$\x80-\U0010ffff]+)
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<system>@@(?:[\w$]+\.)?[\w$]+|@@`[^`]+`)
  | (?P<user>@(?:[\w$.]+|'[^']*'|"[^"]*"|`[^`]*`))
  | (?P<operator><=>|->>|->|<<|>>|<=|>=|<>|!=|:=|\|\||&&|[-+*/%^&|~!=<>(),.;{}:])
  | (?P<parameter>\?)
    """,
    re.VERBOSE,
)
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPE: Final = re.compile(r"\\([\s\S])|''", re.NOFLAG)
_ESCAPE_DOUBLE: Final = re.compile(r'\\([\s\S])|""', re.NOFLAG)


def tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    at, size = 0, len(text)
    while at < size:
        found = _PATTERN.match(text, at)
        if found is None:
            raise syntax_error(text, at, size if text[at] in "'\"`" else at + 1)
        start, at = at, found.end()
        match found.lastgroup:
            case "space" | "hint":
                pass
            case "word":
                word = found[0]
                tokens.append(Token(Kind.WORD, word, start, at, word.upper()))
            case "number":
                tokens.append(_number(found[0], start, at))
            case "string":
                value = _string(found[0])
                last = tokens[-1] if tokens else None
                if last is not None and last.kind is Kind.STRING:  # 'a' 'b' is one string
                    tokens[-1] = Token(Kind.STRING, str(last.value) + value, last.start, at)
                else:
                    tokens.append(Token(Kind.STRING, value, start, at))
            case "quoted":
                tokens.append(Token(Kind.QUOTED, found[0][1:-1].replace("``", "`"), start, at))
            case "operator":
                tokens.append(Token(Kind.OPERATOR, found[0], start, at))
            case "bits":
                tokens.append(Token(Kind.BITS, _bits(found[0], text, start), start, at))
            case "user":
                tokens.append(Token(Kind.USER_VARIABLE, found[0][1:].strip("'\"`").lower(), start, at))
            case "system":
                tokens.append(Token(Kind.SYSTEM_VARIABLE, found[0][2:].strip("`").lower(), start, at))
            case _:
                tokens.append(Token(Kind.PARAMETER, "?", start, at))
    tokens.append(Token(Kind.END, "", size, size))
    return tokens


def _number(text: str, start: int, end: int) -> Token:
    if "e" in text or "E" in text:
        return Token(Kind.FLOAT, float(text), start, end)
    if "." in text:
        return Token(Kind.DECIMAL, Decimal(text), start, end)
    return Token(Kind.INTEGER, int(text), start, end)


def _string(text: str) -> str:
    if text[0] in "nN":
        text = text[1:]
    body = text[1:-1]
    if "\\" not in body and text[0] not in body:
        return body
    return (_ESCAPE if text[0] == "'" else _ESCAPE_DOUBLE).sub(_unescape, body)


def _unescape(found: re.Match[str]) -> str:
    escaped = found[1]
    if escaped is None:
        return found[0][0]
    if escaped in "%_":
        return "\\" + escaped  # for LIKE to see
    return _ESCAPES.get(escaped, escaped)


def _bits(text: str, whole: str, start: int) -> bytes:
    if text[1] == "'":
        digits, is_hex = text[2:-1], text[0] in "xX"
        if is_hex and len(digits) % 2:
            raise syntax_error(whole, start, start + len(text))
    else:
        digits, is_hex = text[2:], text[1] == "x"
    if is_hex:
        return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
    return int(digits, 2).to_bytes((len(digits) + 7) // 8, "big") if digits else b""
