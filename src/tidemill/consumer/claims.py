"""Large messages that lie in external storage: a message in the topic has a row's key, and says where the whole is."""

import base64
import re

import orjson
import pyarrow.fs as pafs

from tidemill.errors import CorruptDataError, UpstreamError, UsageError
from tidemill.flow.encoder.large import LargeMessages
from tidemill.flow.encoder.port import MessageProtocol
from tidemill.sinks.files.storage import StorageOptions, parse_storage

_FILE = re.compile(r"[^/\\\0]+")


class Claims:
    """Reads them, one by one: they are few."""

    def __init__(self, protocol: MessageProtocol) -> None:
        is_said = isinstance(protocol, LargeMessages) and protocol.has_claim_checks
        self._storage: StorageOptions | None = None
        self._has_value_alone = False
        self._filesystem: pafs.FileSystem | None = None
        if is_said and isinstance(protocol, LargeMessages):
            self._storage = parse_storage(protocol.claim_check_storage_uri)
            self._has_value_alone = protocol.claim_check_raw_value

    def read(self, location: str) -> tuple[bytes | None, bytes]:
        """Key and value of the message that was put aside there."""
        if self._storage is None:
            raise UsageError(
                "the topic has claim checks: messages that say where a large one lies. Say where that is, as the one "
                "who writes them does: large-message-handle-option=claim-check and claim-check-storage-uri=… in the "
                "topic's URI."
            )
        content = self._content(self._storage, location)
        if self._has_value_alone:
            return None, content
        try:
            found = orjson.loads(content)
            key, value = found["key"], base64.b64decode(found["value"], validate=True)
            return (base64.b64decode(key, validate=True) if key is not None else None), value
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                f"the file {location} of a claim check holds no message. Restore it, or say claim-check-raw-value=true "
                "where it holds the value alone."
            ) from error

    def _content(self, storage: StorageOptions, location: str) -> bytes:
        """Of the file of this name in the storage as we know it: others may reach it by another address."""
        name = location.rpartition("/")[2]
        if not _FILE.fullmatch(name) or name in (".", ".."):
            raise CorruptDataError(f"a claim check names {location!r}, which is no file. Check who writes the topic.")
        try:
            if self._filesystem is None:
                self._filesystem = storage.filesystem()
            with self._filesystem.open_input_stream(f"{storage.root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError as error:
            raise UpstreamError(
                f"the large message {name} is not in {storage.shown} any more, and the topic has its key alone. "
                "Restore the file, or copy the tables anew and start with another --data-dir."
            ) from error
        except OSError as error:
            raise UpstreamError(
                f"cannot read the large message {name} from {storage.shown}: {error.strerror or error}. Check "
                "claim-check-storage-uri and its rights, then start again."
            ) from error
