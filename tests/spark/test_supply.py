"""Where segments are served to workers, and what is said where they cannot be."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.errors import EngineError, UsageError
from tidemill.spark.supply import _start


@pytest.mark.parametrize("port", ["x", "-1", "65536", "", "²"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match=r"spark\.tidemill\.flight\.port is .*, which is no port"):
        _start("127.0.0.1", port)


def test_an_address_of_another_machine_and_a_port_that_is_taken_are_named() -> None:
    with pytest.raises(EngineError, match=r"cannot serve segments to Spark's workers at 203\.0\.113\.7"):
        _start("203.0.113.7", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(EngineError, match=f"port {port}: .* or the port is taken"):
            _start("127.0.0.1", port)
    one = _start("127.0.0.1", "0")
    with pytest.raises(EngineError, match="or the port is taken"):
        _start("127.0.0.1", str(one.server.port))
    one.server.stop()


SCRIPT = """
import os, sys, tempfile
from pathlib import Path
from pyarrow import flight
from tests.flow.sorter.sorter_changes import batch, change
from tests.flow.sorter.test_fetching import Capture
from tidemill.certificates import self_signed
from tidemill.flow.sorter import fetching
from tidemill.flow.sorter.wire import Ticket

capture = Capture(Path(tempfile.mkdtemp(dir=sys.argv[1])) / "segments", self_signed("tidemill"))
segment = capture.write([change(ts, b"%d" % ts, value=os.urandom(1 << 20)) for ts in range(1, 30)])
client = fetching._client(os.getpid(), capture.supply)
options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + capture.token.encode())])
reader = client.do_get(flight.Ticket(Ticket(segment.layout.identity, "x", 0, 29).write()), options)
reader.read_chunk()
capture.server.stop()
print("stopped")
"""


def test_a_worker_that_stands_still_does_not_keep_the_capture_from_ending(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
