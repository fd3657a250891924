"""A folder of ``tidemill run``, taken over by a cluster: whether the new changefeed may continue it. Pure."""

from dataclasses import replace

import orjson

from tidemill.capture.metadata import ChangefeedState, read_state
from tidemill.errors import UsageError
from tidemill.model.cluster import NewChangefeed
from tidemill.model.schedule import ChangefeedKey
from tidemill.sinks import differences


def state_of(new: NewChangefeed) -> ChangefeedState | None:
    """What a new changefeed is to continue; None: it begins."""
    if new.state is None:
        return None
    if new.start_ts or new.initial_copy:
        raise UsageError(
            "a folder that is taken over is continued where it stands: leave the start-ts and the initial scan out."
        )
    try:
        state = read_state(orjson.dumps(new.state))
    except (ValueError, TypeError) as error:
        raise UsageError(f"cannot take the folder over: its state is not understood: {error}.") from error
    if not state.changefeed_id:
        raise UsageError("cannot take the folder over: its state has no changefeed_id. Give the folder by its path.")
    return state


def starting_at(new: NewChangefeed, state: ChangefeedState | None) -> NewChangefeed:
    """From where on the upstream has to have its past still."""
    return new if state is None else replace(new, start_ts=state.checkpoint_ts)


def continued(state: ChangefeedState, key: ChangefeedKey, cluster_id: int, place: str) -> ChangefeedState:
    """As the cluster keeps it. Raises UsageError where it is of something else."""
    refusal = f"cannot create changefeed {key.id!r} from that folder"
    if state.cluster_id != cluster_id:
        raise UsageError(
            f"{refusal}: it reads the upstream {state.cluster_id}, and the captures read {cluster_id}. Ask captures "
            "of that one."
        )
    differing = differences(state.sink, place)
    if differing:
        raise UsageError(
            f"{refusal}: it writes into {state.sink}, not {place} ({differing}). Give the same --sink-uri."
        )
    if state.keys:
        raise UsageError(f"{refusal}: it captures {state.keys}, and captures of a cluster capture tables.")
    return replace(state, name=key.id)
