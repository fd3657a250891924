"""How a client comes in: the greeting, its answer, and whether it may.

There is one user, root, without a password, and only this machine can connect. So authentication
is finding out whether the client means an empty password: under ``mysql_native_password`` and
``caching_sha2_password`` alike that is an empty answer (or a single NUL), and whatever else is a
password we do not know. A client that insists on another method is asked to switch.
"""

import secrets
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tidebox.sql.wire.columns import UTF8MB4_BIN
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.packets import Capability, Reader, ServerStatus

SERVER_VERSION: Final = "8.0.11-TiDB-v8.5.0"
NATIVE_PASSWORD: Final = "mysql_native_password"
CACHING_SHA2: Final = "caching_sha2_password"
USER: Final = "root"
HOST: Final = "127.0.0.1"

# Neither SSL nor compression, and no LOCAL_FILES: the server never asks for a client's file.
OFFERED: Final = (
    Capability.LONG_PASSWORD
    | Capability.FOUND_ROWS
    | Capability.LONG_FLAG
    | Capability.CONNECT_WITH_DB
    | Capability.IGNORE_SPACE
    | Capability.PROTOCOL_41
    | Capability.INTERACTIVE
    | Capability.TRANSACTIONS
    | Capability.SECURE_CONNECTION
    | Capability.MULTI_STATEMENTS
    | Capability.MULTI_RESULTS
    | Capability.PS_MULTI_RESULTS
    | Capability.PLUGIN_AUTH
    | Capability.CONNECT_ATTRS
    | Capability.PLUGIN_AUTH_LENENC_DATA
    | Capability.DEPRECATE_EOF
)
_SALT_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_HEADER = struct.Struct("<IIB23x")


@dataclass(frozen=True, slots=True)
class Login:
    """Who wants in, how, and with what. ``plugin`` is empty where the client does not know of methods."""

    capabilities: int
    collation: int
    user: str
    answer: bytes
    database: str = ""
    plugin: str = ""

    def has(self, capability: Capability) -> bool:
        return bool(self.capabilities & capability)


class Verdict(Enum):
    ADMIT = "admit"
    SWITCH = "ask again, under mysql_native_password"
    REFUSE = "refuse"


def new_salt() -> bytes:
    return "".join(secrets.choice(_SALT_LETTERS) for _ in range(20)).encode()


def greeting(connection_id: int, salt: bytes) -> bytes:
    low, high = int(OFFERED) & 0xFFFF, int(OFFERED) >> 16
    return b"".join(
        (
            b"\x0a",
            SERVER_VERSION.encode() + b"\0",
            struct.pack("<I", connection_id & 0xFFFFFFFF),
            salt[:8] + b"\0",
            struct.pack("<HBHHB10x", low, UTF8MB4_BIN, ServerStatus.AUTOCOMMIT, high, len(salt) + 1),
            salt[8:] + b"\0",
            NATIVE_PASSWORD.encode() + b"\0",
        )
    )


def switch_request(salt: bytes) -> bytes:
    return b"\xfe" + NATIVE_PASSWORD.encode() + b"\0" + salt + b"\0"


def read_login(packet: bytes) -> Login:
    """The client's answer to the greeting."""
    if len(packet) < 2 or not int.from_bytes(packet[:2], "little") & Capability.PROTOCOL_41:
        raise sql_error(Errno.NOT_SUPPORTED_AUTH_MODE)
    if len(packet) <= _HEADER.size:
        raise sql_error(Errno.HANDSHAKE_ERROR)  # no user follows: a request for SSL, which was not offered
    told, _, collation = _HEADER.unpack_from(packet)
    capabilities = told & OFFERED
    reader = Reader(packet, _HEADER.size)
    user = _name(reader)
    # Decided by what the client says, not by what was offered: it has laid out its packet so.
    if told & Capability.PLUGIN_AUTH_LENENC_DATA:
        answer = reader.text()
    elif told & Capability.SECURE_CONNECTION:
        answer = reader.take(reader.unsigned(1))
    else:
        answer = reader.until_nul()
    database = _name(reader) if told & Capability.CONNECT_WITH_DB else ""
    plugin = _name(reader) if told & Capability.PLUGIN_AUTH else ""
    return Login(capabilities, collation, user, answer, database, plugin)


def read_change_of_user(body: bytes, capabilities: int, collation: int) -> Login:
    """COM_CHANGE_USER: a login on a connection that has one already."""
    reader = Reader(body)
    user = _name(reader)
    answer = reader.take(reader.unsigned(1)) if capabilities & Capability.SECURE_CONNECTION else reader.until_nul()
    database = _name(reader)
    collation = collation if reader.is_at_end else reader.unsigned(2)
    plugin = _name(reader) if capabilities & Capability.PLUGIN_AUTH else ""
    return Login(capabilities, collation, user, answer, database, plugin)


def judge(login: Login) -> Verdict:
    if login.user != USER:
        return Verdict.REFUSE
    if login.plugin not in ("", NATIVE_PASSWORD, CACHING_SHA2):
        return Verdict.SWITCH
    return Verdict.ADMIT if is_empty_password(login.answer) else Verdict.REFUSE


def is_empty_password(answer: bytes) -> bool:
    return answer in (b"", b"\0")


def denied(user: str, answer: bytes) -> SqlError:
    return sql_error(Errno.ACCESS_DENIED_ERROR, user, HOST, "NO" if is_empty_password(answer) else "YES")


def _name(reader: Reader) -> str:
    return reader.until_nul().decode("utf-8", "surrogateescape")
