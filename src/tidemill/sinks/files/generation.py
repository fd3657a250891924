"""Whose folder it is: one changefeed's. And whose turn within it: its owner's, and that of each of its writers.

    .generation    {"cluster": …, "changefeed": …, "generation": …}

The file names the changefeed, so that another one is refused before it writes anything, and the owner's term. What
keeps late owners, writers and tasks out are the generations themselves; see ``begin_generation`` and ``publish_file``
of the storage. The owner and each writer has its own, one at a time, under the name of a *holder*.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import quote

import orjson

from tidemill.errors import SinkError
from tidemill.model.ts import Ts, show
from tidemill.sinks.files import layout
from tidemill.sinks.files.durable import superseded
from tidemill.sinks.files.storage import Files

OWNER: Final = "owner"
_LONGEST_NAME: Final = 100  # in a path; what is longer is shortened to a digest


def holder_of(writer: str) -> str:
    """The name of a folder for a writer's own. No two writers have the same."""
    name = quote(writer, safe="").replace(".", "%2E")
    if len(name) > _LONGEST_NAME:
        name = hashlib.sha256(writer.encode()).hexdigest()
    return f"writer-{name}"


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
    """Those that one owner or writer begins in a folder, one after the other. The first ends whatever its holder had
    before; later ones raise SupersededError if somebody else has ended ours since."""

    def __init__(self, files: Files, identity: Identity, holder: str) -> None:
        self._files, self._identity, self._holder = files, identity, holder
        self._tried: list[str] = []  # one whose beginning failed may be the current one all the same
        self._has_begun = False
        self.generation = ""  # the newest one, for targets

    def begin(self) -> str:
        """When this returns, what earlier generations of this holder still do has no effect."""
        generation = f"{self._holder}/{secrets.token_hex(8)}"
        after = tuple(self._tried) if self._has_begun else ()
        self._tried.append(generation)
        self._files.begin_generation(generation, after)
        self._has_begun, self._tried, self.generation = True, [generation], generation
        return generation

    def check(self) -> None:
        """Raises SupersededError if somebody has ended it meanwhile, and SinkError where the folder is not what it
        was."""
        mark = self.read_mark()
        if mark is None:
            raise SinkError(
                f"cannot continue in {self._files.root}: its file {layout.MARK} is gone. Bring the folder back (is "
                "its disk still mounted?), then start again; the changefeed continues from its checkpoint."
            )
        self.check_identity(mark)
        if self._has_begun and not any(self._files.is_current(tried) for tried in reversed(self._tried)):
            raise superseded(str(self._files.root))

    def read_mark(self) -> "_Mark | None":
        return _parsed(self._files.read(layout.MARK))

    def check_identity(self, mark: "_Mark") -> None:
        """Refuse another changefeed's folder by name."""
        found = Identity(mark.cluster, mark.changefeed)
        if mark.changefeed and found != self._identity:
            raise SinkError(
                f"{self._files.root} belongs to {found}, and this is {self._identity}. Give each changefeed a folder "
                "of its own. To continue that one's folder with this changefeed, see that the other never runs again, "
                f"remove {self._files.root}/{layout.MARK}, and use its checkpoint as --start-ts."
            )


class WriterGenerations(Generations):
    """Of a writer, in a folder that its changefeed's owner has taken."""

    def __init__(self, files: Files, identity: Identity, writer: str) -> None:
        super().__init__(files, identity, holder_of(writer))

    def begin_in(self, term: str) -> str:
        """The first is begun for the owner of ``term``. Either whoever fences the writer, or begins another term, finds
        what has been begun here; or it is found here that this was done."""
        self.check()
        if self._has_begun:
            return self.begin()
        self._check_term(term)
        generation = self.begin()
        self._has_begun = False  # until it is known that this was in time
        self._check_term(term)
        self._has_begun = True
        return generation

    def _check_term(self, term: str) -> None:
        if not self._files.admits(term, self._holder):
            raise superseded(str(self._files.root))


class Terms(Generations):
    """Of the owner, who takes the folder for its changefeed. Refuses another changefeed's with SinkError."""

    def __init__(self, files: Files, identity: Identity) -> None:
        super().__init__(files, identity, OWNER)
        self.was_ours = self._look()  # before we opened it
        self._has_marked = False

    def begin(self) -> str:
        if self._has_marked:
            self.check()
        else:
            self._look()  # once more: somebody may have come since we looked
        term = super().begin()
        mark = _Mark(self._identity.cluster, self._identity.changefeed, term)
        self._files.replace(term, layout.MARK, orjson.dumps(asdict(mark)))
        self._files.sync_folder(".")
        self._files.forget_shut_out(term)
        self._has_marked = True
        return term

    def fence(self, writers: Collection[str] | None) -> None:
        """End the generations of these writers, or of all, also of those that earlier versions have left. Those that
        are named begin none in this term any more."""
        self.check()
        found = [holder_of(writer) for writer in writers] if writers is not None else self._files.holders()
        for holder in found:
            if holder != OWNER:
                if writers is not None:
                    self._files.shut_out(self.generation, holder)
                self._files.end_generations(holder)

    def _look(self) -> bool:
        mark = self.read_mark()
        if mark is None:
            self._check_around()
            return False
        self.check_identity(mark)
        return bool(mark.changefeed)

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
