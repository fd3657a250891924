"""What both versions of the API do with changefeeds: requests, checked, to the port."""

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import replace

from tidemill.api.bodies import ChangefeedBody, V1ChangefeedBody, VerifyTableBody
from tidemill.api.checking import check_sink, checked_config, key_of
from tidemill.api.operations import Operations
from tidemill.config.changefeed import read_config
from tidemill.config.sink_uri import safe_uri
from tidemill.errors import SinkUriError, UsageError, suggestion
from tidemill.flow.encoder import protocol_keys
from tidemill.model.cluster import (
    ChangefeedInfo,
    ChangefeedUpdate,
    FeedState,
    NewChangefeed,
    UpstreamAccess,
    VerifyTables,
)
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.ts import Ts

_LISTED = (FeedState.NORMAL, FeedState.STOPPED, FeedState.FAILED, FeedState.WARNING, FeedState.PENDING)


async def create(operations: Operations, namespace: str, body: ChangefeedBody | V1ChangefeedBody) -> ChangefeedInfo:
    key = key_of(namespace, body.changefeed_id or str(uuid.uuid4()))
    sink_uri = body.sink_uri.strip()
    if not sink_uri:
        raise SinkUriError("a changefeed needs a sink_uri, which says where to write: kafka://…, mysql://…, file://….")
    # Beside the loop: rules and expressions are compiled for it.
    document, config = await asyncio.to_thread(checked_config, body.replica_config)
    await asyncio.to_thread(check_sink, sink_uri, config)
    new = NewChangefeed(key, sink_uri, Ts(body.start_ts), Ts(body.target_ts), document)
    if isinstance(body, ChangefeedBody):
        new = replace(new, upstream=body.access, initial_copy=body.initial_scan, state=body.state)
    return await operations.changefeeds.create(new)


async def update(operations: Operations, key: ChangefeedKey, body: ChangefeedBody | V1ChangefeedBody) -> ChangefeedInfo:
    """What is empty stays. Both the sink URI and the config are checked with what the other one is then."""
    if body.start_ts:
        raise UsageError("start_ts of a changefeed stays as it is. To go back in time, resume it from an earlier ts.")
    if isinstance(body, ChangefeedBody) and (body.initial_scan or body.state is not None):
        raise UsageError("initial_scan and state are for a changefeed that is created. Leave them out.")
    before = await operations.changefeeds.get(key)
    sink_uri = body.sink_uri.strip()
    if sink_uri in ("", safe_uri(before.sink_uri)):
        sink_uri = before.sink_uri  # a client gives back what it was shown
    document = None
    if body.replica_config is not None:
        document, config = await asyncio.to_thread(checked_config, body.replica_config)
    else:
        config = await asyncio.to_thread(read_config, before.config, more=protocol_keys())
    await asyncio.to_thread(check_sink, sink_uri, config)
    upstream = body.access if isinstance(body, ChangefeedBody) else UpstreamAccess()
    target_ts = Ts(body.target_ts) if body.target_ts else None
    return await operations.changefeeds.update(
        key, ChangefeedUpdate(sink_uri, target_ts, document, upstream if upstream.pd else None)
    )


async def verify_tables(body: VerifyTableBody) -> VerifyTables:
    document, config = await asyncio.to_thread(checked_config, body.replica_config)
    if body.sink_uri:
        await asyncio.to_thread(check_sink, body.sink_uri.strip(), config)
    return VerifyTables(document, Ts(body.start_ts), body.access)


def of_state(infos: Iterable[ChangefeedInfo], state: str) -> list[ChangefeedInfo]:
    """Without a state: all that are not over. ``all``, or one state."""
    if state == "all":
        return list(infos)
    wanted = _LISTED if state == "" else (_state(state),)
    return [info for info in infos if info.state in wanted]


def _state(text: str) -> FeedState:
    known = [each.value for each in FeedState]
    if text not in known:
        raise UsageError(
            f"state {text[:40]!r} is unknown. Use all or one of {', '.join(known)}.{suggestion(text, known)}"
        )
    return FeedState(text)
