"""That freed memory leaves the process, which no allocator promises by itself."""

import subprocess
import sys

SCRIPT = """
import numpy as np
from tidemill.columnar.memory import give_back

def resident() -> int:
    return sum(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon:"))

kept = []
for number in range(1000):
    kept.append(np.ones(100_000, np.uint8))  # small enough not to be mapped by itself
    if number % 100 == 0:
        last = np.ones(1000, np.uint8)  # what lies behind freed memory keeps it from being given back by itself
tail = np.ones(100_000, np.uint8)
before = resident()
del kept
freed = resident()
give_back()
print(before - freed < 50_000, before - resident() > 50_000)
"""


def test_what_a_peak_has_left_behind_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
