"""One MariaDB for all tests of this folder; each test uses databases of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mariadb import MariaDb, need_mariadb


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    folder: Path = tmp_path_factory.mktemp("mariadb")
    with MariaDb(folder) as server:
        yield server
