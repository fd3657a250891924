"""A changefeed's file: what it may say, and what it is told where it is wrong."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidemill.config import changefeed
from tidemill.config.changefeed import sink_parameters
from tidemill.config.keys import KEYS, REFUSED
from tidemill.errors import ConfigError
from tidemill.flow.encoder import protocol_keys
from tidemill.model.changefeed import ChangefeedConfig, ColumnSelection, Dispatch, EventFilter, OnUndecodable
from tidemill.sinks.files.uri import known_parameters, refused_parameters

parse_config = partial(changefeed.parse_config, more=protocol_keys())
load_config = partial(changefeed.load_config, more=protocol_keys())
FULL = """
case-sensitive = true
force-replicate = true
ignore-ineligible-table = false
check-gc-safe-point = true
bdr-mode = false
enable-sync-point = true
sync-point-interval = "5m"
sync-point-retention = "1h30m"
memory-quota = 67108864
disk-quota = 1073741824

[mounter]
on-undecodable = "quarantine"

[filter]
rules = ['*.*', '!test.*']
ignore-txn-start-ts = [1, 18446744073709551615]

[[filter.event-filters]]
matcher = ["shop.item"]
ignore-event = ["delete", "drop table"]
ignore-sql = ["^drop"]
ignore-insert-value-expr = "id >= 100"

[[filter.event-filters]]
matcher = ["shop.*"]
ignore-update-old-value-expr = "qty < 0"
ignore-update-new-value-expr = "qty < 0 and sku = 'x'"
ignore-delete-value-expr = "sku = 'keep'"

[integrity]
integrity-check-level = "correctness"
corruption-handle-level = "error"

[sink]
protocol = "csv"
terminator = "\\n"
date-separator = "none"
column-selectors = [{ matcher = ['shop.*'], columns = ['*', '!note'] }]

[sink.csv]
delimiter = ";"
include-commit-ts = true

