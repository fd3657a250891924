"""Addresses as people give them: ``host:port``, checked once."""

import re
from typing import NamedTuple

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/@?#\[\]]+):([0-9]+)")
LARGEST_PORT = 65535


class Address(NamedTuple):
    host: str  # without the brackets of an IPv6 address
    port: int


def read_address(text: str) -> Address:
    """Raises ValueError with what is wrong, to follow the name of what was given."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError("is not of the form host:port")
    if len(found[2]) > len(str(LARGEST_PORT)) or not 1 <= int(found[2]) <= LARGEST_PORT:
        raise ValueError(f"has port {found[2]}; a port is a number from 1 to {LARGEST_PORT}")
    host = found[1].strip("[]")
    if not is_host(host):
        raise ValueError("names a host that cannot be one: between two dots stand 1 to 63 characters")
    return Address(host, int(found[2]))


def is_host(text: str) -> bool:
    """Whether a resolver can be asked for it; Python's own raises something else than that nothing was found."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in text
