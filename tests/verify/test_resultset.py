"""Answers of a MySQL server that are not whole."""

from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from tidemill.verify.resultset import _Rows


@pytest.mark.parametrize("payload", [b"\xff", b"\xff\x07", b"\xff\x07\x05", b"\xff\x07\x05#\xff\xfe\xfd\xfc\xfb"])
def test_an_error_that_is_cut_off_is_an_error_of_the_connection(payload: bytes) -> None:
    packet = len(payload).to_bytes(3, "little") + b"\1" + payload
    connection: Any = SimpleNamespace(_rfile=BytesIO(packet))
    with pytest.raises(pymysql.err.OperationalError):
        list(_Rows(connection, 1).read())
