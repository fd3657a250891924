"""Whose folder it is: one changefeed's, and within it the newest generation's. For files and Parquet, on the driver.

    .generation    {"cluster": …, "changefeed": …, "generation": …}

The mark names the changefeed, so that another one is refused before it writes anything. Its generation tells a driver
that it has been replaced. What keeps late *tasks* out is the generation itself; see ``begin_generation`` and
``publish_file`` of the storage.
"""

import secrets
from dataclasses import asdict, dataclass

import orjson

from tidemill.errors import SinkError
from tidemill.model.ts import Ts, show
from tidemill.sinks.files import layout
from tidemill.sinks.files.durable import superseded
from tidemill.sinks.files.storage import Files


@dataclass(frozen=True, slots=True)
class Identity:
    """A changefeed, as folders know it. Empty where nobody has named it, as in tests."""

    cluster: str = ""
    changefeed: str = ""

    def __str__(self) -> str:
        return f"changefeed {self.changefeed!r} of cluster {self.cluster}"


@dataclass(frozen=True, slots=True)
class _Mark:
    cluster: str = ""
    changefeed: str = ""
    generation: str = ""


class Generations:
    """Those that one driver begins in a folder. Refuses another changefeed's with SinkError."""

    def __init__(self, files: Files, identity: Identity) -> None:
        self._files = files
        self._identity = identity
        self._begun: set[str] = set()  # generations of this driver: one whose beginning failed may be in the mark
        self._generation = ""
        self.was_ours = self._check_identity()  # before we opened it

    @property
    def generation(self) -> str:
        """The newest one, for targets; it is begun if there is none."""
        return self._generation or self.begin()

    def begin(self) -> str:
        """Begin a generation: when this returns, no task of an earlier one can publish anything any more."""
        self.check()
        if not self._begun:
            self._check_identity()  # once more: somebody may have come since we looked
        generation = secrets.token_hex(8)
        self._begun.add(generation)
        mark = _Mark(self._identity.cluster, self._identity.changefeed, generation)
        self._files.write(layout.MARK, [orjson.dumps(asdict(mark))])
        self._files.sync_folder(".")
        self._files.begin_generation(generation)
        self._generation = generation
        return generation

    def check(self) -> None:
        """Raises SupersededError if another driver has taken the folder over meanwhile."""
        if not self._begun:
            return
        mark = _parsed(self._files.read(layout.MARK))
        if mark is None:
            raise SinkError(
                f"cannot continue in {self._files.root}: its file {layout.MARK} is gone. Bring the folder back (is "
                "its disk still mounted?), then start again; the changefeed continues from its checkpoint."
            )
        if mark.generation not in self._begun:
            raise superseded(str(self._files.root))

    def _check_identity(self) -> bool:
        mark = _parsed(self._files.read(layout.MARK))
        if mark is None:
            self._check_around()
        if mark is None or not mark.changefeed:
            return False
        found = Identity(mark.cluster, mark.changefeed)
        if found != self._identity:
            raise SinkError(
                f"{self._files.root} belongs to {found}, and this is {self._identity}. Give each changefeed a folder "
                "of its own. To continue that one's folder with this changefeed, see that the other never runs again, "
                f"remove {self._files.root}/{layout.MARK}, and use its checkpoint as --start-ts."
            )
        return True

    def _check_around(self) -> None:
        """A folder that nobody has yet must not lie within another changefeed's: there it may be a database's."""
        for folder, content in self._files.around(layout.MARK):
            mark = _parsed(content)
            if mark is not None and mark.changefeed:
                raise SinkError(
                    f"{self._files.root} lies within {folder}, which belongs to "
                    f"{Identity(mark.cluster, mark.changefeed)}: each would take the other's files for its own. Choose "
                    "a folder outside of it."
                )


def _parsed(content: bytes | None) -> _Mark | None:
    if content is None:
        return None
    try:
        return _Mark(**{name: str(text) for name, text in orjson.loads(content).items()})
    except (ValueError, TypeError, AttributeError):
        return _Mark()  # of a version that named nobody


def check_saved(place: str, checkpoint_ts: int, saved_ts: Ts) -> None:
    """Refuse a changefeed whose state is older than what it has told readers, since it is always saved before."""
    if checkpoint_ts > saved_ts:
        raise SinkError(
            f"{place} holds changes up to {show(Ts(checkpoint_ts))}, and the changefeed's state tells of them only up "
            f"to {show(saved_ts)}: those in between would be there twice. Bring back the newest state of its data-dir, "
            "or start anew in an empty folder."
        )


def check_start(place: str, checkpoint_ts: int, start_ts: Ts) -> None:
    """Refuse a new changefeed a place that holds changes up to ``checkpoint_ts`` (0: none) unless it starts exactly
    there: from below, changes would be there twice; from above, those in between would be nowhere."""
    if not checkpoint_ts or checkpoint_ts == start_ts:
        return
    if checkpoint_ts > start_ts:
        harm = "they would be there twice"
    else:
        harm = "the changes in between would be missing, and nothing would show it"
    raise SinkError(
        f"{place} already holds changes up to {show(Ts(checkpoint_ts))}, and this changefeed starts at "
        f"{show(start_ts)}: {harm}. Choose an empty folder, or --start-ts {checkpoint_ts}."
    )
