"""Sessions that write while the schema changes under them, as in the recorded ``online`` history."""

import random
import re
import threading

from tests.histories import FOLDER
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream

WRITERS = 3
# What a writer may be told: duplicates, values that the new type does not take, columns that are gone, conflicts.
ALLOWED = {1062, 1264, 1265, 1366, 1406, 1054, 1136, 1364, 9007, 8028, 8022}


class Writers:
    """Sessions on two nodes, each running the statements in turn until told to stop."""

    def __init__(self, nodes, statements: list[str], seed: int) -> None:
        self._stop = threading.Event()
        self.failures: list[BaseException] = []
        self.written = 0
        self._numbers = iter(range(1000, 10**9))
        self._threads = [
            threading.Thread(target=self._run, args=(nodes[at % len(nodes)], statements, seed + at))
            for at in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, node, statements, seed) -> None:
        chance = random.Random(seed)
        session = SqlSession(node)
        session.use("live")
        try:
            while not self._stop.is_set():
                try:
                    session.execute(filled(chance.choice(statements), chance, next(self._numbers)))
                    self.written += 1
                except SqlError as error:
                    if error.number not in ALLOWED:
                        self.failures.append(error)
                        return
        except BaseException as error:
            self.failures.append(error)
        finally:
            session.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures[0]
        assert self.written > 0


def filled(statement: str, chance: random.Random, number: int) -> str:
    statement = statement.replace("{i}", str(number))
    return re.sub(r"\{r(\d+)\}", lambda found: str(chance.randint(1, int(found[1]))), statement)


def test_writers_of_two_nodes_leave_no_orphans_behind():
    """All statements of the scenario that lie in the subset; a bank whose total never changes."""
    chance = random.Random(5)
    with EmbeddedUpstream.start(resolved_interval_seconds=3600) as upstream:
        nodes = SqlNodes(upstream.cluster, 2)
        nodes.start()
        session = SqlSession(nodes.nodes[0])
        waiting: list[str] = []
        writers: Writers | None = None
        repeat, collects, number = 1, False, 1
        for line in (FOLDER / "online" / "scenario.sql").read_text().splitlines():
            match line.split()[:2]:
                case ["--", "@repeat"]:
                    repeat = min(int(line.split()[2]), 40)
                case ["--", "@writers"]:
                    waiting, collects = [], True
                case ["--", "@start"]:
                    writers, collects = Writers(nodes.nodes, waiting, number), False
                case ["--", "@stop"]:
                    assert writers is not None
                    writers.stop()
                    for table in ("t", "acc"):
                        session.execute(f"admin check table {table}")
                case ["--", *_] | []:
                    pass
                case _ if collects:
                    waiting.append(line.rstrip(";"))
                case _ if "partition" not in line:
                    for _ in range(repeat):
                        session.execute(filled(line.rstrip(";"), chance, number))
                        number += 1
                    repeat = 1
        (total,) = session.execute("select sum(bal) from acc").rows[0]
        assert total == 20 * 1000
        session.close()
        nodes.stop()
