"""The benchmark harness: what it runs, prints, writes and returns."""

import ast
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import bench
from bench.__main__ import GROUPS, Aim, Group, main

SAMPLES = "tests.bench.sample_benchmarks"
FINE = Group("fine.", SAMPLES, "fine", {"fine.fast": Aim(1.5), "fine.slow": Aim(at_most=3)})
BROKEN = Group("broken.", SAMPLES, "broken")
CARELESS = Group("careless.", SAMPLES, "careless")
ABSENT = Group("absent.", "bench.no_such_module", "bench_absent")


@pytest.fixture
def run(tmp_path: Path):
    def call(*arguments: str, groups=(FINE,)):
        screen = io.StringIO()
        output = tmp_path / "results.json"
        code = main([*arguments, "--output", str(output)], groups, Console(file=screen, width=160))
        written = json.loads(output.read_text()) if output.exists() else None
        return code, written, screen.getvalue()

    return call


def test_results_are_written_and_shown(run):
    code, written, screen = run()
    assert code == 0
    assert written == [
        {"name": "fine.fast", "value": 2_000_000.0, "unit": "rows/s", "floor": 1_000_000.0, "ratio": 2.0},
        {"name": "fine.slow", "value": 3.5, "unit": "s", "floor": None, "ratio": None},
    ]
    assert "2,000,000 rows/s" in screen


def test_what_misses_its_aim_is_marked_and_no_failure(run):
    code, _, screen = run()
    assert code == 0
    lines = {line.split()[1]: line for line in screen.splitlines() if "fine." in line and "│" in line}
    assert "reached" in lines["fine.fast"]
    assert "missed: ≤ 3" in lines["fine.slow"]


@pytest.mark.parametrize(
    ("aim", "ratio", "value", "missed"),
    [
        pytest.param(Aim(2), 2.0, 1, "", id="an aim that is met exactly is reached"),
        pytest.param(Aim(2), 1.9, 1, "ratio ≥ 2", id="a ratio below"),
        pytest.param(Aim(2), None, 1, "", id="without a floor there is no ratio to miss"),
        pytest.param(Aim(at_least=900_000), 1, 800_000, "≥ 900,000", id="a value below"),
        pytest.param(Aim(15, 110_000), 3, 9, "ratio ≥ 15, ≥ 110,000", id="both"),
        pytest.param(Aim(at_most=4.5), None, 4.6, "≤ 4.5", id="a value above"),
        pytest.param(Aim(ratio_at_most=1.25), 1.3, 9, "ratio ≤ 1.25", id="a ratio above"),
        pytest.param(Aim(ratio_at_most=1.25), 1.25, 9, "", id="a ratio exactly at its bound is reached"),
        pytest.param(Aim(ratio_at_most=1.25), None, 9, "", id="nor one that is above"),
    ],
)
def test_aims(aim, ratio, value, missed):
    assert aim.missed_by({"name": "x", "value": value, "unit": "", "floor": None, "ratio": ratio}) == missed


@pytest.mark.parametrize(
    ("group", "told"),
    [(BROKEN, "the machine is on fire"), (ABSENT, "No module named 'bench.no_such_module'"), (CARELESS, "expected")],
)
def test_one_that_fails_does_not_stop_the_others(run, group, told):
    code, written, screen = run(groups=(group, FINE))
    assert code == 1
    assert [result["name"] for result in written] == ["fine.fast", "fine.slow"]
    assert told in screen
    assert f"Failed: {group.prefix}*" in screen


@pytest.mark.parametrize(
    ("only", "names"), [("fine", ["fine.fast", "fine.slow"]), ("fine.f", ["fine.fast"]), ("fine.slow", ["fine.slow"])]
)
def test_only_selects_by_prefix(run, only, names):
    code, written, _ = run("--only", only, groups=(BROKEN, FINE))
    assert (code, [result["name"] for result in written]) == (0, names)


def test_a_prefix_of_nothing_is_misuse(run):
    code, written, screen = run("--only", "nothing")
    assert (code, written) == (2, None)
    assert "No benchmark begins with 'nothing'. There are: fine." in screen


def test_a_group_that_shares_its_prefix_runs_only_for_its_own_parts(run):
    broken_part = Group("fine.", SAMPLES, "broken", parts=("slow",))
    whole = Group("fine.", SAMPLES, "fine", parts=("fast",))
    code, written, _ = run("--only", "fine.fast", groups=(broken_part, whole))
    assert (code, [result["name"] for result in written]) == (0, ["fine.fast"])
    assert run("--only", "fine.", groups=(broken_part, whole))[0] == 1


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.function)
def test_every_group_has_its_function_and_its_aims_are_its_own(group):
    assert all(name.startswith(group.prefix) for name in group.aims)
    assert all(group.is_wanted(name) for name in group.aims)
    tree = ast.parse((Path(bench.__file__).parents[1] / group.module.replace(".", "/")).with_suffix(".py").read_text())
    assert group.function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(
    "name",
    [
        "flow.csv",
        "flow.kafka",
        "flow.mysql",
        "flow.iceberg",
        "flow.latency_p99",
        "flow.quiet_latency_p99",
        "verify.rows",
    ],
)
def test_a_figure_is_had_without_the_others(name):
    assert len([group for group in GROUPS if group.is_wanted(name)]) == 1
