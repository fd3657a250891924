"""Names of topics: of all tables, or made of a table's names.

cdc_{schema}_{table}    shop.item€1  ──►  cdc_shop_item_1
"""

import re
from dataclasses import dataclass

from tidemill.errors import ConfigError

LONGEST = 249  # characters of a topic's name, in Kafka
_LITERAL = r"[A-Za-z0-9._-]*"
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_WITH_NAMES = re.compile(rf"{_LITERAL}(\{{schema\}}{_LITERAL})?(\{{table\}}{_LITERAL})?")
_OTHERS = re.compile(r"[^A-Za-z0-9._-]")


def is_topic(name: str) -> bool:
    """Whether Kafka would take it."""
    return bool(_PLAIN.fullmatch(name)) and name not in (".", "..") and len(name) <= LONGEST


@dataclass(frozen=True, slots=True)
class TopicExpression:
    """Checked; raises ConfigError otherwise. ``place`` stands for it in messages. Empty: the default topic."""

    text: str
    place: str = "topic"

    def __post_init__(self) -> None:
        if not self.text or is_topic(self.text):
            return
        if not _WITH_NAMES.fullmatch(self.text) or "{" not in self.text:
            raise ConfigError(
                f"{self.place}: {self.text!r} is no topic. Write letters, digits, '.', '_' and '-', with {{schema}} "
                "and {table} where the table's names are to stand, in this order: 'cdc_{schema}_{table}'."
            )

    @property
    def is_of_one_table(self) -> bool:
        return "{schema}" in self.text and "{table}" in self.text

    def topic(self, schema: str, table: str, default: str) -> str:
        if not self.text:
            return default
        name = self.text.replace("{schema}", _OTHERS.sub("_", schema)).replace("{table}", _OTHERS.sub("_", table))
        name = name[:LONGEST]
        return {".": "_", "..": "__"}.get(name, name)
