"""JSON strings as Go's encoders write them, so that our documents equal TiCDC's byte for byte."""

import re
from typing import Any

_SPECIAL = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\ud800-\udfff]')
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def quoted(text: str) -> str:
    """``text`` as a JSON string; ``<``, ``>``, ``&`` and the two line separators are escaped too.

    A lone surrogate stands for a byte that is no UTF-8 (``surrogateescape``) and becomes U+FFFD.
    """
    return '"' + _SPECIAL.sub(_escape, text) + '"'


def compact(value: Any) -> str:
    """A document of dicts, lists, text, whole numbers, booleans and null, without a space."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return quoted(value)
        case dict():
            return "{" + ",".join(f"{quoted(name)}:{compact(item)}" for name, item in value.items()) + "}"
        case _:
            return "[" + ",".join(map(compact, value)) + "]"


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    if char in _SHORT:
        return _SHORT[char]
    return f"\\u{ord(char):04x}" if not 0xD800 <= ord(char) <= 0xDFFF else "\\ufffd"


_CONTROLS = re.compile('[\x00-\x1f"\\\\\ud800-\udfff]')


def plain(value: object) -> str:
    """A document of dicts, lists, strings, whole numbers, booleans and None, with no more escapes than JSON wants."""
    match value:
        case str():
            return '"' + _CONTROLS.sub(_escape, value) + '"'
        case dict():
            return "{" + ",".join(f"{plain(name)}:{plain(member)}" for name, member in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(plain, value)) + "]"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
    raise TypeError(f"{type(value).__name__} has no place in a document of ours")
