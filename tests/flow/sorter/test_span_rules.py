"""How spans come and go, told as text in ``spans.txt``: commands, a line, what is seen afterwards.

After a deliberate change of the rules write it anew with ``TIDEMILL_REWRITE=1`` and read the difference.
"""

import asyncio
import os
from pathlib import Path

from tests.flow.sorter.sorter_changes import batch, change, read
from tidemill.flow.sorter import Sorter
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import Ts

SCENARIO = Path(__file__).with_name("spans.txt")


def test_spans_come_and_go_as_the_scenario_tells(tmp_path: Path) -> None:
    sorter = Sorter(tmp_path / "segments")
    told = SCENARIO.read_text()
    seen = "\n\n".join(_play(sorter, block) for block in told.rstrip("\n").split("\n\n")) + "\n"
    sorter.close()
    if os.environ.get("TIDEMILL_REWRITE"):
        SCENARIO.write_text(seen)
    assert seen == told


def _play(sorter: Sorter, block: str) -> str:
    commands = block.split("\n----\n")[0]
    outcome: list[str] = []
    for line in commands.splitlines():
        if not line.startswith("#"):
            word, *numbers = line.split()
            outcome += _do(sorter, word, [int(n) for n in numbers])
    stats = sorter.stats()
    state = f"resolved {sorter.resolved_ts}"
    if "segments" in block or "release" in commands:
        state += f", segments {stats.segments}"
    if "spans " in block.split("\n----\n")[1]:
        state += f", spans {stats.spans}"
    return "\n".join([commands, "----", state, *outcome])


def _do(sorter: Sorter, word: str, numbers: list[int]) -> list[str]:
    match word, numbers:
        case "open", [span_id, ts]:
            sorter.open_span(span_id, Ts(ts))
        case "together", [ts, source_id, *span_ids]:
            sorter.open_spans(source_id, span_ids, Ts(ts))
        case "join", [source_id, *span_ids]:
            return [f"read from {sorter.join_spans(source_id, span_ids)}"]
        case "close", [span_id, ts]:
            sorter.close_span(span_id, Ts(ts))
        case "advance", [span_id, ts]:
            sorter.advance(span_id, Ts(ts))
        case "release", [ts]:
            sorter.release(Checkpoints(Ts(ts)))
        case "add", [span_id, *stamps]:
            asyncio.run(asyncio.wait_for(sorter.add(span_id, batch(change(ts, b"k") for ts in stamps)), 30))
        case "has", [low, high]:
            return ["changes" if sorter.has_changes(Extent(Ts(low), Ts(high))) else "no changes"]
        case "plan", [low, high]:
            return [f"{i}: {' '.join(str(c[1]) for c in changes)}" for i, changes in read(sorter, low, high).items()]
        case _:
            raise ValueError(f"{SCENARIO.name} has no command {word!r} with {len(numbers)} numbers")
    return []
