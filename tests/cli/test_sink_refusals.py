"""What ``tidemill run`` says of a downstream that it cannot use, or a file that it cannot follow, before a row is read.

Rows and DDLs that a downstream refuses later: ``tests/e2e/test_downstream_refusals.py``.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.authority import Authority
from tests.cli.test_run_refusals import Tidemill, run_words, tidemill  # noqa: F401  # a fixture
from tests.histories import FOLDER
from tests.mariadb import PASSWORD, MariaDb, need_mariadb
from tests.sinks.halves import mysql_sink
from tests.sinks.moments import START
from tidebox.upstream import EmbeddedUpstream
from tidemill.sinks.mysql import parse_mysql_uri

WRONG = "not-the-password"


class Places(NamedTuple):
    pd: str
    guarded: MariaDb  # with TLS
    open: MariaDb  # without
    ours: Authority  # which signed the server's certificate
    theirs: Authority

    def fill(self, text: str) -> str:
        """``{ours}`` and ``{theirs}`` are files of authorities, ``{guarded}`` and ``{open}`` servers."""
        for name, authority in (("ours", self.ours), ("theirs", self.theirs)):
            text = text.replace(f"{{{name}}}", authority.ca_path)
        for name, server in (("guarded", self.guarded), ("open", self.open)):
            text = text.replace(f"{{{name}}}", f"127.0.0.1:{server.port}")
        return text


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    need_mariadb()
    folder = tmp_path_factory.mktemp("places")
    ours, theirs = Authority(folder / "ours"), Authority(folder / "theirs")
    certificate, key = ours.issue("server")
    tls = (f"--ssl-cert={certificate}", f"--ssl-key={key}", f"--ssl-ca={ours.ca_path}")
    with (
        EmbeddedUpstream.start(load=FOLDER / "types" / "history.parquet") as upstream,
        MariaDb(folder / "guarded", *tls) as guarded,
        MariaDb(folder / "open", "--skip-ssl") as plain,
    ):
        plain.query(
            "create user reader identified by 'r'", "grant select on *.* to reader", "create user nobody@'10.9.8.7'"
        )
        guarded.query("create user careful identified by 'c' require x509", "grant all on *.* to careful")
        yield Places(upstream.pd_address, guarded, plain, ours, theirs)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        pytest.param(
            f"mysql://tidemill:{WRONG}@{{open}}/",
            r"cannot take over the downstream at 127.*1045\). Check the user and the password of the sink URI",
            id="a wrong password",
        ),
        pytest.param(
            "mysql://nobody@{open}/", r"\(error 1045\). Check the user and the password", id="another host's user"
        ),
        pytest.param(
            "mysql://reader:r@{open}/",
            r"'reader'.*\(error 1044\). Grant the user of the sink URI CREATE, SELECT, INSERT, UPDATE and DELETE",
            id="a user who may only read",
        ),
        pytest.param(
            "mysql+ssl://tidemill:s3cret%2F%3F%26@{open}/",
            r"asks for TLS, which that server does not offer. Turn it on there",
            id="TLS to a server without",
        ),
        pytest.param(
            "mysql://tidemill:s3cret%2F%3F%26@{open}/?ssl-ca={ours}",
            r"asks for TLS, which that server does not offer.*take '\+ssl' and 'ssl-ca' out",
            id="a CA for a server without TLS",
        ),
        pytest.param(
            "mysql+ssl://tidemill:s3cret%2F%3F%26@{guarded}/?ssl-ca={theirs}",
            r"certificate verify failed.*not signed by the authority in 'ssl-ca'.*Give the file of the authority",
            id="a server of an unknown CA",
        ),
        pytest.param(
            "mysql+ssl://tidemill:s3cret%2F%3F%26@{guarded}/?ssl-ca=/nowhere/ca.pem",
            r"cannot use the TLS files of the sink URI for 127.*Check ssl-ca, ssl-cert and ssl-key",
            id="a CA that is not there",
        ),
        pytest.param(
            "mysql+ssl://careful:c@{guarded}/?ssl-ca={ours}",
            r"\(error 1045\). Check the user and the password",
            id="a user who must bring a certificate",
        ),
    ],
)
def test_a_downstream_that_does_not_let_us_in_is_named_with_what_to_do(
    tidemill: Tidemill,  # noqa: F811
    places: Places,
    tmp_path: Path,
    uri: str,
    says: str,
) -> None:
    said = tidemill(*run_words(places.pd, tmp_path, {"sink-uri": places.fill(uri)}))
    assert said.code == 1
    assert re.search(says, said.errors.replace("\n", " ")), said.errors
    for secret in (WRONG, PASSWORD, "s3cret", ":r@", ":c@"):
        assert secret not in said.errors + said.output
    assert not (tmp_path / "data" / "changefeed.json").exists()  # nothing was begun that a later run would resume


def test_with_the_right_ca_the_line_is_encrypted_and_certificates_are_shown_both_ways(places: Places) -> None:
    certificate, key = places.ours.issue("client")
    own = f"ssl-cert={certificate}&ssl-key={key}"
    for uri in (
        places.guarded.uri(f"ssl-ca={places.ours.ca_path}", scheme="mysql+ssl"),
        places.guarded.uri(f"ssl-ca={places.ours.ca_path}"),
        places.guarded.uri(scheme="mysql+ssl"),  # without a CA the server is believed
        places.guarded.uri(f"ssl-ca={places.ours.ca_path}&{own}", scheme="mysql+ssl", user="careful", password="c"),
    ):
        sink = mysql_sink(parse_mysql_uri(uri), None)
        sink.recover(START)
        with sink.owner._turn.opened().cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            assert cursor.fetchone()[1] != ""
        sink.close()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        pytest.param("mysql://u@h:3306/?worker-cout=4", "Did you mean 'worker-count'?", id="a misspelt parameter"),
        pytest.param("mysql://u@h:3306/?worker-count=many", "'worker-count' is 'many'; it must be", id="a value"),
        pytest.param("mysql://u@h:3306/shop", "names a database", id="a database"),
        pytest.param("mysql://u@h:99999/", "cannot read the sink URI", id="a port that is none"),
        pytest.param("mysql:///", "names no host", id="no host"),
        pytest.param("mysql://u:secret@a..b:3306/", "xxxxx@a..b:3306/ names a host that cannot be", id="a host"),
        pytest.param("mysql://u:%ff@h:3306/", "are not UTF-8 text", id="bytes in percent form"),
        pytest.param("mysql://u@h:3306/?time-zone=Europe", "a time zone such as", id="a continent for a zone"),
        pytest.param("mysql://u@h:3306/?timeout=9000h", "at most 8760h", id="a timeout of more than a year"),
        pytest.param("mysql://u@h:3306/?read-timeout=" + "9" * 400 + "h", "at most 8760h", id="an endless timeout"),
        pytest.param("file:///x?protocol=csv&delimiter=%FF", "are not UTF-8 text", id="a byte for a delimiter"),
        pytest.param("mysql://u@h:3306/?protocol=csv", "'protocol' is not supported", id="a protocol"),
        pytest.param(
            "mysql+ssl://u@h/?ssl-cert=/c", "'ssl-cert' and 'ssl-key' belong together", id="half a certificate"
        ),
        pytest.param("iceberg:///x?flush-interval=never", "flush-interval", id="a lake's value"),
        pytest.param("s3://b/p?protocol=csv&access-key=a", "go together", id="half a key"),
    ],
)
def test_a_wrong_sink_uri_is_misuse(tidemill: Tidemill, tmp_path: Path, uri: str, says: str) -> None:  # noqa: F811
    said = tidemill(*run_words("127.0.0.1:1", tmp_path, {"sink-uri": uri}))
    assert said.code == 2
    assert says in said.errors, said.errors


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            "[filter]\nrule = ['a.*']", r"line 2: 'filter.rule' is unknown. Did you mean 'filter.rules'\?", id="a key"
        ),
        pytest.param(
            "[filtr]\nrules = ['a.*']", r"line 1: 'filtr' is unknown. Did you mean 'filter'\?", id="a section"
        ),
        pytest.param("[filter]\nrules = 'a.*'", r"'filter.rules' is 'a\.\*'; it must be a list of texts", id="a value"),
        pytest.param("[filter]\nrules = ['a.b.c']", r"filter\.rules\[0\]", id="a rule"),
        pytest.param("[filter", r"It must be TOML", id="no TOML"),
        pytest.param(
            "[mounter]\nworker-num = 4", r"'mounter.worker-num'", id="a key of TiCDC's that means nothing here"
        ),
        pytest.param("[sink.csv]\ndelimiter = ';'", r"means nothing to a sink of scheme 'mysql'", id="of another sink"),
        pytest.param(
            "[[filter.event-filters]]\nmatcher = ['a.*']\nignore-event = ['delet']",
            r"unknown event 'delet'. Did you mean 'delete'\?",
            id="an event",
        ),
        pytest.param(
            "[[filter.event-filters]]\nmatcher = ['a.*']\nignore-insert-value-expr = 'id >'",
            r"filter\.event-filters\[0\]\.ignore-insert-value-expr",
            id="an expression",
        ),
    ],
)
def test_a_wrong_file_is_misuse(tidemill: Tidemill, tmp_path: Path, text: str, says: str) -> None:  # noqa: F811
    (tmp_path / "feed.toml").write_text(text)
    flags = {"sink-uri": "mysql://u@127.0.0.1:1/", "config": str(tmp_path / "feed.toml")}
    for command in ("run", "verify"):
        words = run_words("127.0.0.1:1", tmp_path, flags)
        if command == "verify":
            words = ["verify", *words[1:5], "--config", str(tmp_path / "feed.toml"), "--at", "1000"]
        said = tidemill(*words)
        assert said.code == 2, said.errors
        assert re.search(says, said.errors.replace("\n", " ")), said.errors


# Where the URI comes from.


def test_a_sink_uri_may_come_from_a_file_or_the_environment(
    tidemill: Tidemill,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As far as a message goes that shows the URI in which it was read."""
    kept = tmp_path / "uri"
    kept.write_text(f"mysql://root:{WRONG}@h:3306/database\n")
    said = tidemill(*run_words("127.0.0.1:1", tmp_path, {"sink-uri": f"@{kept}"}))
    assert (said.code, "names a database" in said.errors, WRONG in said.errors) == (2, True, False)
    monkeypatch.setenv("TIDEMILL_SINK_URI", f"mysql://root:{WRONG}@h:3306/database")
    said = tidemill(*run_words("127.0.0.1:1", tmp_path, {"sink-uri": None}))
    assert (said.code, "names a database" in said.errors, WRONG in said.errors) == (2, True, False)
    assert "TIDEMILL_SINK_URI" not in os.environ


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"cannot read the sink URI from \S+uri: No such file"),
        (b"", r"does not hold a sink URI"),
        (b"a://b\nc://d\n", r"does not hold a sink URI: it must be the file's one line"),
        (b"\xff", r"it is not UTF-8"),
    ],
)
def test_a_file_without_a_sink_uri_is_refused(
    tidemill: Tidemill,  # noqa: F811
    tmp_path: Path,
    content: bytes | None,
    says: str,
) -> None:
    if content is not None:
        (tmp_path / "uri").write_bytes(content)
    said = tidemill(*run_words("127.0.0.1:1", tmp_path, {"sink-uri": f"@{tmp_path}/uri"}))
    assert (said.code, bool(re.search(says, said.errors))) == (2, True), said.errors


@pytest.mark.parametrize("password", [f"a/{WRONG}", f"a?{WRONG}", f"a#{WRONG}", f"1/{WRONG}"])
@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_password_that_is_not_encoded_is_not_shown(
    tidemill: Tidemill,  # noqa: F811
    tmp_path: Path,
    command: str,
    password: str,
) -> None:
    uri = f"mysql://root:{password}@127.0.0.1:3306/"
    said = tidemill(command, "--pd", "127.0.0.1:1", "--sink-uri", uri, "--data-dir", tmp_path / "data")
    assert (said.code, "percent form" in said.errors, WRONG in said.errors) == (2, True, False), said.errors
