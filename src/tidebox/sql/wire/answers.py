"""What a client is told: results, rows, errors."""

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from tidebox.sql.wire.channel import Channel, Disconnected
from tidebox.sql.wire.columns import Column, definition
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.packets import ServerStatus, eof, err, integer, ok
from tidebox.sql.wire.rows import RowEncoder, rows_of
from tidebox.sql.wire.session import Affected, Result, Rows, Status
from tidemill.log import get_logger

log = get_logger("sql")

MakeEncoder = Callable[[Sequence[Column]], RowEncoder]


class Answers:
    """``has_eof``: as the client has asked for it when it logged in."""

    def __init__(self, channel: Channel, session_status: Callable[[], Status]) -> None:
        self.has_eof = True
        self._channel = channel
        self._session_status = session_status

    def done(self) -> None:
        self._channel.write(ok(self.status()))

    def error(self, error: SqlError) -> None:
        self._channel.write(err(error))
        self._channel.flush()

    def farewell(self, error: SqlError) -> None:
        with suppress(Disconnected):
            self._channel.write(err(error))
            self._channel.flush()

    def status(self, *, has_more: bool = False) -> int:
        status = self._session_status()
        flags = int(ServerStatus.MORE_RESULTS) if has_more else 0
        if status.is_autocommit:
            flags |= 2
        if status.is_in_transaction:
            flags |= 1
        if status.is_without_backslash_escapes:
            flags |= 512
        return flags

    def results(self, outcome: Result | list[Result], make_encoder: MakeEncoder, *, has_more: bool) -> None:
        results = outcome if isinstance(outcome, list) else [outcome]
        for index, result in enumerate(results or [Affected()]):
            has_next = has_more or index + 1 < len(results)
            if isinstance(result, Rows):
                self._rows(result, make_encoder, has_next)
            else:
                self._channel.write(
                    ok(
                        self.status(has_more=has_next),
                        result.rows,
                        result.last_insert_id,
                        result.warnings,
                        result.info,
                    )
                )
            if has_next:
                self._channel.flush()  # what follows may take long

    def _rows(self, result: Rows, make_encoder: MakeEncoder, has_more: bool) -> None:
        if not result.columns:
            raise ValueError("a result set without columns; a statement without rows has the outcome Affected")
        encode = make_encoder(result.columns)
        definitions = [definition(column) for column in result.columns]
        write = self._channel.write
        write(integer(len(definitions)))
        for packet in definitions:
            write(packet)
        if self.has_eof:
            write(eof(self.status(has_more=has_more), result.warnings))
        try:
            for row in rows_of(result.rows):
                write(encode(row))
        finally:
            close = getattr(result.rows, "close", None)
            if close is not None:
                close()
        self.end_rows(result.warnings, has_more=has_more)

    def end_rows(self, warnings: int = 0, *, has_more: bool = False) -> None:
        status = self.status(has_more=has_more)
        if not self.has_eof:
            self._channel.write(ok(status, warnings=warnings, is_eof=True))
        else:
            self._channel.write(eof(status, warnings))


def unforeseen(connection_id: int, error: Exception) -> SqlError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    text = str(error) or type(error).__name__
    log.error(
        "statement failed unexpectedly", connection=connection_id, kind=type(error).__name__, error=text, place=place
    )
    return sql_error(Errno.UNKNOWN_ERROR, text)
