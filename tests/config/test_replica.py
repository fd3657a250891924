"""A changefeed's config in TiCDC's JSON and in the spelling of its file."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.changefeed import read_config
from tidemill.config.replica import DEFAULTS, api_form, document_of, metadata_form
from tidemill.errors import ConfigError
from tidemill.flow.encoder import protocol_keys

RULES = {"filter": {"rules": ["shop.*"]}}


@pytest.mark.parametrize(
    ("json", "document"),
    [
        pytest.param({"filter": {"rules": ["shop.*"]}}, RULES, id="what both spell alike"),
        pytest.param({"case_sensitive": True}, {"case-sensitive": True}, id="with underscores"),
        pytest.param({"case-sensitive": True}, {"case-sensitive": True}, id="with hyphens"),
        pytest.param({"memory_quota": None, "sink": {"protocol": None}}, {}, id="null says nothing"),
        pytest.param({"sync_point_interval": 60_000_000_000}, {"sync-point-interval": "60s"}, id="nanoseconds"),
        pytest.param({"sync_point_interval": 1_500_000_000}, {"sync-point-interval": "1500ms"}, id="milliseconds"),
        pytest.param({"sync_point_interval": "1m"}, {"sync-point-interval": "1m"}, id="a duration as text"),
        pytest.param({"sync_point_interval": "600s"}, {}, id="a default in another spelling"),
        pytest.param({"sink": {"file_index_width": 6}}, {"sink": {"file-index-digit": 6}}, id="another name"),
        pytest.param({"sink": {"file-index-digit": 6}}, {"sink": {"file-index-digit": 6}}, id="the file's name"),
        pytest.param(
            {"sink": {"mysql_config": {"max_multi_update_row_count": 7}}},
            {"sink": {"mysql-config": {"max-multi-update-row": 7}}},
            id="another name, deeper",
        ),
        pytest.param(
            {"filter": {"event_filters": [{"matcher": ["a.*"], "ignore_event": ["insert"], "ignore_sql": None}]}},
            {"filter": {"event-filters": [{"matcher": ["a.*"], "ignore-event": ["insert"]}]}},
            id="a list of tables",
        ),
        pytest.param({"mounter": {"worker_num": 16}}, {}, id="TiCDC's default of what we refuse"),
        pytest.param({"mounter": {"worker_num": 8}}, {"mounter": {"worker-num": 8}}, id="and another value of it"),
        pytest.param({"memory_quota": 1 << 30}, {"memory-quota": 1 << 30}, id="TiCDC's default where ours is another"),
        pytest.param({"memory_quota": 0}, {}, id="zero for the default"),
        pytest.param({"case_sensitive": 0}, {"case-sensitive": 0}, id="a zero is not false"),
    ],
)
def test_what_json_says(json: dict[str, Any], document: dict[str, Any]) -> None:
    assert document_of(json) == document


def test_a_whole_config_of_defaults_says_what_ticdc_does_unlike_us() -> None:
    as_sent = api_form(DEFAULTS)
    assert document_of(as_sent) == {"memory-quota": 1 << 30, "ignore-ineligible-table": False}
    read_config(document_of(as_sent), more=protocol_keys())


def test_without_a_word_our_own_defaults_are_shown() -> None:
    shown = api_form({})
    assert (shown["memory_quota"], shown["ignore_ineligible_table"]) == (256 << 20, True)
    assert shown["sync_point_interval"] == 600 * 10**9
    assert shown["sink"]["advance_timeout"] == 150
    assert shown["sink"]["send-all-bootstrap-at-start"] is False


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'case-sensitive' twice"):
        document_of({"case_sensitive": True, "case-sensitive": True})


def test_endless_nesting_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"sink": deep}
    with pytest.raises(ConfigError, match="too deeply"):
        document_of(deep)


def test_an_unknown_key_is_refused_with_one_that_is_like_it() -> None:
    with pytest.raises(ConfigError, match=r"'filter\.rulez' is unknown\. Did you mean 'filter\.rules'"):
        read_config(document_of({"filter": {"rulez": []}}))


def test_a_key_that_we_cannot_honour_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"mounter\.worker-num' is not supported.*spark-master"):
        read_config(document_of({"mounter": {"worker_num": 8}}))


documents = st.fixed_dictionaries(
    {},
    optional={
        "memory-quota": st.integers(16 << 20, 1 << 40).filter(lambda n: n != 256 << 20),
        "enable-sync-point": st.just(True),
        "sync-point-interval": st.integers(601, 9999).map(lambda n: f"{n}s"),
        "filter": st.fixed_dictionaries({"rules": st.lists(st.sampled_from(["a.*", "b.c", "!x.y"]), min_size=1)}),
        "sink": st.fixed_dictionaries(
            {"protocol": st.sampled_from(["canal-json", "csv"]), "file-index-digit": st.integers(6, 19)}
        ),
    },
)


@given(documents)
def test_what_is_shown_and_what_is_stored_reads_back(document: dict[str, Any]) -> None:
    assert document_of(api_form(document)) == document
    assert document_of(metadata_form(document)) == document
