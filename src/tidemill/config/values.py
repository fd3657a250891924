"""Values as people write them, read in one way wherever they stand: sink URIs, changefeed files, flags, Spark options.

Each reader takes text and raises ValueError with what it wants, to be put behind "must be".
"""

import re
from collections.abc import Callable

from tidemill.errors import suggestion

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_SECONDS = 365 * 86400.0
_LONGEST_TEXT = 1000
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)


def seconds_of(text: str) -> float:
    """Of a duration in Go's spelling: ``500ms``, ``1m30s``, ``0``."""
    if text == "0":
        return 0.0
    if not text or len(text) > _LONGEST_TEXT or _DURATION.sub("", text):  # which takes long where it is long
        raise ValueError("a duration such as 5s, 500ms or 1m30s")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))
    if seconds > _LONGEST_SECONDS:
        raise ValueError("at most 8760h, a year")
    return seconds


def seconds_from(lowest: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        seconds = seconds_of(text)
        if seconds < lowest:
            raise ValueError(f"at least {lowest:g}s")
        return seconds

    return read


def boolean_of(text: str) -> bool:
    if text.lower() in ("true", "t", "1"):
        return True
    if text.lower() in ("false", "f", "0"):
        return False
    raise ValueError("true or false")


def number_from(lowest: int, *, most: int) -> Callable[[str], int]:
    """A whole number; beyond ``most`` it counts as that, as in TiCDC."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) < lowest:
            raise ValueError("a whole number" if lowest == 0 else f"a whole number, {lowest} or more")
        return min(int(text), most)

    return read


def word_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() in words:
            return text.lower()
        raise ValueError(f"{' or '.join(filter(None, [', '.join(words[:-1]), words[-1]]))}.{suggestion(text, words)}")

    return read


def unescaped(text: str) -> str:
    """Text in which ``\\r``, ``\\n`` and ``\\t`` may be spelled with a backslash."""
    return text.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t")


def sentence(wanted: ValueError) -> str:
    """What a reader wants, to end a sentence with; it may have made a suggestion, which is a sentence of its own."""
    return str(wanted) if str(wanted).endswith((".", "?")) else f"{wanted}."
