"""How the lanes of a processor reach an owner on another capture: letters instead of calls."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from tidemill.capture.link import Tell
from tidemill.capture.peers.letters import Admit, Admitted, AskSinkState, Body, OrdersAre, Said, SinkStateIs
from tidemill.errors import InvariantError, SupersededError
from tidemill.model.orders import Assignment, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import NO_TS
from tidemill.model.ts import Ts


class PostedLink:
    """An ``OwnerLink``. Runs on the capture's loop. It belongs to one owner; ``close`` it when there is another."""

    def __init__(self, send: Callable[[Body], None], forget: Callable[[Ts], None]) -> None:
        """``forget``: what the owner says of the schema."""
        self._send, self._forget = send, forget
        self._orders: Orders | None = None
        self._tells: dict[str, Tell] = {}
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._is_open = asyncio.Event()
        self._is_closed = False

    @property
    def orders(self) -> Orders:
        if self._orders is None:
            raise InvariantError("the owner has not said anything yet. Report it.")
        return self._orders

    async def opened(self, ddl_ts: Ts = NO_TS) -> None:
        """Until there are orders of somebody who knows that all DDLs up to ``ddl_ts`` have run."""
        while self._orders is None or self._orders.ddl_ts < ddl_ts:
            self._is_open.clear()
            await self._is_open.wait()

    async def admit(
        self, name: str, assignment: Assignment, at: Checkpoints, tell: Tell, *, replaces: str | None = None
    ) -> Orders:
        number = next(self._numbers)
        self._tells[name] = tell  # orders may come before the answer
        orders = await self._ask(number, Admit(number, name, assignment, at, replaces))
        assert isinstance(orders, Orders)
        return orders

    def report(self, report: Report) -> None:
        if not self._is_closed:
            self._send(Said(report))

    async def sink_state(self) -> Mapping[str, Any] | None:
        number = next(self._numbers)
        state: Mapping[str, Any] | None = await self._ask(number, AskSinkState(number))
        return state

    async def _ask(self, number: int, body: Body) -> Any:
        if self._is_closed:
            raise _over()
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(body)
        try:
            return await future
        finally:
            del self._asked[number]

    def hear(self, body: Body) -> None:
        match body:
            case OrdersAre(orders, forget_ts):
                self._obey(orders)
                self._forget(forget_ts)
            case Admitted(number, orders):
                self._answer(number, orders)
            case SinkStateIs(number, state):
                self._answer(number, state)

    def _obey(self, orders: Orders) -> None:
        self._orders = orders
        self._is_open.set()
        for tell in list(self._tells.values()):
            tell(orders)

    def _answer(self, number: int, what: Any) -> None:
        future = self._asked.get(number)
        if future is not None and not future.done():
            future.set_result(what)

    def close(self) -> None:
        """There is another owner, or this capture has lost its session: nothing is saved any more."""
        self._is_closed = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(_over())
        if self._orders is not None:
            over = replace(self._orders, is_stopping=True, is_over=True)
            for tell in list(self._tells.values()):
                tell(over)


def _over() -> SupersededError:
    return SupersededError("the changefeed has another owner; what this one has not saved comes again.")
