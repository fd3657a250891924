"""Addresses as people give them: ``host:port``, checked once."""

import re
from typing import NamedTuple

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/@?#\[\]]+):(\d+)")
LARGEST_PORT = 65535


class Address(NamedTuple):
    host: str  # without the brackets of an IPv6 address
    port: int


def read_address(text: str) -> Address:
    """Raises ValueError with what is wrong, to follow the name of what was given."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError("is not of the form host:port")
    if not 1 <= int(found[2]) <= LARGEST_PORT:
        raise ValueError(f"has port {found[2]}; a port is a number from 1 to {LARGEST_PORT}")
    return Address(found[1].strip("[]"), int(found[2]))
