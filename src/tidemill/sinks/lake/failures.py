"""What goes wrong with lake tables: somebody else's table, a newer driver, a catalog or store that is away."""

import errno
import re
from collections.abc import Iterator
from typing import Final

from tidemill.errors import SinkError, SinkUnavailableError, SupersededError
from tidemill.sinks.lake.options import LakeOptions

MOST_TRIES: Final = 10  # of a commit that meets those of others, such as maintenance

# Libraries of catalogs, databases and object stores have no common root, and Delta's tells by text alone.
_PASSING_TYPES: Final = frozenset(
    {
        "ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "ChunkedEncodingError",  # requests
        "OperationalError", "InterfaceError", "DisconnectionError", "TimeoutError",  # SQLAlchemy
        "ServerError", "ServiceUnavailableError", "CommitStateUnknownException",  # pyiceberg
    }
)  # fmt: skip
_PASSING_TEXTS: Final = (
    "error sending request", "error decoding response body", "operation timed out", "connection refused",
    "connection reset", "server error: 5", "(50", "slowdown", "slow_down",
    "network_connection", "request_timeout", "service_unavailable", "internal_failure",
)  # fmt: skip
# Where a proxy answers for a store that is away, or busy, there is no code but HTTP's. 501 is the store's own: it does
# not know the request. Delta paints what stands between the words.
_PASSING_STATUS: Final = re.compile(r"\bstatus(?: code)?(?:\x1b\[\d+m|\W)+(?:429|50[02-9]|5[1-9]\d)\b")
_PASSING_ERRNOS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE,
     errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH}
)  # fmt: skip


_NOT_INSTALLED: Final = frozenset({"NotInstalledError", "NoSuchModuleError", "ModuleNotFoundError"})


def translate(what: str, error: Exception) -> SinkError:
    """The error for a step that a catalog, its database or a store refused. Their texts may hold secrets or rows."""
    name = type(error).__name__
    if name in _NOT_INSTALLED:
        return SinkError(
            f"cannot {what}: no software for this kind of catalog is installed ({name}). Check 'catalog=' in the sink "
            "URI, or install what it needs beside Tidemill, such as psycopg2 for postgresql+psycopg2://."
        )
    found = f"cannot {what}: {name}. See that the catalog and the storage can be reached and written to"
    if any(_is_passing(cause) for cause in _causes(error)):
        return SinkUnavailableError(f"{found}. Nothing is lost: the changefeed continues from its checkpoint.")
    return SinkError(f"{found}, then start again; nothing is lost.")


def foreign(table: str, changefeed: str | None, cluster: str | None, options: LakeOptions) -> SinkError:
    """The error for a table that is there and not ours."""
    whose = f"belongs to changefeed {changefeed!r} of cluster {cluster}" if changefeed else "is not one of Tidemill's"
    return SinkError(
        f"table {table} in {options.storage.shown} {whose}, and this is changefeed {options.changefeed!r} of cluster "
        f"{options.cluster_id}: their rows would be mixed. Choose another warehouse, prefix or namespace in the sink "
        "URI, or move that table away."
    )


def other_table(table: str, location: str, options: LakeOptions) -> SinkError:
    """The error for a table of this changefeed where another one of its tables should be."""
    return SinkError(
        f"the folder {location} of {options.storage.shown} holds another table than {table}: _tidemill/tables.json "
        "is not the one that was written with it. Restore that file, or choose another folder or prefix in the sink "
        "URI; nothing was written."
    )


def superseded(options: LakeOptions) -> SupersededError:
    return SupersededError(
        f"stopped writing to {options.storage.shown}: a newer generation of the changefeed, or another process, writes "
        "there now. Nothing is lost: what this one had not committed is written again. Run each changefeed once."
    )


def contended(table: str, options: LakeOptions) -> SinkUnavailableError:
    return SinkUnavailableError(
        f"cannot commit to table {table} in {options.storage.shown}: others have committed each time before us. "
        "Nothing is lost: the changefeed continues from its checkpoint. Let maintenance of that table run less often."
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    while error is not None and seen < 20:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNOS:
        return True
    if any(kind.__name__ in _PASSING_TYPES for kind in type(error).__mro__):
        return True
    text = str(error).lower()
    return any(word in text for word in _PASSING_TEXTS) or _PASSING_STATUS.search(text) is not None
