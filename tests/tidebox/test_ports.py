"""Ports that are named before anybody listens on them."""

import socket

import pytest

from tidebox import ports
from tidebox.ports import free_ports


def test_ports_differ_and_are_none_that_the_system_gives_to_connections() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(20_000 <= port < 32_768 for port in found)


def test_a_port_on_which_somebody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_LOWEST", port - 1)
        monkeypatch.setattr(ports, "_HIGHEST", port)
        monkeypatch.setattr(ports, "_TRIES", 2)
        with pytest.raises(OSError, match=r"no free port on 127\.0\.0\.1"):
            free_ports(2)
