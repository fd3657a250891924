"""A bucket of an S3 server of our own, on a free port."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow.fs as pafs
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from tidemill.sinks.files.storage import parse_storage


@dataclass(frozen=True, slots=True)
class Bucket:
    name: str
    port: int
    server: list[ThreadedMotoServer] = field(default_factory=list)
    host: str = "127.0.0.1"

    @property
    def parameters(self) -> str:
        """With which a sink URI reaches it."""
        return (
            f"endpoint=http://{self.host}:{self.port}&region=us-east-1&access-key=tidemill&secret-access-key=hush-hush"
        )

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nobody answers meanwhile; what was stored is there again afterwards."""
        self.server.pop().stop()
        try:
            yield
        finally:
            again = ThreadedMotoServer(self.host, self.port, verbose=False)
            again.start()
            self.server.append(again)

    def content(self, prefix: str) -> dict[str, bytes]:
        """Every object below a prefix, and its bytes."""
        filesystem = parse_storage(f"s3://{self.name}?{self.parameters}").filesystem()
        selector = pafs.FileSelector(f"{self.name}/{prefix}", recursive=True, allow_not_found=True)
        found = [info.path for info in filesystem.get_file_info(selector) if info.is_file]
        start = len(f"{self.name}/{prefix}/")
        return {path[start:]: filesystem.open_input_stream(path).readall() for path in sorted(found)}


logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it would tell of each request


@contextmanager
def bucket(name: str = "lake", host: str = "127.0.0.1") -> Iterator[Bucket]:
    server = ThreadedMotoServer(host, 0, verbose=False)
    server.start()
    running_in = [server]
    try:
        _, port = server.get_host_and_port()
        made = Bucket(name, port, running_in, host)
        filesystem = parse_storage(f"s3://{name}?{made.parameters}").filesystem()
        pafs.S3FileSystem(
            access_key="tidemill",
            secret_key="hush-hush",
            region="us-east-1",
            endpoint_override=f"{host}:{port}",
            scheme="http",
            allow_bucket_creation=True,
        ).create_dir(name)
        assert filesystem.get_file_info(name).type == pafs.FileType.Directory
        yield made
    finally:
        for running in running_in:
            running.stop()
        _forget_all()


def _forget_all() -> None:
    """What moto stores is kept by the process, and shown by the next server of a test in it."""
    for account in s3_backends.values():
        for backend in account.values():
            backend.reset()
