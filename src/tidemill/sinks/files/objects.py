"""Objects of a bucket as the files of a sink: whole or not there, and only by those who may still write.

    begin_generation (owner, writer)            publish_file (executor)
    1. write the mark .tidemill/{holder}/mark   1. create a multipart upload
    2. read the notes in .tidemill/{holder}/    2. leave a note of it in .tidemill/{holder}/uploads
       uploads, abort their uploads             3. read the mark; stop unless it is ours
                                                4. upload the parts, complete, remove the note

Everybody who writes has a generation, named ``{holder}/{mark}``: the owner's term, or that of a writer. A task that was
given up may continue much later. Either its note was there when its generation ended: then its upload is aborted, and
cannot be completed. Or the note came after that: then it finds another mark, or none, and stops. So every data object
goes by this way, small ones too. The notes also tell which abandoned uploads to abort: S3 bills for them. (S3 can list
uploads itself. That needs a right of its own, and MinIO lists those of one exact key only.)

The small objects of an owner or a writer itself are written on the condition that nobody has written them since its
generation was last seen to be the current one: what one that was superseded still writes, its successor replaces, never
the reverse.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.sinks.files.bucket import Bucket, Upload
from tidemill.sinks.files.durable import MARK, STAGING, superseded

if TYPE_CHECKING:
    from tidemill.sinks.files.storage import StorageOptions

PART_BYTES: Final = 8 << 20  # at most two parts are in memory; S3 takes ten thousand an object
_MARK: Final = "mark"
_UPLOADS: Final = "uploads"
_SHUT_OUT: Final = "shut-out"  # below an owner's: a folder per term, with the holders that begin nothing in it
_EARLIER_MARK: Final = "generation"  # of versions whose only holder was the changefeed: directly below STAGING
_MOST_TRIES: Final = 20


class ObjectFiles:
    """Objects below a prefix of a bucket, with the methods of DurableFiles. An upload is durable when it ends."""

    def __init__(self, options: "StorageOptions") -> None:
        self._options = options
        self.root = options.shown  # for messages
        self._bucket = Bucket(options)

    def __reduce__(self) -> tuple[type["ObjectFiles"], tuple["StorageOptions"]]:
        return type(self), (self._options,)

    # Generations.

    def begin_generation(self, generation: str, after: Sequence[str] = ()) -> None:
        """From here on this is the only generation of its holder: what others of it still do has no effect. With
        ``after``, only where one of those is the holder's newest so far; otherwise raises SupersededError."""
        holder, _, mark = generation.partition("/")
        self._take_mark(f"{STAGING}/{holder}/{_MARK}", mark, [last.partition("/")[2] for last in after])
        self._abort_uploads(f"{STAGING}/{holder}/{_UPLOADS}", generation)

    def end_generations(self, holder: str) -> None:
        """Whatever generations the holder has; also where it has none."""
        if holder in (_EARLIER_MARK, _UPLOADS):
            self._delete(f"{STAGING}/{_EARLIER_MARK}")
            self._abort_uploads(f"{STAGING}/{_UPLOADS}")
            return
        self._delete(f"{STAGING}/{holder}/{_MARK}")
        self._abort_uploads(f"{STAGING}/{holder}/{_UPLOADS}")

    def shut_out(self, term: str, holder: str) -> None:
        """This holder is not to begin anything in the term of an owner. Raises SupersededError if that has ended."""
        self._bucket.request("put_object", "write", self._bucket.key(self._shut_out(term, holder)), Body=b"")
        self._check(term)

    def admits(self, term: str, holder: str) -> bool:
        """Whether the term has not ended, and this holder may begin in it."""
        return self.read(self._shut_out(term, holder)) is None and self.is_current(term)

    @staticmethod
    def _shut_out(term: str, holder: str) -> str:
        owner, _, mark = term.partition("/")
        return f"{STAGING}/{owner}/{_SHUT_OUT}/{mark}/{holder}"

    def forget_shut_out(self, term: str) -> None:
        """Those of terms before this one. What is put there late is of a term that has ended, which admits nobody."""
        owner, _, mark = term.partition("/")
        folder = f"{STAGING}/{owner}/{_SHUT_OUT}"
        for other in self.names(folder):
            if other != mark:
                for holder in self.names(f"{folder}/{other}"):
                    self._delete(f"{folder}/{other}/{holder}")

    def holders(self) -> list[str]:
        """All that have generations."""
        return self.names(STAGING)

    def is_current(self, generation: str) -> bool:
        """Whether it has not ended yet."""
        holder, _, mark = generation.partition("/")
        return self._bucket.get(f"{STAGING}/{holder}/{_MARK}")[0] == mark.encode()

    def _take_mark(self, path: str, mark: str, after: Sequence[str]) -> None:
        for _ in range(_MOST_TRIES):
            found, etag = self._bucket.get(path)
            current = found.decode("utf-8", "replace") if found is not None else None
            if current == mark:
                return
            if after and current not in after:
                raise superseded(self.root)
            if self._bucket.put_if(self._bucket.key(path), mark.encode(), etag):
                return
        raise self._contended(path)

    def _abort_uploads(self, folder: str, but: str = "") -> None:
        """Of all generations that left a note there ``but`` one."""
        for name in self.names(folder):
            note = orjson.loads(self.read(f"{folder}/{name}") or b"{}")
            if but and note.get("generation") == but:
                continue
            if note:
                self._bucket.abort(Upload(note["key"], note["id"], name))
            self._delete(f"{folder}/{name}")

    def _check(self, generation: str) -> None:
        if not self.is_current(generation):
            raise superseded(self.root)

    # Files.

    def publish_file(self, generation: str, path: str, chunks: Iterable[Any]) -> int:
        """The object appears whole under ``path``, and only while ``generation`` is the current one; otherwise raises
        SupersededError. Returns its bytes. Replaces what an earlier attempt left there."""
        upload = self._bucket.begin_upload(self._bucket.key(path))
        note = f"{STAGING}/{generation.partition('/')[0]}/{_UPLOADS}/{upload.token}"
        try:
            content = orjson.dumps({"generation": generation, "key": upload.key, "id": upload.id})
            self._bucket.request("put_object", "write", self._bucket.key(note), Body=content)
            self._check(generation)
            size = self._bucket.send(upload, _parts(chunks))
        except BaseException as error:
            with suppress(SinkError):  # what is left is aborted when the next generation begins
                self._bucket.abort(upload)
                self._delete(note)
            if isinstance(error, SinkError):
                self._check(generation)  # an upload that a newer generation has aborted is missing
            raise
        self._delete(note)
        return size

    def replace(self, generation: str, path: str, content: bytes) -> None:
        """Write a small object, and only while ``generation`` is the current one; otherwise raises SupersededError.

        The ETag is that of an object which was there before our generation was seen to be current, so what a newer one
        wrote is not replaced. (Unless that wrote the very same bytes again: then it has got no further than we, whose
        state was saved before.)"""
        key = self._bucket.key(path)
        for _ in range(_MOST_TRIES):
            with self._bucket.explained("read", key):
                etag = self._bucket.head(key).get("ETag")
            self._check(generation)
            if self._bucket.put_if(key, content, etag):
                return
        raise self._contended(path)

    def remove(self, generation: str, path: str) -> None:
        """Nothing is removed in a generation that has ended, but for an object whose request was on its way before."""
        self._check(generation)
        self._delete(path)

    def _delete(self, path: str) -> None:
        self._bucket.request("delete_object", "remove", self._bucket.key(path))

    def make_folder(self, path: str) -> None:
        """A bucket has no folders."""

    def sync_folder(self, path: str) -> None:
        """An object is durable, name and all, once it is there."""

    def read(self, path: str) -> bytes | None:
        """The content; None if there is no such object."""
        return self._bucket.get(path)[0]

    def names(self, path: str) -> list[str]:
        """What lies directly below ``path``; nothing if nothing does."""
        start = self._bucket.key(path)
        start = f"{start}/" if start else ""
        found: list[str] = []
        for page in self._bucket.pages(start, Delimiter="/"):
            found += [item["Key"][len(start) :] for item in page.get("Contents", ())]
            found += [item["Prefix"][len(start) : -1] for item in page.get("CommonPrefixes", ())]
        return [name for name in found if name]

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str]]]:
        """(folder, its files) of everything below the root, or below a folder of it, without ``STAGING``, and without
        what lies below another ``MARK``."""
        found: dict[str, list[str]] = {}
        start = f"{self._bucket.prefix}/" if self._bucket.prefix else ""
        for page in self._bucket.pages(f"{start}{below}/" if below else start):
            for item in page.get("Contents", ()):
                folder, _, name = item["Key"][len(start) :].rpartition("/")
                if name and folder.split("/")[0] != STAGING:
                    found.setdefault(folder or ".", []).append(name)
        others = {f"{folder}/" for folder, names in found.items() if MARK in names and folder != "."}
        for folder, names in sorted(found.items()):
            if not any(f"{folder}/".startswith(other) for other in others):
                yield folder, names

    def around(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Of each prefix that the root lies in, and that has an object of this name: the prefix, and what the object
        says. Where we have no rights there is nobody, as far as we can tell."""
        above = self._bucket.prefix.split("/")[:-1] if self._bucket.prefix else []
        for levels in range(len(above), -1 if self._bucket.prefix else 0, -1):
            prefix = "/".join(above[:levels])
            outer = ObjectFiles(replace(self._options, root=f"{self._bucket.name}/{prefix}".rstrip("/")))
            try:
                found = outer.read(name)
            except SinkUnavailableError:
                raise
            except SinkError:
                continue
            if found is not None:
                yield outer.root, found

    def check_access(self) -> None:
        """Raises SinkError unless objects can be written and removed again below the root, and conditions hold."""
        probe = self._bucket.key(f".probe-{secrets.token_hex(4)}.tmp")
        self._bucket.put_if(probe, b"probe", None)
        is_replaced = self._bucket.put_if(probe, b"again", None)
        self._bucket.request("delete_object", "remove", probe)
        if is_replaced:
            raise SinkError(
                f"cannot write to {self.root}: the store replaces an object although it is told not to "
                "(If-None-Match), so nothing would protect what one process writes from another. Use a store that "
                "supports conditional writes, as S3 and MinIO do."
            )

    def _contended(self, path: str) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"cannot write {self.root}/{path}: somebody else keeps changing it. Give each changefeed a folder of its "
            "own, then start again; nothing is lost."
        )


def _parts(chunks: Iterable[Any]) -> Iterator[bytes]:
    """The chunks' bytes in parts of PART_BYTES, the last one shorter, or empty if it is the only one."""
    waiting = bytearray()
    is_first = True
    for chunk in chunks:
        left = memoryview(chunk).cast("B")
        while len(left):
            taken = left[: PART_BYTES - len(waiting)]
            waiting += taken
            left = left[len(taken) :]
            if len(waiting) == PART_BYTES:
                yield bytes(waiting)
                is_first = False
                waiting.clear()
    if waiting or is_first:
        yield bytes(waiting)
