"""The tree tells the architecture: imports point one way."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tidemill"

# What each part may import of ours, beside itself. ``errors``, ``clock``, ``log`` and ``private`` are everybody's.
MAY_IMPORT = {
    "_pb": set(),
    "model": set(),
    "upstream": {"model", "_pb"},
    "store": {"model", "upstream", "_pb"},
    "flow": {"model", "upstream"},
    "control": {"model"},
    "processor": {"model", "upstream", "flow", "control"},
    "copying": {"model", "upstream", "flow", "control"},
    "scratch": set(),
    "spark": {"model", "flow", "scratch"},
    "driver": {"model", "flow", "control", "processor", "spark"},
    "server": {"model", "upstream", "flow", "control", "processor", "copying", "driver", "spark"},
    "demo": set(),
    "testing": {"model", "upstream", "store", "flow", "control", "_pb"},
    "__main__": {"cli"},
    "cli": {"model", "upstream", "store", "flow", "control", "processor", "spark", "server", "demo", "scratch"},
}
EVERYBODYS = {"errors", "clock", "log", "kernelcache", "private"}
FILES = sorted(path for path in SOURCE.rglob("*.py") if "_pb" not in path.parts)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in EVERYBODYS | {"__init__"}:
        allowed = {"__version__", "kernelcache"}
    else:
        allowed = MAY_IMPORT[part] | EVERYBODYS | {part, "__version__"}
    ours = {name.split(".")[1] for name in imported(path) if name.startswith("tidemill.")}
    assert ours <= allowed, f"{part} must not import {sorted(ours - allowed)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_spark_part_imports_pyspark(path: Path) -> None:
    if part_of(path) != "spark":
        assert not any(name.split(".")[0] in ("pyspark", "py4j") for name in imported(path))
