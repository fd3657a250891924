"""How quickly a process starts is measured by ``bench``; here is that nothing is lost by it."""

import json
import subprocess
import sys
from typing import Any


def told_by(script: str) -> Any:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_arrow_does_not_import_pandas_and_others_can() -> None:
    script = """
import json, sys
from tidemill.startup import quick_imports
with quick_imports():
    import pyarrow as pa
values = pa.array([1, None]).to_pylist()
before = "pandas" in sys.modules
import pandas
print(json.dumps([values, before, pandas.Series([1, 2]).tolist()]))
"""
    assert told_by(script) == [[1, None], False, [1, 2]]


def test_what_was_imported_is_frozen_and_what_comes_later_is_collected() -> None:
    script = """
import gc, json, weakref
from tidemill.startup import quick_imports
with quick_imports():
    import decimal
class Cycle: pass
one = Cycle(); one.itself = one
seen = weakref.ref(one)
del one
gc.collect()
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 1000, seen() is None]))
"""
    assert told_by(script) == [True, True, True]


def test_a_changefeed_and_its_workers_start_without_pandas() -> None:
    script = """
import json, sys
import tidemill.spark.daemon
from tidemill.cli.commands import application
application(["run"])
print(json.dumps("pandas" in sys.modules))
"""
    assert told_by(script) is False
