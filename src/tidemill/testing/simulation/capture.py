"""A capture: a session, an agent with its executor, and the owner where it is elected."""

from collections.abc import Callable

from tidemill.control.scheduler.agent import Agent
from tidemill.model.orders import Assignment, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import CaptureId, Message
from tidemill.testing.simulation.downstream import Downstream
from tidemill.testing.simulation.executor import Executor
from tidemill.testing.simulation.network import Network
from tidemill.testing.simulation.owner import EPOCH, FEED, TICK_MS, Owner
from tidemill.testing.simulation.store import LEASE_MS, Store
from tidemill.testing.simulation.upstream import Upstream
from tidemill.testing.simulation.world import Process, Work, World


class Capture:
    """One life of it: whoever loses the session begins another one, under another id."""

    def __init__(
        self,
        world: World,
        upstream: Upstream,
        downstream: Downstream,
        store: Store,
        network: Network,
        id: CaptureId,
        find: Callable[[CaptureId], "Capture | None"],
    ) -> None:
        self._world, self._upstream, self._downstream = world, upstream, downstream
        self._store, self._network, self._find = store, network, find
        self.id = id
        self.process = Process(id)
        self.owner: Owner | None = None
        self.executor: Executor | None = None
        self.retired: list[Executor] = []  # of owners before
        self._births = 0
        self._revision = 0
        self._followed: CaptureId | None = None
        self._agent = self._new_agent()
        self.is_stopping = False
        store.keep(id)
        world.spawn(self._live(), self.process)
        world.spawn(self._keep_session(), self.process)

    def _new_agent(self) -> Agent:
        self._births += 1
        return Agent(self.id, FEED, EPOCH, f"{self.id}.{self._births:03}")

    @property
    def executors(self) -> list[Executor]:
        return self.retired + ([self.executor] if self.executor is not None else [])

    def _keep_session(self) -> Work:
        while True:
            if self._network.reaches_store(self.id) and not self._store.keep(self.id):
                self._world.note("{}: has lost its session, and ends", self.id)
                self.end()
                return
            yield LEASE_MS // 4

    def end(self) -> None:
        self.process.is_up = False
        self._store.leave(self.id)
        if self.executor is not None:
            self.executor.close()

    def _live(self) -> Work:
        yield self._world.chance.randint(0, TICK_MS)
        while True:
            self._campaign()
            if self.owner is not None:
                self.owner.tick()
            self.poll()
            if self._world.chance.random() < 0.2 and self.executor is not None:
                self._world.spawn(self.executor.rearrange(), self.process)
            yield TICK_MS

    def _campaign(self) -> None:
        if self.owner is not None and self.owner.is_over:
            self.owner = None
        if self.owner is None and self._network.reaches_store(self.id):
            revision = self._store.campaign(self.id)
            if revision is not None:
                self.owner = Owner(
                    self._world, self._upstream, self._downstream, self._store, self.process, self.id, revision,
                    self._network.send,
                )  # fmt: skip

    # The agent.

    def hear(self, message: Message) -> None:
        if message.header.owner_revision > self._revision and message.receiver == self.id:
            self._agent.receive(message)  # may tell it to reset what it has
            self._revision, self._followed = message.header.owner_revision, message.sender
            self._begin_anew()
        else:
            self._agent.receive(message)
        self.poll()

    def _begin_anew(self) -> None:
        if self.executor is not None:
            self.executor.close()
            self.retired.append(self.executor)
        self.executor = Executor(
            self._world, self._upstream, self._downstream, self.process, self._agent.epoch,
            self._revision, self._admit, self._report,
        )  # fmt: skip

    def poll(self) -> None:
        executor = self.executor
        if executor is None:
            return
        executor.turn()
        if executor.failure is not None:
            self._world.note("{}: its processor has ended: {}", self.id, executor.failure)
            executor.close()
            self.retired.append(executor)
            self.executor, self._agent, self._revision = None, self._new_agent(), 0
            return
        self._agent.is_stopping = self.is_stopping
        commands, messages = self._agent.poll(executor.holdings)
        for command in commands:
            self._world.note("{}: {}", self.id, command)
            executor.obey(command)
        for message in messages:
            self._network.send(message)

    # What its lanes say to the owner, in order.

    def _to_owner(self, say: Callable[[Owner], None]) -> None:
        owner_id, revision = self._followed, self._revision
        if owner_id is None:
            return

        def deliver() -> None:
            capture = self._find(owner_id)
            if capture is not None and capture.owner is not None and capture.owner.revision == revision:
                say(capture.owner)

        self._network.post(self.id, owner_id, self._process_of(owner_id), deliver)

    def _process_of(self, capture: CaptureId) -> Process | None:
        found = self._find(capture)
        return found.process if found is not None else None

    def _report(self, report: Report) -> None:
        self._to_owner(lambda owner: owner.report(report))

    def _admit(
        self, lane: str, assignment: Assignment, at: Checkpoints, replaces: str | None, answer: Callable[[Orders], None]
    ) -> None:
        executor, epoch, owner_id = self.executor, self._agent.epoch, self._followed
        if executor is None or owner_id is None or not lane.startswith(f"{executor.name}/"):
            return  # a processor that is gone asks

        def tell(orders: Orders) -> None:
            self._network.post(owner_id, self.id, self.process, lambda: executor.hear(orders))

        def say(owner: Owner) -> None:
            orders = owner.admit(self.id, epoch, lane, assignment, at, replaces, tell)
            if orders is not None:
                self._network.post(owner_id, self.id, self.process, lambda: answer(orders))

        self._to_owner(say)
