"""The pages are true: links lead somewhere, tables are those of the program, every command shown runs."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.docs.cluster import CLUSTER, Reader
from tests.docs.generate import PAGES, ROOT, generated
from tests.e2e.processes import PATIENCE_SECONDS, Command, wait_until
from tests.kafka import running as running_kafka
from tests.mariadb import MariaDb, need_mariadb
from tidebox.upstream import EmbeddedUpstream
from tidemill import demo
from tidemill.sinks.files.uri import known_parameters, parse_sink_uri

DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FIRST = ROOT / "docs/start/first-changefeed.md"  # what it leaves behind is looked at by other pages
KAFKA_PAGE = ROOT / "docs/how-to/write-to-kafka.md"  # and what it leaves behind
READER_HAD_ENOUGH = 128 + signal.SIGPIPE  # as with head, where the left side of the pipe has more to say
KAFKA = "127.0.0.1:9092"
TIKV = "127.0.0.1:2479"  # the PD of another cluster, for pages about RawKV
CAPTURE = "http://127.0.0.1:8300"
MYSQL = "mysql://root@127.0.0.1:3306/"
CAUGHT_UP = r"(?m)^(caught up|idle|waiting for resolved-ts): "
PROGRESS = re.compile(
    r"(connecting to PD|reading the schema|opening the sink|starting Spark|starting): [\d.]+ s|"
    r"(copying \d+/\d+ tables?, \d+/\d+ parts?|scanning \d+/\d+ regions|writing.*|caught up|idle|waiting for .*|"
    r"connecting to PD|reading the schema|opening the sink|starting Spark|starting): "
    r"[\d,]+ rows? written, .* checkpoint .* lag \d.*, .*"
)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shown(page: Path) -> list[str]:
    """The command lines of the page's ``sh`` blocks, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"\s+# .*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_reference_pages_are_up_to_date(page: Path) -> None:
    assert page.read_text() == generated(page), "run: python -m tests.docs.generate"


@pytest.mark.parametrize("parameter", [p for p in known_parameters() if p.default], ids=lambda p: p.name)
def test_the_default_that_a_page_tells_is_the_default(parameter: object) -> None:
    protocol = parameter.protocols[0]  # type: ignore[attr-defined]
    plain = f"file:///folder?protocol={protocol}"
    told = f"{plain}&{parameter.name}={quote(parameter.default.strip('`'))}"  # type: ignore[attr-defined]
    assert parse_sink_uri(told) == parse_sink_uri(plain)


def test_every_page_is_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            waiting += [page.parent / target for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())]
    assert set(DOCS) <= seen


@cache
def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


