"""The tree tells the architecture: imports point one way, in both packages."""

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"

# What each part may import of ours, beside itself and what is everybody's. Further down the list means further up.
MAY_IMPORT = {
    "_pb": set(),
    "model": set(),
    "tidb": {"model"},
    "columnar": {"model"},
    "config": {"model"},
    "control": {"model"},
    "upstream": {"model", "tidb", "columnar", "_pb"},
    "flow": {"model", "tidb", "columnar", "config", "upstream"},
    "source": {"model", "tidb", "columnar", "upstream", "flow"},
    "sinks": {"model", "tidb", "columnar", "config", "upstream", "flow"},
    "verify": {"model", "tidb", "columnar", "config", "upstream", "flow", "source", "sinks"},
    "spark": {"model", "flow", "source", "sinks", "verify"},
    "capture": {"model", "tidb", "config", "control", "upstream", "flow", "source", "sinks", "spark", "_pb"},
    "api": {"model", "config", "control", "flow", "sinks"},
    "consumer": {"model", "tidb", "columnar", "config", "flow", "sinks", "spark"},
    "demo": set(),
    # The simulation runs what decides for a cluster, the members of an owner among it.
    "testing": {"model", "control", "_pb", "capture", "flow"},
    "cli": {
        "model",
        "config",
        "upstream",
        "flow",
        "source",
        "sinks",
        "verify",
        "spark",
        "capture",
        "api",
        "consumer",
        "demo",
        "testing",
        "tidebox",
    },
    "__main__": {"cli"},
    # The cluster in a box, a package of its own: it shares TiDB's formats and the wire with us, and nothing else.
    "tidebox": {"model", "tidb", "_pb"},
}
EVERYBODYS = {"errors", "clock", "log", "kernelcache", "private", "certificates", "retry", "startup"}
FILES = sorted(
    path for package in ("tidemill", "tidebox") for path in (SOURCE / package).rglob("*.py") if "_pb" not in path.parts
)


def part_of(module: str) -> str:
    """``tidebox``, or the first name below ``tidemill``."""
    package, _, below = module.partition(".")
    return package if package == "tidebox" else below.partition(".")[0] or "__init__"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_imports_point_one_way() -> None:
    wrong: list[str] = []
    for path in FILES:
        part = part_of(module_of(path))
        if part in EVERYBODYS | {"__init__"}:
            allowed = {"__version__", *EVERYBODYS, "model"}
        else:
            allowed = MAY_IMPORT[part] | EVERYBODYS | {part, "__version__"}
        ours = {part_of(name) for name in imported(path) if name.split(".")[0] in ("tidemill", "tidebox")}
        wrong += [f"{module_of(path)}: {part} must not import {name}" for name in sorted(ours - allowed)]
    assert wrong == []


def test_only_the_spark_part_imports_pyspark() -> None:
    others = [path for path in FILES if part_of(module_of(path)) != "spark"]
    found = {module_of(path): {name.split(".")[0] for name in imported(path)} for path in others}
    assert [module for module, names in found.items() if names & {"pyspark", "py4j"}] == []


def test_every_part_of_the_tree_has_its_place() -> None:
    parts = {part_of(module_of(path)) for path in FILES} - EVERYBODYS - {"__init__"}
    assert parts <= set(MAY_IMPORT)
