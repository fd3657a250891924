"""Timestamps from PD: one stream, one request for all who wait."""

import asyncio

import grpc

from tidemill._pb import pdpb_pb2
from tidemill.model.ts import LOGICAL_BITS, Ts
from tidemill.upstream.pd_leader import CALL_SECONDS, PdLeader, TryAgainError, refusal

MAX_TS_PER_CALL = 1 << 14


class Timestamps:
    def __init__(self, pd: PdLeader) -> None:
        self._pd = pd
        self._stream: grpc.aio.StreamStreamCall | None = None
        self._leader = ""
        self._turn = asyncio.Lock()
        self._waiting: list[asyncio.Future[Ts]] = []

    async def next(self, deadline_seconds: float) -> Ts:
        """Above every one handed out before."""
        mine: asyncio.Future[Ts] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        async with self._turn:
            if not mine.done():
                await self._pd.persist("get a timestamp", self._serve_waiting, deadline_seconds)
        return mine.result()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def _serve_waiting(self) -> None:
        """One request for everyone who waits for a timestamp right now."""
        stub = await self._pd.connected()
        if self._stream is None or self._leader != self._pd.address:
            self.close()
            self._stream, self._leader = stub.Tso(), self._pd.address
        stream = self._stream
        served, self._waiting = self._waiting[:MAX_TS_PER_CALL], self._waiting[MAX_TS_PER_CALL:]
        try:
            request = pdpb_pb2.TsoRequest(count=len(served))
            request.header.cluster_id = self._pd.cluster_id
            async with asyncio.timeout(CALL_SECONDS):
                try:
                    await stream.write(request)
                    answer = await stream.read()
                except asyncio.InvalidStateError as error:  # how gRPC says that the call is over already
                    raise TryAgainError("the timestamp stream has ended") from error
            if answer is grpc.aio.EOF:
                raise TryAgainError("PD closed the timestamp stream")
            if answer.header.HasField("error"):
                raise refusal("Tso", answer.header.error)
            if answer.count != len(served):
                raise TryAgainError(f"PD gave {answer.count} timestamps for {len(served)}")
        except BaseException:
            # Whoever waits takes the next turn itself, on a new stream: a late answer is nobody's.
            self._waiting = served + self._waiting
            self.close()
            raise
        last = (answer.timestamp.physical << LOGICAL_BITS) + answer.timestamp.logical  # the largest of the batch
        for n, waiter in enumerate(served, start=last - len(served) + 1):
            if not waiter.done():
                waiter.set_result(Ts(n))
