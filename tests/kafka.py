"""A real Apache Kafka of a test's own: one broker in KRaft mode, in a temporary folder, on free loopback ports.

    with Broker(folder) as broker:
        broker.address                 # 127.0.0.1:PORT, without a password
        broker.messages("topic")       # all that lies there, by partition

``broker.kill()`` ends it as a crash would; ``broker.start()`` brings it back on the same ports and data. Its jars come
from Maven Central, resolved by Spark's own Ivy into the user's cache, once per machine.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.authority import Authority
from tidebox.ports import free_ports

COORDINATES = "org.apache.kafka:kafka_2.13:4.1.1"
USER, PASSWORD = "mill", "s3cret/?&"
STRANGER = "stranger"  # may log in, and do nothing
_PATIENCE_SECONDS = 90
_INSTALL_SECONDS = 600
_HEAP = ("-Xmx512m", "-Xms256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# Ivy's own default, Maven Central, alone: Spark's settings ask other places first, and wait for them.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true"/>
  </resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Found:
    """One message of a partition."""

    key: bytes | None
    value: bytes | None
    offset: int


class Broker:
    """One server process. ``settings`` are further lines of its server.properties."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(5)
        self.port, self.sasl_port, self.tls_port, self.sasl_tls_port, self._controller_port = ports
        self.authority = Authority(folder / "tls")
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._write_settings()
        self._format()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def uri(self, topic: str, parameters: str = "protocol=open-protocol") -> str:
        return f"kafka://{self.address}/{topic}?{parameters}"

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        assert self._process is None
        command = [_java(), *_HEAP, "-cp", _class_path(), "kafka.Kafka", str(self.folder / "server.properties")]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_PATIENCE_SECONDS)
            self._process = None

    def kill(self) -> None:
        """As ``kill -9``."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_PATIENCE_SECONDS)
        self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It accepts connections and says nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Killed, and back afterwards."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    # What tests ask of it, by a client that is not ours.

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)

    def allow(self, user: str, topic: str, *operations: str) -> None:
        from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

        kinds = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*"
        acls = [AclBinding(*kinds, AclOperation[name], AclPermissionType.ALLOW) for name in operations]
        admin = self.admin()
        for done in admin.create_acls(acls).values():
            done.result(30)

    def delete(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(30)

    def grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        admin = self.admin()  # it has to outlive the call
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def topics(self) -> dict[str, int]:
        """All topics, each with its number of partitions."""
        found = self.admin().list_topics(timeout=30).topics
        return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("__")}

    def messages(self, topic: str) -> list[list[Found]]:
        """All messages of a topic, by partition, in order."""
        return self._read(topic, range(self.topics()[topic]))

    def partition(self, topic: str, number: int) -> list[Found]:
        return self._read(topic, [number])[0]

    def _read(self, topic: str, numbers: Sequence[int]) -> list[list[Found]]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "tests",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        found: dict[int, list[Found]] = {number: [] for number in numbers}
        try:
            ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30)[1] for n in numbers}
            left = {number for number, end in ends.items() if end}
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
            while left:
                for message in consumer.consume(10_000, 0.1):
                    assert message.error() is None, message.error()
                    number = message.partition()
                    found[number].append(Found(message.key(), message.value(), message.offset()))
                left = {n for n in left if not found[n] or found[n][-1].offset < ends[n] - 1}
        finally:
            consumer.close()
        return [found[number] for number in numbers]

    # Its own files.

    def _write_settings(self) -> None:
        plain = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{USER}="{PASSWORD}" user_{STRANGER}="{PASSWORD}";'
        )
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        tokens = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"  # unsigned ones
        cert, key = self.authority.issue("broker")
        pem = self.folder / "server.pem"
        pem.write_bytes(Path(key).read_bytes() + Path(cert).read_bytes())
        listeners = {
            "PLAINTEXT": self.port,
            "SASL_PLAINTEXT": self.sasl_port,
            "SSL": self.tls_port,
            "SASL_SSL": self.sasl_tls_port,
        }
        advertised = ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{advertised},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": advertised,
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT," + ",".join(f"{n}:{n}" for n in listeners),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "message.max.bytes": str(10 << 20),
            "log.segment.bytes": str(64 << 20),
            "log.index.size.max.bytes": str(1 << 20),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.ca_path,
            "ssl.client.auth": "requested",
            "ssl.principal.mapping.rules": f"RULE:^.*$/{USER}/",
            **{f"listener.name.{n}.plain.sasl.jaas.config": plain for n in ("sasl_plaintext", "sasl_ssl")},
            **{f"listener.name.{n}.oauthbearer.sasl.jaas.config": tokens for n in ("sasl_plaintext", "sasl_ssl")},
            **{
                f"listener.name.{n}.scram-sha-{bits}.sasl.jaas.config": scram
                for n in ("sasl_plaintext", "sasl_ssl")
                for bits in (256, 512)
            },
            **self._settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "server.properties").write_text(text)

    def _format(self) -> None:
        users = [f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)]
        added = [part for user in users for part in ("--add-scram", user)]
        settings = str(self.folder / "server.properties")
        command = ["format", "--cluster-id", "dGlkZW1pbGwtdGVzdHMtMQ", "--config", settings, *added]
        done = subprocess.run(
            [_java(), *_HEAP, "-cp", _class_path(), "kafka.tools.StorageTool", *command],
            cwd=self.folder, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _answers(self.address):
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()[-4000:]
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()[-4000:]


def _answers(address: str) -> bool:
    """Whether the broker is ready: it knows itself and its controller."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=0.2).close()
    except OSError:
        time.sleep(0.1)
        return False
    try:
        known = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=2)
        return bool(known.brokers)
    except KafkaException:
        return False


