"""What both halves of the MySQL sink do to the server by themselves: take their turn, and ask again while it is
away.
"""

from collections.abc import Callable, Collection
from datetime import tzinfo
from zoneinfo import ZoneInfo

import pymysql

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.generation import OWNER, SCHEMA, Generation, end_writers, prepare
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.retry import Patience
from tidemill.sinks.mysql.session import (
    Connection,
    Downstream,
    SessionSettings,
    closed,
    examine,
    open_session,
)
from tidemill.sinks.mysql.uri import MysqlOptions

log = get_logger("mysql")

PATIENCE_SECONDS = 120.0


class Turn:
    """The generation of one half, and its own session. One generation at a time; there is none before the first
    ``begin``."""

    def __init__(self, options: MysqlOptions, writer: str, zone: tzinfo, patience_seconds: float) -> None:
        """``zone`` is the one in which rows are decoded."""
        self.options, self.patience, self.lines = options, Patience(patience_seconds), Lines()
        self.zone = _session_zone(zone)
        self.generation = Generation.new(options.changefeed, options.cluster_id, writer)
        self.downstream: Downstream | None = None  # None: there has been no generation yet
        self._session: Connection | None = None  # for DDL and questions
        self._tried: list[str] = []  # marks; one whose beginning failed may be the newest all the same
        self._writer = writer

    def begin(self, term: str = "") -> None:
        """Begin a new generation, the only one of this writer, or of the owner, that writes. ``term``: a writer's
        owner's."""
        after = tuple(self._tried) if self.downstream is not None else ()
        self.generation = Generation.new(self.options.changefeed, self.options.cluster_id, self._writer)
        self._tried.append(self.generation.mark)
        self.lose()
        self.patiently(lambda: self._take_over(after, term), "take over the downstream")
        self._tried = [self.generation.mark]

    def confirm(self) -> None:
        """Raises TakenOverError if the generation has ended."""
        self.patiently(lambda: self.generation.confirm(self.opened()), "look whose turn it is")

    def fence(self, writers: Collection[str] | None) -> None:
        self.patiently(lambda: self._fence(writers), "end earlier writers")

    def opened(self) -> Connection:
        if self._session is None:
            self._session = open_session(self.ddl_settings(), self.lines)
        return self._session

    def ddl_settings(self) -> SessionSettings:
        zone = self.zone if self.options.time_zone is None else self.options.time_zone.replace("UTC", "+00:00")
        return SessionSettings(self.options, self.downstream, zone, is_for_ddl=True)

    def lose(self) -> None:
        if self._session is not None:
            closed(self._session)
            self._session = None

    def _take_over(self, after: tuple[str, ...], term: str) -> None:
        session = open_session(SessionSettings(self.options), self.lines)
        try:
            downstream = examine(session)
            self.generation.begin(session, after, term)
            self.downstream = downstream
            self._wait_for(lambda: self.generation.end_older(session))
        finally:
            closed(session)
        whose = "owner" if self._writer == OWNER else self._writer
        log.info("downstream taken over", at=self.options.place, writer=whose, flavor=downstream.flavor.value)

    def _fence(self, writers: Collection[str] | None) -> None:
        session = open_session(SessionSettings(self.options), self.lines)
        try:
            prepare(session)
            self.generation.confirm(session)
            self._wait_for(lambda: end_writers(session, self.generation, writers))
        finally:
            closed(session)

    def _wait_for(self, is_over: Callable[[], bool]) -> None:
        for is_last in self.patience.tries():
            if is_over():
                return
            if is_last:
                raise failures.DownstreamUnavailableError(
                    f"an earlier run of changefeed {self.options.changefeed!r} is still at work at "
                    f"{self.options.place} although its sessions were ended. It is waited for."
                )

    def patiently(self, work: Callable[[], None], doing: str) -> None:
        """Do ``work``, again where the reason of a failure passes; the first failure is said at once."""
        is_said = False
        for is_last in self.patience.tries():
            try:
                work()
                return
            except (pymysql.err.MySQLError, OSError) as error:
                self.lose()
                number, said = failures.number_of(error), failures.text_of(error)
                if not failures.is_passing(error):
                    rights = f"CREATE, SELECT, INSERT, UPDATE and DELETE on `{SCHEMA}`.* and on what is replicated"
                    raise SinkError(
                        f"cannot {doing} at {self.options.place}: {said} (error {number}). "
                        f"{failures.remedy(error, rights)}"
                    ) from error
                if is_last:
                    raise failures.DownstreamUnavailableError(
                        f"cannot {doing} at {self.options.place}: {said} (error {number}), for "
                        f"{self.patience.seconds:.0f} s. See that the server of the sink URI answers; the changefeed "
                        "continues from its checkpoint."
                    ) from error
                if not (is_said or self.patience.is_ended):
                    log.warning(
                        f"cannot {doing} yet; trying again for {self.patience.seconds:.0f} s",
                        at=self.options.place,
                        reason=f"{said} (error {number})",
                    )
                    is_said = True


def _session_zone(zone: tzinfo) -> str:
    """As the server is told. UTC by its offset: names are known only where their tables were loaded."""
    if isinstance(zone, ZoneInfo) and zone.key and zone.key not in ("UTC", "Etc/UTC"):
        return zone.key
    offset = zone.utcoffset(None)
    minutes = int(offset.total_seconds()) // 60 if offset is not None else 0
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
