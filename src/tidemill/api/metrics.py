"""What a capture measures: one table, from which the reference page, the Grafana board and the alert rules are made.

Names are TiCDC's where they mean the same, so its boards and rules find them; what is ours begins with ``tidemill_``.
What belongs to a changefeed is told by the owner alone, so a query takes ``max`` over captures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FEED: Final = ("namespace", "changefeed")
STATES: Final = ("normal", "pending", "failed", "stopped", "finished", "removed", "warning")  # as numbers: 0, 1, …


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """``row`` and ``panel``: where the board shows it; metrics of one panel share it. ``query`` 's ``$name`` is the
    metric with the board's filter."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    row: str
    panel: str
    query: str = "$name"
    legend: str = ""
    unit: str = "short"


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    severity: str
    expression: str
    summary: str
    lasting: str = "1m"


_LAG = "Lag"
_FEEDS = "Changefeeds"
_CAPTURES = "Captures"
_BY_FEED = "max($name) by (namespace, changefeed)"
_FEED_LEGEND = "{{namespace}}/{{changefeed}}"

METRICS: Final[Sequence[Metric]] = (
    Metric("ticdc_owner_checkpoint_ts_lag", Kind.GAUGE, FEED,
           "Seconds that the checkpoint is behind the upstream's clock.",
           _LAG, "Checkpoint lag", _BY_FEED, _FEED_LEGEND, "s"),
    Metric("ticdc_owner_resolved_ts_lag", Kind.GAUGE, FEED,
           "Seconds that the resolved-ts is behind the upstream's clock.",
           _LAG, "Resolved-ts lag", _BY_FEED, _FEED_LEGEND, "s"),
    Metric("tidemill_stage_lag_seconds", Kind.GAUGE, (*FEED, "stage"),
           "The checkpoint's lag in parts: `puller` from the upstream's clock to what was pulled, `sorter` from there "
           "to what is sorted, `sink` from there to what is durable. Together they are the whole.",
           _LAG, "Lag by stage", "max($name) by (namespace, changefeed, stage)", _FEED_LEGEND + " {{stage}}", "s"),
    Metric("tidemill_held_back_seconds", Kind.GAUGE, (*FEED, "cause"),
           "How long this has held the checkpoint back: a region, a lock, a DDL, the sink, …",
           _LAG, "What holds checkpoints back", "max($name) by (namespace, changefeed, cause)",
           _FEED_LEGEND + " {{cause}}", "s"),
    Metric("ticdc_owner_checkpoint_ts", Kind.GAUGE, FEED, "The checkpoint-ts, in milliseconds since 1970.",
           _FEEDS, "Checkpoint", _BY_FEED, _FEED_LEGEND, "dateTimeAsIso"),
    Metric("ticdc_owner_resolved_ts", Kind.GAUGE, FEED, "The resolved-ts, in milliseconds since 1970.",
           _FEEDS, "Resolved-ts", _BY_FEED, _FEED_LEGEND, "dateTimeAsIso"),
    Metric("ticdc_owner_current_pd_ts", Kind.GAUGE, FEED, "The upstream's clock, in milliseconds since 1970.",
           _FEEDS, "Upstream's clock", _BY_FEED, _FEED_LEGEND, "dateTimeAsIso"),
    Metric("ticdc_owner_status", Kind.GAUGE, FEED,
           "The state: " + ", ".join(f"{number} {name}" for number, name in enumerate(STATES)) + ".",
           _FEEDS, "State", _BY_FEED, _FEED_LEGEND),
    Metric("ticdc_scheduler_table", Kind.GAUGE, FEED, "Tables that captures have.",
           _FEEDS, "Tables", _BY_FEED, _FEED_LEGEND),
    Metric("ticdc_scheduler_capture_table", Kind.GAUGE, (*FEED, "addr"), "Tables that the capture at `addr` has.",
           _CAPTURES, "Tables by capture", "max($name) by (namespace, changefeed, addr)", _FEED_LEGEND + " {{addr}}"),
    Metric("ticdc_owner_ownership_counter", Kind.COUNTER, (),
           "Grows by one each second on the owner, and nowhere else.",
           _CAPTURES, "Owner", "rate($name[1m])", "{{instance}}"),
    Metric("tidemill_captures", Kind.GAUGE, (), "Captures of the cluster.",
           _CAPTURES, "Captures", "max($name)", "captures"),
    Metric("process_resident_memory_bytes", Kind.GAUGE, (), "Memory of the capture's process.",
           _CAPTURES, "Memory", "$name", "{{instance}}", "bytes"),
    Metric("process_cpu_seconds_total", Kind.COUNTER, (), "CPU time of the capture's process.",
           _CAPTURES, "CPU", "rate($name[1m])", "{{instance}}", "percentunit"),
    Metric("process_open_fds", Kind.GAUGE, (), "Open files and connections of the capture's process.",
           _CAPTURES, "Open files", "$name", "{{instance}}"),
)  # fmt: skip

ALERTS: Final[Sequence[Alert]] = (
    Alert("cdc_multiple_owners", "warning", "sum(rate(ticdc_owner_ownership_counter[240s])) >= 2",
          "More than one capture takes itself for the owner."),
    Alert("cdc_no_owner", "warning", "sum(rate(ticdc_owner_ownership_counter[240s])) < 0.5",
          "No capture is the owner: changefeeds are not looked after.", "10m"),
    Alert("ticdc_changefeed_failed", "critical", "max_over_time(ticdc_owner_status[1m]) == 2",
          "The changefeed has failed and does not continue by itself."),
    Alert("ticdc_changefeed_meet_error", "warning",
          "max_over_time(ticdc_owner_status[1m]) == 1 or max_over_time(ticdc_owner_status[1m]) == 6",
          "The changefeed meets errors and is tried again."),
    Alert("cdc_checkpoint_high_delay", "critical", "ticdc_owner_checkpoint_ts_lag > 600",
          "The checkpoint is more than ten minutes behind. tidemill changefeed query says what holds it back."),
    Alert("cdc_resolvedts_high_delay", "critical", "ticdc_owner_resolved_ts_lag > 300",
          "The resolved-ts is more than five minutes behind. tidemill changefeed query says what holds it back."),
    Alert("ticdc_memory_abnormal", "warning", "process_resident_memory_bytes{job=~\"ticdc|tidemill\"} > 1e10",
          "A capture's process has more than 10 GB of memory."),
)  # fmt: skip


def metric(name: str) -> Metric:
    return next(each for each in METRICS if each.name == name)
