"""Applications that serve on sockets, on a loop of their own beside the test."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tidemill.api.access import UsersFile
from tidemill.api.app import create_app
from tidemill.api.forwarding import Forwarder
from tidemill.api.serving import ApiServer
from tidemill.api.tls import ApiTls, client_context
from tidemill.testing.operations import FakeCluster


@contextmanager
def a_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="servers")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def serving(cluster: FakeCluster, *, tls: ApiTls | None = None, users: UsersFile | None = None) -> Iterator[list[str]]:
    """The addresses of all captures of the cluster, which know each other by them."""
    with a_loop() as loop:

        def on_loop(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

        servers = []
        for number, capture in enumerate(cluster.captures):
            operations = cluster.operations(number)
            forwarder = Forwarder(operations, client_context(tls.security) if tls else None)
            app = create_app(operations, forwarder=forwarder, users=users)
            server = ApiServer(app, port=0, tls=tls, has_users=users is not None)
            on_loop(server.start())
            servers.append(server)
            capture.info = replace(capture.info, address=server.address)
        try:
            yield [server.address for server in servers]
        finally:
            for server in servers:
                on_loop(server.close())
