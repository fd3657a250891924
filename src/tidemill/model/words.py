"""Numbers in the words that people read: ``1 row``, ``20 h 14 min``."""

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_TENTHS_BELOW = 10.0  # seconds


def counted(number: int, noun: str, plural: str = "") -> str:
    """``noun`` is in the singular; its ``plural`` takes an s unless it is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def lasting(seconds: float) -> str:
    """In two units at most; below ten seconds with a tenth."""
    if seconds < _TENTHS_BELOW:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    for unit, name, part, part_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // part
            return f"{whole // unit} {name}" + (f" {rest} {part_name}" if rest else "")
    raise AssertionError(f"{whole} s is less than a minute")
