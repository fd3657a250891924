"""Runs the benchmarks, prints them as a table and writes ``bench/results.json``.

A benchmark returns dicts with ``name``, ``value``, ``unit``, ``floor`` and ``ratio``; the floor is what the
same work costs at its barest on this machine, and None where there is nothing to compare with. What
misses its aim is marked, and is no failure: machines differ. A benchmark that raises does not stop the
others but makes the exit code 1.
"""

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results.json")
_KEYS = ("name", "value", "unit", "floor", "ratio")

Result = dict[str, Any]  # as JSON; ``checked`` sees to its keys


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure should reach; a bound that is None asks for nothing."""

    ratio: float | None = None  # at least
    at_least: float | None = None
    at_most: float | None = None
    ratio_at_most: float | None = None

    def missed_by(self, result: Result) -> str:
        """In words, what was aimed at and not reached; empty when all was."""
        missed = []
        if self.ratio is not None and result["ratio"] is not None and result["ratio"] < self.ratio:
            missed.append(f"ratio ≥ {self.ratio:g}")
        if self.ratio_at_most is not None and result["ratio"] is not None and result["ratio"] > self.ratio_at_most:
            missed.append(f"ratio ≤ {self.ratio_at_most:g}")
        if self.at_least is not None and result["value"] < self.at_least:
            missed.append(f"≥ {_number(self.at_least)}")
        if self.at_most is not None and result["value"] > self.at_most:
            missed.append(f"≤ {_number(self.at_most)}")
        return ", ".join(missed)


@dataclass(frozen=True, slots=True)
class Group:
    """Benchmarks that one function runs together; their names begin with ``prefix``, and then as ``parts`` do."""

    prefix: str
    module: str
    function: str
    aims: Mapping[str, Aim] = field(default_factory=dict)
    parts: Sequence[str] = ("",)  # told where another group has the same prefix

    def is_wanted(self, only: str) -> bool:
        names = [self.prefix + part for part in self.parts]
        return any(name.startswith(only) or only.startswith(name) for name in names)

    def run(self, only: str) -> list[Result]:
        """Imported here, so that one that is not asked for costs nothing."""
        results = getattr(importlib.import_module(self.module), self.function)()
        return [checked(result) for result in results if result["name"].startswith(only)]


GROUPS = (
    Group("mount.", "bench.mount", "bench_mount", {"mount.narrow": Aim(15, 900_000), "mount.wide": Aim(15, 110_000)}),
    Group(
        "encode.",
        "bench.encode",
        "bench_encode",
        {
            # Five times what TiCDC's encoder does on one core.
            "encode.open_protocol": Aim(at_least=825_000),
            "encode.open_protocol_wide": Aim(at_least=80_000),
            "encode.canal_json": Aim(2, 1_500_000),
            "encode.canal_json_wide": Aim(at_least=150_000),
            "encode.simple": Aim(at_least=975_000),
            "encode.simple_wide": Aim(at_least=110_000),
            "encode.debezium": Aim(at_least=375_000),
            "encode.debezium_wide": Aim(at_least=105_000),
            "encode.avro": Aim(2),
            "encode.avro_wide": Aim(2),
        },
    ),
    Group("decode.", "bench.decode", "bench_decode", {"decode.open_protocol": Aim(2), "decode.canal_json": Aim(2)}),
    Group(
        "control.tick.",
        "bench.control",
        "bench_tick",
        # Of 100 times as many tables: at most as many times the cost, and the same for each.
        {"control.tick.idle_100000": Aim(ratio_at_most=100), "control.tick.settle_100000": Aim(ratio_at_most=2)},
    ),
    Group("client.", "bench.client", "bench_client_receive", {"client.receive": Aim(0.5)}),
    Group(
        "sorter.", "bench.sorter", "bench_sorter", {"sorter.catch_up": Aim(at_most=1), "sorter.live": Aim(at_most=1)}
    ),
    Group("scan.", "bench.scan", "bench_scan_initial", {"scan.initial": Aim(0.6)}),
    Group("store.scan", "bench.store", "bench_scan", {"store.scan_events": Aim(0.3)}),
    Group(
        "store.raw",
        "bench.store",
        "bench_raw_put",
        {"store.raw_put_with_capture": Aim(0.95), "store.raw_put_with_capture_p99": Aim(0.95)},
    ),
    Group("sql.", "bench.sql", "bench_sql", {"sql.insert": Aim(0.3), "sql.point_update": Aim(0.3)}),
    Group(
        "schema.",
        "bench.schema",
        "bench_schema",
        {"schema.start_growth": Aim(at_most=1), "schema.memory_growth": Aim(at_most=1)},
    ),
    Group(
        "flow.",
        "bench.flow",
        "bench_flow",
        {
            "flow.blackhole": Aim(0.5),
            "flow.canal_json": Aim(0.5),
            "flow.csv": Aim(0.6),
            "flow.cpu_seconds.blackhole": Aim(at_most=4.5),
            "flow.cpu_seconds.canal_json": Aim(at_most=6),
        },
        ("blackhole", "canal_json", "csv", "cpu_seconds"),
    ),
    Group("flow.kafka", "bench.kafka", "bench_kafka", {"flow.kafka": Aim(0.5)}),
    Group("flow.mysql", "bench.mysql", "bench_mysql", {"flow.mysql": Aim(0.7)}),
    Group("consume.", "bench.consume", "bench_consume", {"consume.mysql": Aim(0.7)}, ("mysql",)),
    Group("flow.ddl", "bench.ddl", "bench_ddl", {"flow.ddl.files": Aim(at_least=60), "flow.ddl.mysql": Aim(1.0)}),
    Group(
        "flow.",
        "bench.slope",
        "bench_slope",
        {
            "flow.cpu_slope.blackhole": Aim(at_most=1.5),
            "flow.cpu_slope.canal_json": Aim(at_most=2.5),
            "flow.peak_memory.blackhole": Aim(at_most=1000),
            "flow.peak_memory.canal_json": Aim(at_most=1000),
        },
        ("cpu_slope", "peak_memory"),
    ),
    Group(
        "flow.",
        "bench.start",
        "bench_start",
        {"flow.start": Aim(at_most=5), "flow.start_cpu": Aim(at_most=6)},
        ("start", "first_row"),
    ),
    Group("spark.", "bench.overhead", "bench_overhead"),
    Group("flow.idle", "bench.idle", "bench_idle", {"flow.idle_changefeeds.lag_p99": Aim(ratio_at_most=1.5)}),
    Group("flow.iceberg", "bench.lake", "bench_lake", {"flow.iceberg": Aim(0.6)}),
    Group("flow.quiet", "bench.latency", "bench_quiet", {"flow.quiet_latency_p99": Aim(at_most=2)}),
    Group("flow.latency", "bench.latency", "bench_half_load"),
    Group("rawkv.", "bench.rawkv", "bench_rawkv", {"rawkv.flow": Aim(0.5), "rawkv.lag_p99": Aim(at_most=3)}),
    Group("frontier.", "bench.frontier", "bench_frontier", {"frontier.growth": Aim(0.5)}),
    Group("verify.", "bench.verify", "bench_verify"),
    Group("catchup.", "bench.catchup", "bench_catchup", {"catchup.peak_memory": Aim(ratio_at_most=1.25)}),
)


def checked(result: Result) -> Result:
    """Exactly the keys of a result, in their order."""
    if set(result) != set(_KEYS):
        raise ValueError(f"a benchmark returned the keys {sorted(result)}; expected {sorted(_KEYS)}")
    return {key: result[key] for key in _KEYS}


def main(arguments: Sequence[str], groups: Sequence[Group] = GROUPS, console: Console | None = None) -> int:
    """Run what was asked for; return the exit code."""
    console = console or Console()
    options = _parser().parse_args(arguments)
    chosen = [group for group in groups if group.is_wanted(options.only)]
    if not chosen:
        console.print(f"No benchmark begins with {options.only!r}. There are: {', '.join(g.prefix for g in groups)}")
        return 2
    results: list[Result] = []
    missed: dict[str, str] = {}
    failed: list[str] = []
    for group in chosen:
        console.print(f"Running {group.prefix}* ...", style="dim")
        try:
            found = group.run(options.only)
        except Exception:
            console.print(traceback.format_exc(), style="red", markup=False, highlight=False)
            failed.append(group.prefix)
            continue
        results += found
        missed |= {r["name"]: group.aims[r["name"]].missed_by(r) for r in found if r["name"] in group.aims}
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    console.print(_table(results, missed))
    if failed:
        console.print(f"Failed: {', '.join(f'{prefix}*' for prefix in failed)}", style="red")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    parser.add_argument("--only", default="", metavar="PREFIX", help="only those whose name begins so, as in mount.")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go, as JSON")
    return parser


def _table(results: Sequence[Result], missed: Mapping[str, str]) -> Table:
    table = Table("benchmark", title="Benchmarks", title_justify="left")
    for heading in ("value", "floor", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("aim")
    for result in results:
        name = result["name"]
        verdict = f"[yellow]missed: {missed[name]}" if missed.get(name) else "[green]reached" if name in missed else ""
        floor, ratio = result["floor"], result["ratio"]
        table.add_row(
            name,
            f"{_number(result['value'])} {result['unit']}",
            "" if floor is None else _number(floor),
            "" if ratio is None else f"{ratio:.2f}",
            verdict,
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
