"""Captures of one cluster as an operator runs them: processes, asked over HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.processes import PATIENCE_SECONDS, Command, wait_until

SESSION_SECONDS = 5
CHANGEFEEDS = "/api/v2/changefeeds"


class Captures:
    """``start`` as many as are wanted. Every one of them can be asked: it passes on what only the owner answers."""

    def __init__(self, folder: Path, pd: str, *, etcd: str = "") -> None:
        self._folder, self._pd, self._etcd = folder, pd, etcd
        self.running: list[Command] = []
        self._addresses: dict[int, str] = {}
        self._ids: dict[int, str] = {}
        self._number = 0

    def start(self, count: int = 1) -> list[Command]:
        """They start together."""
        new = []
        for _ in range(count):
            self._number += 1
            more = {"etcd": self._etcd} if self._etcd else {}
            new.append(
                Command(
                    self._folder / f"capture-{self._number}", "server", is_serving=True, pd=self._pd,
                    data_dir=self._folder / f"data-{self._number}", addr="127.0.0.1:0", spark_master="local[1]",
                    capture_session_ttl=SESSION_SECONDS, **more,
                )
            )  # fmt: skip
        for command in new:
            said = command.ready()
            self._addresses[command.pid], self._ids[command.pid] = said["api"], said["capture"]
        self.running += new
        return new

    def id_of(self, command: Command) -> str:
        return self._ids[command.pid]

    def named(self, capture: str) -> Command:
        return next(each for each in self.running if self._ids[each.pid] == capture)

    def learn(self, command: Command) -> None:
        """One that has begun anew has another id."""
        others = {name for pid, name in self._ids.items() if pid != command.pid}
        address = self._addresses[command.pid]
        for each in self.captures():
            if each["address"] == address and each["id"] not in others:
                self._ids[command.pid] = each["id"]

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

        wait_until(is_answered, f"an answer to {method} {path}", every_seconds=0.2)
        assert answers[0].status_code < 400, answers[0].text
        return answers[0].json()

    # What is asked.

    def create(self, name: str, sink_uri: str, start_ts: int) -> None:
        self.ask("POST", CHANGEFEEDS, {"changefeed_id": name, "sink_uri": sink_uri, "start_ts": start_ts})

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
                    found[:] = [c for c in self.running if self._ids[c.pid] == each["id"]]
            return bool(found)

        wait_until(is_found, "an owner", every_seconds=0.2)
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
            self.ask("POST", f"/api/v1/changefeeds/{name}/tables/rebalance_table")
            return False

        wait_until(is_spread, f"tables on {captures} captures", every_seconds=1.0)

    def until_past(self, name: str, ts: int) -> None:
        """Until everything up to ``ts`` is durable."""
        wait_until(lambda: self.checkpoint_ts(name) >= ts, f"checkpoint {ts} of {name}", every_seconds=0.2)


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


__all__ = ["PATIENCE_SECONDS", "SESSION_SECONDS", "Captures", "cluster"]
