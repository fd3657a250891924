"""Sink URIs of MySQL: TiCDC's names and words, and what is refused by name."""

import pickle

import pytest

from tidemill.errors import SinkUriError
from tidemill.sinks.mysql import MysqlOptions, parse_mysql_uri

BASE = "mysql://joe:p%40ss@db:3306/?"


def test_defaults_are_ticdcs() -> None:
    options = parse_mysql_uri("mysql://db/")
    assert (options.user, options.password, options.host, options.port) == ("root", "", "db", 4000)
    assert (options.worker_count, options.is_atomic, options.safe_mode, options.is_tls) == (16, False, False, False)


def test_user_and_password_are_unquoted_and_never_shown() -> None:
    options = parse_mysql_uri(BASE)
    assert (options.user, options.password, options.host, options.port) == ("joe", "p@ss", "db", 3306)
    assert "p@ss" not in repr(options)
    assert "p%40ss" not in options.safe_uri + options.place
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("parameters", "field", "value"),
    [
        ("worker-count=5000", "worker_count", 1024),
        ("max-txn-row=9999", "max_txn_row", 2048),
        ("max-multi-update-row=10", "max_multi_update_row", 10),
        ("transaction-atomicity=table", "is_atomic", True),
        ("safe-mode=true", "safe_mode", True),
        ("time-zone=%22Europe/Berlin%22", "time_zone", "Europe/Berlin"),
        ("time-zone=", "time_zone", ""),
        ("read-timeout=1m30s", "read_timeout_seconds", 90.0),
        ("multi-stmt-enable=false", "multi_statements", False),
        ("enable-sync-point=true", "sync_point", True),
        ("ssl-ca=/ca.pem", "is_tls", True),
    ],
)
def test_parameters_are_read(parameters: str, field: str, value: object) -> None:
    assert getattr(parse_mysql_uri(BASE + parameters), field) == value


@pytest.mark.parametrize("scheme", ["mysql+ssl", "tidb+ssl"])
def test_ssl_in_the_scheme_turns_tls_on(scheme: str) -> None:
    assert parse_mysql_uri(f"{scheme}://db/").is_tls


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mysql:///", "names no host"),
        ("mysql://db:port/", "cannot read the sink URI"),
        ("mysql://db/shop", "names a database"),
        (BASE + "worker-count=0", "'worker-count' is '0'; it must be a whole number, 1 or more"),
        (BASE + "worker-cuont=4", "Did you mean 'worker-count'"),
        (BASE + "protocol=csv", "'protocol' is not supported: rows are written as SQL"),
        (BASE + "cache-prep-stmts=true", "'cache-prep-stmts' is not supported"),
        (BASE + "transaction-atomicity=global", "none or table"),
        (BASE + "time-zone=Mars", "a time zone such as UTC"),
        (BASE + "sync-point-interval=5s", "at least 30s"),
        (BASE + "ssl-cert=/c.pem", "'ssl-cert' and 'ssl-key' belong together"),
        (BASE + "ssl-cert=/c&ssl-key=/k", "means nothing without TLS"),
        (BASE + "safe-mode=true&safe-mode=false", "given twice"),
    ],
)
def test_what_is_wrong_is_named(uri: str, message: str) -> None:
    with pytest.raises(SinkUriError, match=message) as raised:
        parse_mysql_uri(uri)
    assert "p%40ss" not in str(raised.value)
    assert "p@ss" not in str(raised.value)


def test_options_can_be_made_by_hand() -> None:
    assert MysqlOptions("db").place == "db:4000"
