"""Why the checkpoint of a changefeed does not move, as far as its owner knows: for ``changefeed query``."""

from collections.abc import Iterator
from datetime import UTC, datetime

from tidemill.capture.cluster.owning import OwnedFeed
from tidemill.capture.owner import ChangefeedOwner
from tidemill.control.barriers import Pending
from tidemill.model.cluster import Cause, ChangefeedInfo, Hindrance
from tidemill.model.ts import Ts

_MOST = 8  # that are told of


def starting(info: ChangefeedInfo, feed: OwnedFeed | None) -> Hindrance:
    copying = feed.copying if feed is not None else None
    subject = f"changefeed {info.key.id!r}"
    if copying is not None:
        return Hindrance(Cause.SPARK, subject, f"is {copying.stage}", info.start_ts)
    if feed is not None and feed.opening.doing:
        return Hindrance(Cause.STATE, subject, f"is only starting on the owner, which is {feed.opening.doing}")
    return Hindrance(Cause.STATE, subject, "is only starting, or ending, on the owner")


def hindrances(feed: OwnedFeed) -> tuple[Hindrance, ...]:
    """What matters most first: what concerns all tables, then what is furthest behind."""
    owner = feed.owner
    return tuple(_found(feed, owner))[:_MOST] if owner is not None else ()


def _found(feed: OwnedFeed, owner: ChangefeedOwner) -> Iterator[Hindrance]:
    if owner.beside.trouble is not None:
        yield Hindrance(Cause.SINK, "the sink", owner.beside.trouble)
    missing = [table for table in feed.tables if feed.coordinator.holder(table) is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        sentence = "no capture has it: it is on its way from one to another, or waits for one"
        yield Hindrance(Cause.CAPTURE, f"table {missing[0]}{more}", sentence)
    first = owner.owned.barriers.first
    if first is not None:
        ddl = _ddl(feed, owner, first)
        if ddl is not None:
            yield ddl
    if owner.owned.is_syncing:
        yield Hindrance(Cause.SYNC_POINT, "a sync point", "is being noted downstream", owner.owned.sync_ts or Ts(0))
    for capture, each in feed.held.all:
        since = datetime.fromtimestamp(each.since, UTC)
        yield Hindrance(each.cause, each.subject, f"{each.detail} (capture {capture})", each.ts, since)


def _ddl(feed: OwnedFeed, owner: ChangefeedOwner, first: Pending) -> Hindrance | None:
    subject = f"the DDL at {first.ts}{owner.ddls.first_name}"
    if owner.owned.is_ddl_running:
        return Hindrance(Cause.DDL, subject, "is running downstream", first.ts)
    if feed.checkpoint_ts >= first.ts:
        return Hindrance(Cause.DDL, subject, "is about to run downstream", first.ts)
    return None  # the tables have not come to it
