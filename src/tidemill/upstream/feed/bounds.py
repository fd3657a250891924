"""A span's bounds as plain keys.

Spans are physical (memcomparable), row keys on the change stream are plain. Comparing is done on
plain keys, so a physical bound is turned into the smallest plain key whose physical form is not
below it. That exists for every bound, also for one that is no valid memcomparable key.
"""

from tidemill.model.span import KEY_END

_GROUP = 8
_FULL = 0xFF


def plain_bound(physical: bytes) -> bytes | None:
    """The smallest plain key with ``encode_bytes(key) >= physical``; None if every key lies below."""
    if physical == KEY_END:
        return None
    plain, rest = b"", physical
    while len(rest) > _GROUP and rest[_GROUP] == _FULL:
        plain += rest[:_GROUP]
        rest = rest[_GROUP + 1 :]
    data = rest[:_GROUP]
    shortest = data.rstrip(b"\0")
    if len(rest) <= _GROUP:
        return plain + shortest
    marker, tail = rest[_GROUP], rest[_GROUP + 1 :]
    for length in range(len(shortest), _GROUP):
        own = _FULL - _GROUP + length
        if own > marker or (own == marker and not tail):
            return plain + data[:length]
    return plain + data
