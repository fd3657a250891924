"""Captures of one cluster as an operator runs them: processes, asked over HTTP."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.processes import Command, wait_until

SESSION_SECONDS = 10
PATIENCE_SECONDS = 1200.0  # for a state of a cluster: each capture has a JVM, and the machine may have two cores
CHANGEFEEDS = "/api/v2/changefeeds"


class Captures:
    """``start`` as many as are wanted. Every one of them can be asked: it passes on what only the owner answers."""

    def __init__(self, folder: Path, pd: str, *, etcd: str = "") -> None:
        self._folder, self._pd, self._etcd = folder, pd, etcd
        self.running: list[Command] = []
        self.names: list[str] = []  # of changefeeds that were created
        self._addresses: dict[int, str] = {}
        self._number = 0

    def start(self, count: int = 1) -> list[Command]:
        """They start together."""
        new = []
        for _ in range(count):
            self._number += 1
            new.append(self._command(self._folder / f"data-{self._number}"))
        for command in new:
            self._join(command)
        return new

    def start_in(self, data_dir: Path, *words: object, **flags: object) -> Command:
        """One more, with a folder of its own, perhaps that of one before."""
        command = self._command(data_dir, *words, **flags)
        self._join(command)
        return command

    def _command(self, data_dir: Path, *words: object, **flags: object) -> Command:
        return Command(
            self._folder / f"{data_dir.name}-said", "server", *words, is_serving=True, pd=self._pd, data_dir=data_dir,
            etcd=self._etcd or None, addr="127.0.0.1:0", spark_master="local[1]",
            capture_session_ttl=SESSION_SECONDS, **flags,
        )  # fmt: skip

    def _join(self, command: Command) -> None:
        self.running.append(command)
        self._addresses[command.pid] = command.ready()["api"]

    def address(self, command: Command) -> str:
        return self._addresses[command.pid]

    def id_of(self, command: Command) -> str:
        """As it is now: one whose session has ended, on a busy machine say, begins anew under another id."""
        found: list[str] = []

        def is_known() -> bool:
            found[:] = [each["id"] for each in self.captures() if each["address"] == self.address(command)]
            return len(found) == 1

        self.until(is_known, f"the one capture at {self.address(command)}")
        return found[0]

    def gone(self, command: Command) -> None:
        self.running.remove(command)

    def ask(self, method: str, path: str, body: Any = None, command: Command | None = None) -> Any:
        """One that answers is asked, until it does."""
        answers: list[httpx.Response] = []

        def is_answered() -> bool:
            for each in [command] if command is not None else list(self.running):
                try:
                    answer = httpx.request(
                        method, f"http://{self._addresses[each.pid]}{path}", json=body, timeout=10.0, trust_env=False
                    )
                except httpx.HTTPError:
                    continue
                if answer.status_code not in (500, 503):
                    answers.append(answer)
                    return True
            return False

        self.until(is_answered, f"an answer to {method} {path}")
        assert answers[0].status_code < 400, answers[0].text
        return answers[0].json()

    def until(self, holds: Callable[[], object], what: str, every_seconds: float = 0.3) -> None:
        """What the captures have said is shown where it does not come to that."""
        try:
            wait_until(holds, what, PATIENCE_SECONDS, every_seconds)
        except AssertionError as error:
            said = "\n".join(f"--- {each.words}\n{each.errors[-6000:]}" for each in self.running)
            raise AssertionError(f"{error}\n{said}\n{self.debug_info()}") from None

    def debug_info(self) -> str:
        found = []
        for each in self.running:
            try:
                answer = httpx.get(f"http://{self._addresses[each.pid]}/debug/info", timeout=10.0, trust_env=False)
                found.append(answer.text)
            except httpx.HTTPError as error:
                found.append(f"{self._addresses[each.pid]}: {error}")
        return "\n".join(found)

    # What is asked.

    def create(self, name: str, sink_uri: str, start_ts: int) -> None:
        self.ask("POST", CHANGEFEEDS, {"changefeed_id": name, "sink_uri": sink_uri, "start_ts": start_ts})
        self.names.append(name)

    def changefeed(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"{CHANGEFEEDS}/{name}")
        return found

    def checkpoint_ts(self, name: str) -> int:
        return int(self.changefeed(name)["checkpoint_ts"])

    def captures(self) -> list[dict[str, Any]]:
        return list(self.ask("GET", "/api/v2/captures")["items"])

    def owner(self) -> Command:
        """Once there is one that runs."""
        found: list[Command] = []

        def is_found() -> bool:
            for each in self.captures():
                if each["is_owner"]:
                    found[:] = [c for c in self.running if self.address(c) == each["address"]]
            return bool(found)

        self.until(is_found, "an owner")
        return found[0]

    def placement(self, name: str) -> dict[str, set[int]]:
        """The tables of each capture."""
        tasks = self.changefeed(name).get("task_status") or []
        return {each["capture_id"]: set(each["table_ids"]) for each in tasks}

    def until_all_have_some(self, name: str, captures: int) -> None:
        """Until so many captures have tables. Balance is asked for: else it is looked at once a minute."""

        def is_spread() -> bool:
            found = self.placement(name)
            if len([each for each in found.values() if each]) == captures:
                return True
            self.ask("POST", f"{CHANGEFEEDS}/{name}/rebalance")
            return False

        self.until(is_spread, f"tables of {name} on {captures} captures", every_seconds=1.0)

    def until_past(self, names: Sequence[str], ts: int) -> None:
        """Until everything up to ``ts`` is durable."""
        for name in names:
            self.until(partial(self._is_past, name, ts), f"checkpoint {ts} of {name}")

    def _is_past(self, name: str, ts: int) -> bool:
        return self.checkpoint_ts(name) >= ts

    def look(self, name: str) -> int:
        """A checkpoint, as the first capture says, if it answers. From any thread."""
        where = self._addresses[self.running[0].pid]
        answer = httpx.get(f"http://{where}{CHANGEFEEDS}/{name}", timeout=10.0, trust_env=False)
        answer.raise_for_status()
        return int(answer.json()["checkpoint_ts"])

    def move(self, name: str, table: int, target: str) -> None:
        """Asked for again where it comes to nothing: another owner knows nothing of it, nor is a table moved that has
        been dropped."""
        body = {"capture_id": target, "table_id": table}

        def is_there() -> bool:
            placed = self.placement(name)
            if table in placed.get(target, set()) or not any(table in each for each in placed.values()):
                return True
            self.ask("POST", f"{CHANGEFEEDS}/{name}/move_table", body)
            return False

        self.until(is_there, f"table {table} of {name} on {target}", every_seconds=1.0)

    def drained(self, command: Command) -> bool:
        """Whether it has no table any more. Asks for it."""
        return bool(self.ask("POST", f"/api/v2/captures/{self.id_of(command)}/drain")["current_table_count"] == 0)


@contextmanager
def cluster(folder: Path, pd: str, *, etcd: str = "") -> Iterator[Captures]:
    captures = Captures(folder, pd, etcd=etcd)
    try:
        yield captures
    finally:
        for command in captures.running:
            if command.is_running():
                command.kill()
        for command in captures.running:
            command.wait_until_gone()
