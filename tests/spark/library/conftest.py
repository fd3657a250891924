"""The Spark session that all tests of a process share."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tidemill.spark import register
    from tidemill.spark.session import open_session

    session = open_session(scratch=tmp_path_factory.mktemp("spark"))
    register(session)
    yield session
    session.stop()
