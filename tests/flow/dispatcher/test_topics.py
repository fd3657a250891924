"""Names of topics are made of those of tables, and of nothing that Kafka would not take."""

import pytest

from tests.flow.encoder.samples import ITEM
from tidemill.errors import ConfigError, FilterError
from tidemill.flow.dispatcher import Dispatching, DispatchRules, PartitionRule
from tidemill.flow.dispatcher.partition import Kind
from tidemill.flow.dispatcher.topics import TopicExpression
from tidemill.model.changefeed import Dispatch


@pytest.mark.parametrize(
    ("text", "schema", "table", "topic"),
    [
        ("", "shop", "item", "default"),
        ("orders", "shop", "item", "orders"),
        ("cdc_{schema}_{table}", "shop", "item€1", "cdc_shop_item_1"),
        ("{schema}", "Shop", "item", "Shop"),
        ("{table}", "shop", "a b", "a_b"),
        ("{schema}{table}x", "s", "t", "stx"),
        ("{table}", "s", "x" * 300, "x" * 249),
        ("{table}", "s", ".", "_"),
        ("{table}", "s", "..", "__"),
        ("{table}", "s", "数", "_"),
    ],
)
def test_a_topic_by_its_expression(text: str, schema: str, table: str, topic: str) -> None:
    assert TopicExpression(text).topic(schema, table, "default") == topic


@pytest.mark.parametrize("text", [" ", "a b", "{table}{schema}", "{schema}{schema}", "{db}", "a{", "ä", ".", "x" * 250])
def test_what_is_no_topic_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"here: .* is no topic"):
        TopicExpression(text, "here")


def rules(*entries: Dispatch, case_sensitive: bool = False) -> DispatchRules:
    return DispatchRules(Dispatching(entries, case_sensitive), "default")


def test_the_first_entry_that_matches_decides() -> None:
    found = rules(Dispatch(("SHOP.it*",), "ts", "a"), Dispatch(("shop.*",), "index-value", "b")).destination(ITEM)
    assert (found.topic, found.rule.kind) == ("a", Kind.TS)


def test_case_counts_where_it_is_asked_for() -> None:
    assert rules(Dispatch(("SHOP.*",), "ts", "a"), case_sensitive=True).destination(ITEM).topic == "default"


def test_a_table_that_no_entry_matches_goes_by_its_name() -> None:
    assert rules(Dispatch(("crm.*",), "ts", "a")).destination(ITEM).rule == PartitionRule()


def test_a_matcher_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(FilterError, match=r"sink.dispatchers\[0\].matcher"):
        rules(Dispatch(("shop",)))