[sink.cloud-storage-config]
flush-interval = "5s"
file-size = 1048576
"""


def test_a_whole_file_is_read() -> None:
    found = parse_config(FULL)
    assert found.rules == ("*.*", "!test.*")
    assert found.event_filters == (
        EventFilter(("shop.item",), ("delete", "drop table"), ("^drop",), "id >= 100"),
        EventFilter(("shop.*",), (), (), "", "qty < 0", "qty < 0 and sku = 'x'", "sku = 'keep'"),
    )
    assert found.ignore_txn_start_ts == {1, 2**64 - 1}
    assert found.column_selectors == (ColumnSelection(("shop.*",), ("*", "!note")),)
    assert (found.case_sensitive, found.force_replicate, found.ignore_ineligible_table) == (True, True, False)
    assert (found.enable_sync_point, found.sync_point_interval_seconds, found.sync_point_retention_seconds) == (
        True,
        300.0,
        5400.0,
    )
    assert found.on_undecodable is OnUndecodable.QUARANTINE
    assert found.verifies_checksums
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("text", ["", "# nothing", "[filter]", "[filter]\nrules = []", "[sink]\ncolumn-selectors = []"])
def test_what_is_not_said_has_its_default(text: str) -> None:
    assert parse_config(text) == ChangefeedConfig()


def test_sink_settings_are_parameters_of_the_uri() -> None:
    assert sink_parameters(parse_config(FULL), "file") == {
        "protocol": "csv",
        "terminator": "\n",
        "date-separator": "none",
        "delimiter": ";",
        "include-commit-ts": "true",
        "flush-interval": "5s",
        "file-size": "1048576",
    }


def test_names_of_the_file_that_differ_from_the_uris_are_translated() -> None:
    found = parse_config("[sink]\nsafe-mode = true\n[sink.mysql-config]\nworker-count = 4\nenable-batch-dml = false")
    expected = {"safe-mode": "true", "worker-count": "4", "batch-dml-enable": "false"}
    assert sink_parameters(found, "mysql") == sink_parameters(found, "tidb") == expected


@pytest.mark.parametrize(
    ("text", "scheme", "message"),
    [
        ("[sink.mysql-config]\nworker-count = 4", "file", "'sink.mysql-config.worker-count' .* scheme 'file'"),
        ("[sink]\ndate-separator = 'day'", "mysql", "'sink.date-separator' .* scheme 'mysql'; it is for file, s3"),
        ("[sink]\nprotocol = 'csv'", "tidb", "'sink.protocol' .* scheme 'tidb'"),
        ("[sink]\ndispatchers = [{matcher=['*.*'], partition='ts'}]", "file", "topics and partitions"),
    ],
)
def test_a_setting_that_the_sink_does_not_have_is_refused(text: str, scheme: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sink_parameters(parse_config(text), scheme)


def test_storage_settings_are_what_the_sink_uri_knows() -> None:
    known = {parameter.name for parameter in known_parameters()} | set(refused_parameters())
    ours = {
        key.parameter
        for key in {**KEYS, **protocol_keys()}.values()
        if key.parameter and (not key.schemes or "file" in key.schemes)
    }
    assert ours <= known


def test_a_dispatcher_may_have_its_old_name() -> None:
    found = parse_config(
        "[sink]\ndispatchers = [{matcher = ['a.*'], dispatcher = 'ts'}, {matcher = ['b.*'], topic = 't'}]"
    )
    assert found.dispatchers == (Dispatch(("a.*",), "ts"), Dispatch(("b.*",), topic="t"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("case_sensitive = true", "line 1: 'case_sensitive' is unknown. Did you mean 'case-sensitive'"),
        ("\n\nforce-replicat = true", "line 3: 'force-replicat' is unknown. Did you mean 'force-replicate'"),
        ("rules = ['*.*']", "'rules' is unknown. Did you mean 'filter.rules'"),
        ("[filter]\nrule = ['*.*']", "line 2: 'filter.rule' is unknown. Did you mean 'filter.rules'"),
        ("[filters]\nrules = ['*.*']", "line 1: 'filters' is unknown. Did you mean 'filter'"),
        ("[sink.csv]\ndelimeter = ','", "line 2: 'sink.csv.delimeter' is unknown. Did you mean 'sink.csv.delimiter'"),
        (
            "[[filter.event-filters]]\nmatcher = ['a.b']\n\n[[filter.event-filters]]\nignore-events = []",
            r"line 5: 'filter.event-filters\[1\].ignore-events' is unknown. Did you mean .*ignore-event'",
        ),
        ("zzz = 1", "'zzz' is unknown. The reference page"),
        ("filter = " + "[" * 5000, "its values are nested too deeply"),
        ("memory-quota = " + "9" * 5000, "cannot read F: it holds a number of thousands of digits"),
        ("memory-quota = 0x" + "f" * 5000, "'memory-quota' holds a number that is too large: 64 bits"),
        ("disk-quota = 18446744073709551616", "'disk-quota' holds a number that is too large: 64 bits"),
        ("[filter]\nrules = [[0x" + "f" * 5000 + "]]", "'filter.rules' holds a number that is too large"),
        ("[sink]\nprotocol = { a = 0x" + "f" * 5000 + " }", "'sink.protocol' holds a number that is too large"),
        ("filter = 1", "line 1: 'filter' is a section, not a value"),
        ("[filter]\nevent-filters = 1", r"must be a list of tables. Write \[\[filter.event-filters\]\]"),
        ("[[filter.event-filters]]\nignore-sql = ['x']", r"event-filters\[0\]' lacks the key 'matcher'"),
        ("[[filter.event-filters]]\nmatcher = []", "at least one text"),
        ("[sink]\ncolumn-selectors = [{ matcher = ['*.*'] }]", r"column-selectors\[0\]' lacks the key 'columns'"),
        (
            "[sink]\ndispatchers = [{matcher=['*.*'], partition='ts', dispatcher='ts'}]",
            "both 'partition' and its old name",
        ),
        ("case-sensitive = 1", "'case-sensitive' is 1; it must be true or false"),
        ("[filter]\nrules = '*.*'", "it must be a list of texts"),
        ("[filter]\nrules = [1]", "it must be a list of texts"),
        ("[filter]\nignore-txn-start-ts = [-1]", "it must be a list of timestamps"),
        ("[filter]\nignore-txn-start-ts = [true]", "it must be a list of timestamps"),
        ("sync-point-interval = 600", "it must be a duration in quotes"),
        ("sync-point-interval = '10 minutes'", "it must be a duration such as 5s"),
        ("sync-point-interval = '99999999999h'", "it must be at most 8760h, a year"),
        ("sync-point-interval = '29s'", "it must be a duration of 30s or more"),
        ("sync-point-retention = '59m'", "it must be a duration of 1h or more"),
        ("[mounter]\non-undecodable = 'skip'", "'skip'; it must be 'stop' or 'quarantine'"),
        ("[sink.cloud-storage-config]\nworker-count = 0", "a whole number, 1 or more"),
        ("[sink.cloud-storage-config]\nflush-interval = 5", "a duration in quotes"),
        ("[sink]\ntransaction-atomicity = 'row'", "'none' or 'table'"),
        ("bdr-mode = true", "it must be false: changes go one way"),
        ("check-gc-safe-point = false", "it must be true"),
        ("[consistent]\nlevel = 'eventual'", "it must be 'none': there is no redo log"),
        ("[consistent]\nstorage = 's3://x'", "'consistent.storage' is not supported: there is no redo log"),
        ("memory-quota = 1", "'memory-quota'.*a whole number, 16777216 or more"),
        ("disk-quota = 0", "'disk-quota'.*a whole number, 1 or more"),
        ("sql-mode = ''", "'sql-mode' is not supported: .*Take it out"),
        (
            "[sink.kafka-config]\nsasl-password = 7",
            "'sink.kafka-config.sasl-password' is this value; it must be a text",
        ),
        ("[sink.kafka-config]\nmax-retry = 7", "'sink.kafka-config.max-retry' is not supported: .*sent again"),
        ("[integrity]\nintegrity-check-level = 'correctness'", "must be 'error' where integrity-check-level"),
        ("a = \nb = 1", "cannot read F: .*line 1, column"),
        ("a = 1\na = 2", "cannot read F: "),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(text, "F")
    assert "geheim" not in str(caught.value)


def test_every_refused_key_is_refused() -> None:
    for refused in REFUSED:
        path = refused + ".storage" if refused == "consistent" else refused  # a section with one key that may be there
        section, _, name = path.rpartition(".")
        value = f"{name} = 1" if "[]" not in path else f"{section.rpartition('.')[2][:-2]} = [{{ {name} = 1 }}]"
        section = section.rpartition(".")[0] if "[]" in path else section
        text = (f"[{section}]\n" if section else "") + value
        with pytest.raises(ConfigError, match="is not supported"):
            parse_config(text)


def test_a_file_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "changefeed.toml"
    path.write_text(FULL)
    assert load_config(path) == parse_config(FULL)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read .*No such file"), (b"\xff", r"it is not UTF-8 text \(byte 0\)")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "changefeed.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_a_protocol_brings_its_own_keys() -> None:
    with pytest.raises(ConfigError, match=r"'sink\.csv' is unknown"):
        changefeed.parse_config("[sink.csv]\ndelimiter = ';'")
    assert not set(protocol_keys()) & set(KEYS)


def test_numbers_of_a_protocol_have_no_quotes() -> None:
    """As in TiCDC's files."""
    config = parse_config("[sink]\nsend-bootstrap-interval-in-sec = 60\nsend-bootstrap-in-msg-count = -1")
    given = {setting.parameter: setting.text for setting in config.sink_settings}
    assert given == {"send-bootstrap-interval-in-sec": "60", "send-bootstrap-in-msg-count": "-1"}
    with pytest.raises(ConfigError, match=r"send-bootstrap-in-msg-count.*a whole number"):
        parse_config("[sink]\nsend-bootstrap-in-msg-count = 'many'")
