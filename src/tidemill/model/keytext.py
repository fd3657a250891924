"""Keys as people write them: in hex, as they are, or escaped."""

import re
from enum import StrEnum

from tidemill.errors import UsageError

MAX_KEY_BYTES = 8192  # TiKV's own default

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{3}|[abfnrtv\\'\"])|(\\)", re.DOTALL)
_NAMED = dict(zip(b"abfnrtv\\'\"", b"\a\b\f\n\r\t\v\\'\"", strict=True))


class KeyFormat(StrEnum):
    """How keys are written on the command line."""

    hex = "hex"  # 6b657931
    raw = "raw"  # key1, in UTF-8
    escaped = "escaped"  # key\x001


def read_key(text: str, form: KeyFormat, option: str) -> bytes:
    """Raises UsageError, which names the ``option`` that has it."""
    match form:
        case KeyFormat.raw:
            key = text.encode()
        case KeyFormat.hex:
            if not re.fullmatch(r"([0-9a-fA-F]{2})*", text):
                raw = "--format raw" if option.startswith("--") else "the option keyFormat as 'raw'"
                raise UsageError(
                    f"{option} {_cut(text)!r} is not a key in hex: write two digits 0-9, a-f for each byte, as "
                    f"6b6579 for 'key', or give {raw}."
                )
            key = bytes.fromhex(text)
        case KeyFormat.escaped:
            key = _unescaped(text, option)
    if len(key) > MAX_KEY_BYTES:
        raise UsageError(f"{option} has {len(key)} bytes, and TiKV takes keys of {MAX_KEY_BYTES} at most. Cut it.")
    return key


def _unescaped(text: str, option: str) -> bytes:
    def byte(found: re.Match[bytes]) -> bytes:
        escape = found[1]
        if escape is None:
            raise UsageError(
                f"{option} {_cut(text)!r} is not an escaped key: behind a backslash comes x and two hex digits, three "
                "octal digits, or one of a b f n r t v \\ ' \". Write a backslash itself as \\\\."
            )
        if escape[:1] == b"x":
            return bytes([int(escape[1:], 16)])
        if len(escape) == 1:
            return bytes([_NAMED[escape[0]]])
        number = int(escape, 8)
        if number > 0xFF:
            raise UsageError(f"{option} {_cut(text)!r} has \\{escape.decode()}, which is no byte: \\377 is the last.")
        return bytes([number])

    return _ESCAPE.sub(byte, text.encode())


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