class World:
    """Stands in for the reader: 127.0.0.1:2379 is an upstream with the demo's history, /tmp a folder of the test.

    Faults and SQL are tried on an upstream of three stores and two SQL nodes that is new for every page. On a page with
    SQL a changefeed runs along to the end. 127.0.0.1:3306 is a MariaDB and 127.0.0.1:9092 a Kafka, new for every page.
    """

    def __init__(self, folder: Path, pd: str, reader: Reader) -> None:
        self._folder = folder
        self._reader = reader
        self._pd = pd
        self._done: dict[Path, None] = {}
        self._shown_by: dict[str, Path] = {}  # which page a command was run for
        self._kafka, self._tikv = KAFKA, TIKV
        self._apis: dict[str, str] = {}  # of captures, by the address that the page gives

    def follow(self, page: Path) -> None:
        """Run what the page shows, from the root of a checkout, once."""
        if page in self._done:
            return
        self._done[page] = None
        place = self._folder / page.stem
        place.mkdir()
        (place / "src").symlink_to(ROOT / "src")
        has_sql = any(line.startswith("mariadb") for line in shown(page))
        options = {"sql_port": 0, "sql_nodes": 2, "resolved_interval_seconds": 0.05}
        with EmbeddedUpstream.start(stores=3, **options) as fresh, ExitStack() as running:
            mysql = ""
            if any(MYSQL in line for line in shown(page)):
                need_mariadb()
                mysql = running.enter_context(MariaDb(place / "mariadb")).uri()
            if any(KAFKA in line for line in shown(page)):
                broker = running.enter_context(running_kafka(place / "kafka"))
                broker.create("shop", 3)
                self._kafka = broker.address
            raw: list[EmbeddedUpstream] = []
            if any(TIKV in line for line in shown(page)):
                raw += [running.enter_context(EmbeddedUpstream.start(api_version=2)) for _ in range(2)]
                self._tikv = raw[1].pd_address
            for line in shown(page):
                if self._shown_by.setdefault(_but_for_its_folder(line), page) != page:
                    continue  # what another page shows as well is not run twice
                pd = fresh.pd_address if has_sql or line.startswith("tidemill fault") else self._pd
                pd = raw[0].pd_address if raw else pd
                here = self._in_this_world(line, pd, fresh.sql_addresses, mysql)
                if line.startswith("tidemill server"):
                    self._serve(line, here, place, running)
                    continue
                self._run(here, place, running if has_sql and line.startswith("tidemill run") else None)
            self._apis.clear()

    def _serve(self, shown: str, line: str, place: Path, running: ExitStack) -> None:
        """A capture, for as long as the page is followed."""
        address = shown.rpartition("--addr ")[2].split()[0]
        words = shlex.split(line.replace(address, "127.0.0.1:0"))[1:]
        capture = running.enter_context(
            Command(place, *words, "--spark-master", "local[1]", is_serving=True, cwd=place)
        )
        self._apis[address] = capture.ready()["api"]

    def _in_this_world(self, line: str, pd: str, sql: list[str], mysql: str) -> str:
        for port, address in zip((4000, 4001), sql, strict=True):
            line = line.replace(f"-P {port}", f"-P {address.split(':')[1]}")
        line = line.replace("--sql-port 4000", "--sql-port 0")
        line = line.replace("127.0.0.1:2379", pd).replace("--pd-port 2379", "--pd-port 0")
        if not line.startswith("tidemill server"):
            for address, api in self._apis.items():
                line = line.replace(address, api)
        line = line.replace(MYSQL, mysql).replace(KAFKA, self._kafka).replace(TIKV, self._tikv)
        line = line.replace("spark://127.0.0.1:7077", "local[2]")  # tests/e2e/test_standalone.py has the real one
        line = line.replace("/tmp/", f"{self._folder}/tmp/")
        return re.sub(r"--load history.parquet", f"--load {demo.history_path()}", line)

    def _run(self, line: str, place: Path, running: ExitStack | None) -> None:
        """With ``running`` it goes on until that is closed."""
        command, *words = shlex.split(line)
        if command == "make":
            assert set(words) <= makefile_targets(), line
        elif command != "tidemill":
            bash = ["bash", "-o", "pipefail", "-c", line]
            done = subprocess.run(bash, cwd=place, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            assert (done.returncode, done.stderr) in ((0, ""), (READER_HAD_ENOUGH, "")), line
            assert done.stdout.strip() or (command == "mariadb" and "select" not in line), f"{line} shows nothing"
        elif words[0] in ("fault", "warm", "check-topic", "partitions", "simulate"):
            with Command(place, *words, cwd=place) as asked:
                assert asked.wait() == 0, asked.errors
                assert asked.output.strip(), f"{line} shows nothing"
        elif words[0] in CLUSTER and not _asks_a_real_capture(words):
            self._reader.follow(place, words)
        elif words[0] in CLUSTER:
            with Command(place, *words, cwd=place) as asking:
                assert asking.wait() == 0, asking.errors
                assert (asking.output + asking.errors).strip(), f"{line} shows nothing"  # none there: said on stderr
        elif words[0] == "demo":
            assert_demo_is_equal(place, *words[1:])
        elif running is not None:
            feed = running.enter_context(Command(place, *words, is_serving=True, cwd=place))
            feed.ready()
        else:
            self._tidemill(words, place)

    def _tidemill(self, words: list[str], place: Path) -> None:
        has_end = "--target-ts" in words or words[0] == "verify"
        if "--ready-file" in words:
            at = words.index("--ready-file")
            del words[at : at + 2]
        with Command(place, *words, is_serving=words[0] != "verify", cwd=place) as command:
            if has_end:
                assert command.wait() == 0, command.errors
            else:
                command.ready()
                if "--initial-scan" in words:
                    wait_until(lambda: re.search(CAUGHT_UP, command.errors) is not None, "the copy's end")
                assert command.terminate() == 0, command.errors
        said = [line for line in command.errors.splitlines() if not PROGRESS.fullmatch(line)]
        if words[0] == "run" and "--log-level" not in words:
            assert said == []


def _asks_a_real_capture(words: list[str]) -> bool:
    """One that the page has started, whose address stands for the one shown."""
    return "--server" in words and words[words.index("--server") + 1] != CAPTURE


def _but_for_its_folder(line: str) -> str:
    return re.sub(r" --data-dir \S+", "", line)


def assert_demo_is_equal(place: Path, *words: str) -> None:
    """As ``make demo``: the recorded history, then SQL in the middle and at the end."""
    with Command(place, "demo", "--output", "json", *words, cwd=place) as command:
        assert command.wait() == 0, command.errors
        result = json.loads(command.output)
    assert len(result["checks"]) >= 3 + 2
    assert [check["mark"] for check in result["checks"]][-2:] == ["after the DDL", "at the end"]
    assert result["checks"][-1]["rows"] == 3
    assert all(check["missing"] == check["extra"] == check["different"] == 0 for check in result["checks"])
    assert result["run"]["rows"] > 0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "tmp").mkdir()
    options = {"load": demo.history_path(), "resolved_interval_seconds": 0.05}
    with EmbeddedUpstream.start(stores=3, **options) as upstream, Reader.of_a_cluster() as reader:
        yield World(folder, upstream.pd_address, reader)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in DOCS if shown(page)], ids=name)
def test_every_command_shown_runs(page: Path, world: World) -> None:
    if "first-changefeed" in page.read_text():
        world.follow(FIRST)
    if page.name == "commands.md":
        world.follow(KAFKA_PAGE)
    world.follow(page)


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tidemill", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)
