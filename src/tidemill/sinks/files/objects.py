"""Objects of a bucket as the files of a sink: whole or not there, and only by those who may still write.

    begin_generation (driver)                   publish_file (executor)
    1. write the mark .tidemill/generation      1. create a multipart upload
    2. read the notes in .tidemill/uploads,     2. leave a note of it in .tidemill/uploads
       abort their uploads                      3. read the mark; stop unless it is ours
                                                4. upload the parts, complete, remove the note

A task that was given up may continue much later. Either its note was there when the next generation began: then its
upload is aborted, and cannot be completed. Or the note came after that: then it finds the new mark, and stops. So every
data object goes by this way, small ones too. The notes also tell which abandoned uploads to abort: S3 bills for them.
(S3 can list uploads itself. That needs a right of its own, and MinIO lists those of one exact key only.)

The driver's own small objects are written on the condition that nobody has written them since the driver was last
seen to be the current one: what a driver that was superseded still writes, its successor replaces, never the reverse.
"""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import orjson

from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.sinks.files.bucket import Bucket, Upload
from tidemill.sinks.files.durable import MARK, STAGING, superseded

if TYPE_CHECKING:
    from tidemill.sinks.files.storage import StorageOptions

PART_BYTES: Final = 8 << 20  # at most two parts are in memory; S3 takes ten thousand an object
_MARK: Final = f"{STAGING}/generation"
_UPLOADS: Final = f"{STAGING}/uploads"
_MOST_TRIES: Final = 20


class ObjectFiles:
    """Objects below a prefix of a bucket, with the methods of DurableFiles. An upload is durable when it ends."""

    def __init__(self, options: "StorageOptions") -> None:
        self._options = options
        self.root = options.shown  # for messages
        self._bucket = Bucket(options)
        self._generation: str | None = None  # that this object has begun: it is the driver's
        self._marked: set[str] = set()  # all that it tried to begin: the mark may have been written without an answer

    def __reduce__(self) -> tuple[type["ObjectFiles"], tuple["StorageOptions"]]:
        return type(self), (self._options,)

    # Generations.

    def begin_generation(self, generation: str) -> None:
        """Runs on the driver: from here on, what older generations still do has no effect. May be called again.

        The first call takes the place over. Later ones raise SupersededError if somebody else has done so since.
        """
        self._take_mark(generation)
        self._generation = generation
        for name in self.names(_UPLOADS):
            note = orjson.loads(self.read(f"{_UPLOADS}/{name}") or b"{}")
            if note.get("generation") == generation:
                continue
            if note:
                self._bucket.abort(Upload(note["key"], note["id"], name))
            self._bucket.request("delete_object", "remove", self._bucket.key(f"{_UPLOADS}/{name}"))

    def publish_file(self, generation: str, path: str, chunks: Iterable[Any]) -> int:
        """Runs on executors: the object appears whole under ``path``, and only while ``generation`` is the current
        one; otherwise raises SupersededError. Returns its bytes. Replaces what an earlier attempt left there."""
        return self._upload(path, _parts(chunks), generation)

    def _take_mark(self, generation: str) -> None:
        for _ in range(_MOST_TRIES):
            found, etag = self._bucket.get(_MARK)
            current = found.decode("utf-8", "replace") if found is not None else None
            if current == generation:
                return
            if self._generation is not None and current not in self._marked:
                raise superseded(self.root)
            self._marked.add(generation)
            if self._bucket.put_if(self._bucket.key(_MARK), generation.encode(), etag):
                return
        raise self._contended(_MARK)

    def _check(self, generation: str) -> None:
        if self._bucket.get(_MARK)[0] != generation.encode():
            raise superseded(self.root)

    def _check_driver(self) -> None:
        """That nobody else has taken the place over since."""
        if (self._bucket.get(_MARK)[0] or b"").decode("utf-8", "replace") not in self._marked:
            raise superseded(self.root)

    # Files.

    def write(self, path: str, chunks: Iterable[Any]) -> int:
        """Write bytes as one object, which appears when the upload ends. Where this object has begun a generation, what
        a newer one wrote is not replaced."""
        parts = _parts(chunks)
        first = next(parts)
        if len(first) == PART_BYTES:
            return self._upload(path, chain([first], parts), self._generation)
        if self._generation is None:
            self._bucket.request("put_object", "write", self._bucket.key(path), Body=first)
        else:
            self._replace(path, first)
        return len(first)

    def make_folder(self, path: str) -> None:
        """A bucket has no folders."""

    def sync_folder(self, path: str) -> None:
        """An object is durable, name and all, once it is there."""

    def remove(self, path: str) -> None:
        """Of a driver that was superseded no object is removed, but for one whose request was already on its way."""
        if self._generation is not None:
            self._check_driver()
        self._bucket.request("delete_object", "remove", self._bucket.key(path))

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

    def walk(self) -> Iterator[tuple[str, list[str]]]:
        """(folder, its files) of everything below the root, without ``STAGING``, and without what lies below another
        ``MARK``."""
        found: dict[str, list[str]] = {}
        start = f"{self._bucket.prefix}/" if self._bucket.prefix else ""
        for page in self._bucket.pages(start):
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

    def _replace(self, path: str, content: bytes) -> None:
        """As the driver. The ETag is that of an object which was there before our generation was seen to be current, so
        what a newer generation wrote is not replaced. (Unless that wrote the very same bytes again: then it has got no
        further than we, whose state was saved before.)"""
        key = self._bucket.key(path)
        for _ in range(_MOST_TRIES):
            with self._bucket.explained("read", key):
                etag = self._bucket.head(key).get("ETag")
            self._check_driver()
            if self._bucket.put_if(key, content, etag):
                return
        raise self._contended(path)

    def _contended(self, path: str) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"cannot write {self.root}/{path}: somebody else keeps changing it. Give each changefeed a folder of its "
            "own, then start again; nothing is lost."
        )

    # Uploads in parts.

    def _upload(self, path: str, parts: Iterator[bytes], generation: str | None) -> int:
        upload = self._bucket.begin_upload(self._bucket.key(path))
        note = f"{_UPLOADS}/{upload.token}"
        try:
            if generation is not None:
                content = orjson.dumps({"generation": generation, "key": upload.key, "id": upload.id})
                self._bucket.request("put_object", "write", self._bucket.key(note), Body=content)
                self._check(generation)
            size = self._bucket.send(upload, parts)
        except BaseException as error:
            with suppress(SinkError):  # what is left is aborted when the next generation begins
                self._bucket.abort(upload)
                self._bucket.request("delete_object", "remove", self._bucket.key(note))
            if generation is not None and isinstance(error, SinkError):
                self._check(generation)  # an upload that a newer generation has aborted is missing
            raise
        if generation is not None:
            self._bucket.request("delete_object", "remove", self._bucket.key(note))
        return size


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