# Where it comes from.


def need_kafka() -> None:
    """Skip the test where there is no Kafka; the reason says how to get it."""
    lacking = _lacking()
    if lacking:
        pytest.skip(f"needs Apache Kafka: {lacking}")


@cache
def _lacking() -> str:
    """Why it cannot be had; empty: it is there."""
    if which("java") is None and not os.environ.get("JAVA_HOME"):
        return "install a JDK, 17 or later: apt-get install openjdk-17-jdk-headless"
    try:
        _installed()
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return (
            f"{COORDINATES} could not be fetched from Maven Central ({said.strip()[-300:]}). Let this machine reach "
            f"Maven Central once, or put the jars and an empty file 'complete' into {_folder()}"
        )
    return ""


def _folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "tidemill" / "kafka" / COORDINATES.replace(":", "-")


@cache
def _installed() -> Path:
    """The folder of its jars. The first process that comes fetches them, others wait for it."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _fetch(folder)
            (folder / "complete").touch()
    return folder / "jars"


def _fetch(folder: Path) -> None:
    """Spark resolves packages before it runs what it is asked to; that is the least that Kafka can do."""
    settings = folder / "ivysettings.xml"
    settings.write_text(_IVY_SETTINGS)
    subprocess.run(
        [
            _java(), "-cp", str(_spark_jars() / "*"), "org.apache.spark.deploy.SparkSubmit", "--master", "local[1]",
            "--packages", COORDINATES, "--conf", f"spark.jars.ivy={folder}",
            "--conf", f"spark.jars.ivySettings={settings}",
            "--class", "kafka.tools.StorageTool", "spark-internal", "random-uuid",
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=True,
    )  # fmt: skip


def _spark_jars() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"


def _class_path() -> str:
    (scala,) = _spark_jars().glob("scala-library-*.jar")
    return f"{_installed()}/*:{scala}"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else (which("java") or "java")


@contextmanager
def running(folder: Path) -> Iterator[Broker]:
    need_kafka()
    with Broker(folder) as broker:
        yield broker


if __name__ == "__main__":  # python -m tests.kafka: fetch it, for machines that are off the net later
    sys.exit(_lacking() or 0)
