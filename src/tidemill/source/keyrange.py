"""A range of RawKV keys as a source, from what the user wrote to what the change stream is asked for.

    --start-key, --end-key, --format ─► KeyRange ── keyspace, API checked ─► KeySource ─► span, decoder

Keys are the user's own: they are put behind the prefix of the keyspace, so none lies outside of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidemill.errors import IncompatibleUpstreamError, UsageError
from tidemill.flow.decoder import Decoder
from tidemill.flow.rawkv import RawDecoder
from tidemill.model.span import Span
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, compose, physical_ms
from tidemill.upstream.feed.registration import StreamMode, raw_mode
from tidemill.upstream.keyspace import Keyspace, raw_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache

DEFAULT_KEYSPACE = "DEFAULT"
DEFAULT_SAFE_INTERVAL_SECONDS = 3.0  # as TiKV-CDC's resolved-ts-safe-interval
MAX_KEY_BYTES = 8192  # TiKV's own default

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{3}|[abfnrtv\\'\"])|(\\)", re.DOTALL)
_NAMED = dict(zip(b"abfnrtv\\'\"", b"\a\b\f\n\r\t\v\\'\"", strict=True))


class KeyFormat(StrEnum):
    """How keys are written on the command line."""

    hex = "hex"  # 6b657931
    raw = "raw"  # key1, in UTF-8
    escaped = "escaped"  # key\x001


def read_key(text: str, form: KeyFormat, option: str) -> bytes:
    """Raises UsageError, which names the ``option`` that has it."""
    match form:
        case KeyFormat.raw:
            key = text.encode()
        case KeyFormat.hex:
            if not re.fullmatch(r"([0-9a-fA-F]{2})*", text):
                raise UsageError(
                    f"{option} {_cut(text)!r} is not a key in hex: write two digits 0-9, a-f for each byte, as "
                    f"6b6579 for 'key', or give --format raw."
                )
            key = bytes.fromhex(text)
        case KeyFormat.escaped:
            key = _unescaped(text, option)
    if len(key) > MAX_KEY_BYTES:
        raise UsageError(f"{option} has {len(key)} bytes, and TiKV takes keys of {MAX_KEY_BYTES} at most. Cut it.")
    return key


def _unescaped(text: str, option: str) -> bytes:
    def byte(found: re.Match[bytes]) -> bytes:
        escape = found[1]
        if escape is None:
            raise UsageError(
                f"{option} {_cut(text)!r} is not an escaped key: behind a backslash comes x and two hex digits, three "
                "octal digits, or one of a b f n r t v \\ ' \". Write a backslash itself as \\\\."
            )
        if escape[:1] == b"x":
            return bytes([int(escape[1:], 16)])
        if len(escape) == 1:
            return bytes([_NAMED[escape[0]]])
        number = int(escape, 8)
        if number > 0xFF:
            raise UsageError(f"{option} {_cut(text)!r} has \\{escape.decode()}, which is no byte: \\377 is the last.")
        return bytes([number])

    return _ESCAPE.sub(byte, text.encode())


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """``[start, end)`` of a keyspace's keys; empty ones: from its first key, to its last."""

    start: bytes = b""
    end: bytes = b""
    keyspace: str = ""  # by its name; empty: the default one
    safe_interval_seconds: float = DEFAULT_SAFE_INTERVAL_SECONDS

    def __post_init__(self) -> None:
        if self.end and self.start >= self.end:
            trouble = "is empty" if self.start == self.end else "is inverted"
            raise UsageError(
                f"the range from --start-key {self.start.hex()} to --end-key {self.end.hex()} (in hex) {trouble}: the "
                "start belongs to it and the end does not, so the start has to be the lower one. Leave both out for "
                "the whole keyspace."
            )

    def before(self, now_ts: Ts) -> Ts:
        """Where to begin for every write from ``now_ts`` on: stores stamp them by clocks that may be behind PD's."""
        return compose(max(0, physical_ms(now_ts) - round(self.safe_interval_seconds * 1000)))

    @property
    def name(self) -> str:
        """For the changefeed's state: two of one name are one range."""
        return f"{self.keyspace or DEFAULT_KEYSPACE}[{self.start.hex()},{self.end.hex()})"


@dataclass(frozen=True, slots=True)
class KeySource:
    """RawKV's changes of a range, of API V2."""

    keyspace: Keyspace
    keys: KeyRange

    @property
    def mode(self) -> StreamMode:
        return raw_mode(round(self.keys.safe_interval_seconds * 1000))

    @property
    def span(self) -> Span:
        start, end = self.keyspace.range(self.keys.start, self.keys.end)
        return Span(self.keyspace.physical(start), self.keyspace.physical_end(end))

    def span_of(self, ids: Sequence[int]) -> Span:
        return self.span

    def decoder(self, table: TableInfo, physical_id: int, is_mixed: bool) -> Decoder:
        return RawDecoder(table)


async def find_keyspace(pd: PdClient, name: str) -> Keyspace:
    """Raises UsageError where PD has none of this name."""
    if name in ("", DEFAULT_KEYSPACE):
        return raw_v2()
    number = await pd.find_keyspace(name)
    if number is None:
        raise UsageError(
            f"there is no keyspace {name!r} in the cluster at {pd.addresses}. Give its name as pd-ctl shows it, or "
            f"leave --keyspace out for {DEFAULT_KEYSPACE}."
        )
    return raw_v2(number)


async def open_keys(pd: PdClient, keys: KeyRange) -> KeySource:
    """Raises UsageError for a keyspace that is not there, and IncompatibleUpstreamError for a cluster whose RawKV has
    no change stream."""
    keyspace = await find_keyspace(pd, keys.keyspace)
    await check_api(pd, keyspace, keys.start)
    return KeySource(keyspace, keys)


async def check_api(pd: PdClient, keyspace: Keyspace, key: bytes) -> None:
    """That the store of ``key`` is one of API V2."""
    client = RawClient(RegionCache(pd), keyspace=keyspace)
    try:
        await client.get(key)
    except IncompatibleUpstreamError as error:
        raise IncompatibleUpstreamError(
            f"the TiKV of the cluster at {pd.addresses} does not serve RawKV of API V2 ({error}). Keys of API V1 have "
            "no timestamps, so their changes cannot be captured: set storage.api-version = 2 in an empty cluster, and "
            "move the data there with TiKV-BR."
        ) from error
    finally:
        await client.close()
