"""Files and classes stay of a size that can be read: past it there is a second idea to be found."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_LINES = 600
MOST_METHODS = 25
# What is larger, and why. Nothing is to be added without a reason.
LARGER_CLASSES = {
    "src/tidemill/flow/sorter/sorter.py:Sorter": "its slices move to a server of their own",
}
FILES = sorted(
    path.relative_to(ROOT)
    for folder in ("src", "tests", "bench")
    for path in (ROOT / folder).rglob("*.py")
    if "_pb" not in path.parts  # generated
)


def methods_by_class(source: str) -> dict[str, int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return {each.name: sum(isinstance(part, functions) for part in each.body) for each in classes}


def test_no_file_and_no_class_is_too_large_to_read() -> None:
    sources = {path: (ROOT / path).read_text() for path in FILES}
    assert {str(path): lines for path, text in sources.items() if (lines := text.count("\n")) > MOST_LINES} == {}
    counts = {f"{path}:{name}": n for path, text in sources.items() for name, n in methods_by_class(text).items()}
    assert {name: n for name, n in counts.items() if n > MOST_METHODS and name not in LARGER_CLASSES} == {}


def test_the_list_of_larger_classes_has_none_that_are_not() -> None:
    found = {name: methods_by_class((ROOT / name.partition(":")[0]).read_text()) for name in LARGER_CLASSES}
    assert [name for name, counts in found.items() if counts[name.partition(":")[2]] <= MOST_METHODS] == []
