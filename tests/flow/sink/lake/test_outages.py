"""The storage or the catalog of a lake is away: that passes, and is told from what somebody has to fix."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import sqlalchemy.exc
from pyiceberg.exceptions import CommitStateUnknownException, ForbiddenError

from tests.flow.sink.lake.replay import Replay
from tests.flow.sink.storage.buckets import Bucket, bucket
from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.flow.sink.lake import failures
from tidemill.flow.sink.lake.reader import Lake
from tidemill.model.ts import Ts

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
        for act in (lambda: replay.sink.commit(Ts(end), receipts), replay.sink.recover):
            with pytest.raises(SinkUnavailableError) as raised:
                act()
            assert "hush" not in str(raised.value)
        if kind != "parquet":  # it begins within the commit of a table
            with monkeypatch.context() as patch:
                patch.setattr(replay.sink._claim, "check", lambda: None)
                with pytest.raises(SinkUnavailableError, match="cannot append to"):
                    replay.sink.commit(Ts(end), receipts)
    replay.sink.recover()
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


def test_a_catalog_that_is_away_passes(tmp_path: Path, unused_port: int) -> None:
    with pytest.raises(SinkUnavailableError, match="cannot open the catalog of"):
        Replay("types", "iceberg", tmp_path, f"iceberg://{tmp_path}/lake?catalog=http://127.0.0.1:{unused_port}")


@pytest.fixture
def unused_port() -> Any:
    import socket

    with socket.socket() as found:  # bound, and nobody listens
        found.bind(("127.0.0.1", 0))
        yield found.getsockname()[1]
