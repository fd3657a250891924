"""Requests to one bucket, below a prefix: each failure in words of ours."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidemill.errors import TidemillError
from tidemill.sinks.files import s3

if TYPE_CHECKING:
    from tidemill.sinks.files.storage import StorageOptions


@dataclass(frozen=True, slots=True)
class Upload:
    """One that was begun. ``token`` is in the object's metadata, so that it can be told from others."""

    key: str
    id: str
    token: str


class Bucket:
    def __init__(self, options: "StorageOptions") -> None:
        self._options = options
        self.name, _, self.prefix = options.root.partition("/")

    @cached_property
    def client(self) -> s3.Client:
        with self.explained("open", self.prefix):
            return s3.open_client(self._options)

    def request(self, name: str, what: str, key: str, **given: Any) -> Any:
        with self.explained(what, key):
            return getattr(self.client, name)(Bucket=self.name, Key=key, **given)

    def pages(self, start: str, **given: Any) -> Iterator[Any]:
        with self.explained("list", start):
            pages = self.client.get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self.name, Prefix=start, **given)

    def get(self, path: str) -> tuple[bytes | None, str | None]:
        """(content, ETag)."""
        key = self.key(path)
        with self.explained("read", key):
            try:
                answer = self.client.get_object(Bucket=self.name, Key=key)
                return answer["Body"].read(), answer["ETag"]
            except Exception as error:
                if s3.code_of(error) in s3.MISSING:
                    return None, None
                raise

    def put_if(self, key: str, content: bytes, etag: str | None) -> bool:
        """Write an object if it still has this ETag; None: if there is none. Whether it was so."""
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        with self.explained("write", key):
            try:
                self.client.put_object(Bucket=self.name, Key=key, Body=content, **condition)
            except Exception as error:
                if s3.code_of(error) in s3.CONDITION_FAILED | s3.MISSING:
                    return False
                raise
        return True

    def head(self, key: str) -> Any:
        try:
            return self.client.head_object(Bucket=self.name, Key=key)
        except Exception as error:
            if s3.code_of(error) in s3.MISSING:
                return {}
            raise

    def begin_upload(self, key: str) -> Upload:
        token = secrets.token_hex(8)
        made = self.request("create_multipart_upload", "write", key, Metadata={"tidemill-upload": token})
        return Upload(key, made["UploadId"], token)

    def send(self, upload: Upload, parts: Iterator[bytes]) -> int:
        sent: list[dict[str, Any]] = []
        size = 0
        for number, part in enumerate(parts, 1):
            answer = self.request("upload_part", "write", upload.key, UploadId=upload.id, PartNumber=number, Body=part)
            sent.append({"PartNumber": number, "ETag": answer["ETag"]})
            size += len(part)
        with self.explained("write", upload.key):
            try:
                self.client.complete_multipart_upload(
                    Bucket=self.name, Key=upload.key, UploadId=upload.id, MultipartUpload={"Parts": sent}
                )
            except Exception:
                if self.head(upload.key).get("Metadata", {}).get("tidemill-upload") != upload.token:
                    raise  # otherwise it was done, and the answer lost
        return size

    def abort(self, upload: Upload) -> None:
        with self.explained("abort the upload of", upload.key):
            try:
                self.client.abort_multipart_upload(Bucket=self.name, Key=upload.key, UploadId=upload.id)
            except Exception as error:
                if s3.code_of(error) not in s3.UPLOAD_GONE:
                    raise

    def key(self, path: str) -> str:
        return "/".join(part for part in (*self.prefix.split("/"), *path.split("/")) if part not in ("", "."))

    @contextmanager
    def explained(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except TidemillError:
            raise
        except Exception as error:  # botocore's have no common root with those of its credentials
            raise s3.translate(what, f"s3://{self.name}/{key}".rstrip("/"), error) from error
