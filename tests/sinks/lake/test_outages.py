"""The storage or the catalog of a lake is away: that passes, and is told from what somebody has to fix."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
import requests
import sqlalchemy.exc
from deltalake import DeltaTable
from pyiceberg.exceptions import CommitStateUnknownException, ForbiddenError

from tests.sinks.files.storage.buckets import Bucket, bucket
from tests.sinks.lake.replay import Replay
from tests.sinks.moments import at
from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.model.ts import Ts
from tidemill.sinks.files.storage import parse_storage
from tidemill.sinks.lake import failures
from tidemill.sinks.lake.delta import storage_options
from tidemill.sinks.lake.reader import Lake

NAMES = ("ints",)


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    with bucket() as made:
        yield made


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_an_outage_of_the_bucket_passes_and_nothing_is_there_twice(
    kind: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = "s3" if kind == "parquet" else f"{kind}+s3"
    more = {"iceberg": f"&catalog=sqlite:///{tmp_path}/catalog.db", "delta": "", "parquet": "&protocol=parquet"}[kind]
    replay = Replay("types", kind, tmp_path, f"{scheme}://lake/outage-{kind}?{s3.parameters}{more}")
    end = replay.history.end_ts
    for event in (event for ts in replay.stops() for event in replay.events(ts) if event.table in NAMES):
        replay.sink.ddl(event)
    receipts = replay.write(end, NAMES)
    with s3.stopped():
        for act in (lambda: replay.sink.commit(Ts(end), receipts), lambda: replay.sink.recover(at(replay.from_ts))):
            with pytest.raises(SinkUnavailableError) as raised:
                act()
            assert "hush" not in str(raised.value)
        if kind != "parquet":  # it begins within the commit of a table
            with monkeypatch.context() as patch:
                patch.setattr(replay.sink.writer._generations, "check", lambda: None)
                with pytest.raises(SinkUnavailableError, match="cannot append to"):
                    replay.sink.commit(Ts(end), receipts)
    replay.sink.recover(at(replay.from_ts))
    again = replay.write(end, NAMES)
    replay.commit(end, again)
    lake = Lake(replay.options)
    assert len(lake.changes(lake.table("kinds", "ints"))) == sum(r.rows for r in again) == sum(r.rows for r in receipts)


def _chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_retryable"),
    [
        (requests.exceptions.ConnectionError("secret"), True),
        (requests.exceptions.ReadTimeout("secret"), True),
        (sqlalchemy.exc.OperationalError("select secret", {}, sqlite3.OperationalError("locked")), True),
        (CommitStateUnknownException("secret"), True),
        (OSError("Generic S3 error: error sending request for url (http://secret)"), True),
        (OSError("When writing: AWS Error SLOW_DOWN during PutObject"), True),
        (OSError(28, "No space left on device"), True),
        (_chained(RuntimeError("secret"), ConnectionRefusedError(111, "refused")), True),
        (ForbiddenError("secret"), False),
        (sqlalchemy.exc.ProgrammingError("select secret", {}, sqlite3.ProgrammingError("no such table")), False),
        (PermissionError(13, "denied"), False),
        (ValueError("secret"), False),
        (sqlalchemy.exc.NoSuchModuleError("secret"), False),
    ],
)
def test_what_passes_is_retried_and_the_rest_is_for_somebody_to_fix(error: Exception, is_retryable: bool) -> None:
    found: SinkError = failures.translate("append to table shop.item", error)
    assert found.retryable is is_retryable
    assert type(error).__name__ in str(found)
    assert "secret" not in str(found)


def test_a_catalog_that_needs_other_software_is_said_to() -> None:
    found = failures.translate("open the catalog", sqlalchemy.exc.NoSuchModuleError("secret"))
    assert "no software for this kind of catalog is installed" in str(found)


class Proxy(BaseHTTPRequestHandler):
    """In front of a store that is away."""

    status = HTTPStatus.BAD_GATEWAY

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *words: object) -> None:
        """Nobody reads it."""


def read_arrow(port: int) -> None:
    """As Iceberg does."""
    pafs.S3FileSystem(
        access_key="tidemill",
        secret_key="hush-hush",
        region="us-east-1",
        scheme="http",
        endpoint_override=f"127.0.0.1:{port}",
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    ).open_input_file("lake/part")


def read_delta(port: int) -> None:
    more = "region=us-east-1&access-key=tidemill&secret-access-key=hush-hush"
    storage = parse_storage(f"s3://lake/prefix?endpoint=http://127.0.0.1:{port}&{more}")
    DeltaTable("s3://lake/prefix/t", storage_options={**(storage_options(storage) or {}), "max_retries": "0"})


@pytest.mark.parametrize("read", [read_arrow, read_delta])
@pytest.mark.parametrize(
    ("status", "is_retryable"),
    [(500, True), (502, True), (503, True), (504, True), (429, True), (501, False), (403, False), (400, False)],
)
def test_a_proxy_that_answers_for_a_store_that_is_away_passes(
    read: Callable[[int], None], status: int, is_retryable: bool
) -> None:
    proxy = type("Answering", (Proxy,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), proxy) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            with pytest.raises(OSError, match="Error") as raised:
                read(server.server_port)
        finally:
            server.shutdown()
            serving.join()
    assert failures.translate("read table shop.item", raised.value).retryable is is_retryable


def test_a_catalog_that_is_away_passes(tmp_path: Path, unused_port: int) -> None:
    with pytest.raises(SinkUnavailableError, match="cannot open the catalog of"):
        Replay("types", "iceberg", tmp_path, f"iceberg://{tmp_path}/lake?catalog=http://127.0.0.1:{unused_port}")


@pytest.fixture
def unused_port() -> Any:
    import socket

    with socket.socket() as found:  # bound, and nobody listens
        found.bind(("127.0.0.1", 0))
        yield found.getsockname()[1]
