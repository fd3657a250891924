"""Ports for programs that cannot be told to take any: they have to be named before the program listens.

The system gives ports of its ephemeral range to whoever connects anywhere, so one of those that was free a moment ago
may be taken. Ours are from below that range.
"""

import os
import random
import socket
from contextlib import ExitStack
from itertools import islice

_LOWEST, _HIGHEST = 20_000, 32_767  # Linux begins its ephemeral ports at 32768 unless it is told otherwise
_TRIES = 200


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports on which nobody listens at the moment. Raises OSError where there are none."""
    # Not from one seed: processes that start at the same time would choose alike.
    candidates = iter(random.Random(os.urandom(8)).sample(range(_LOWEST, _HIGHEST + 1), _TRIES))
    with ExitStack() as stack:
        found = list(islice((port for port in candidates if _is_free(stack, host, port)), count))
    if len(found) < count:
        raise OSError(f"no free port on {host} among {_TRIES} from {_LOWEST} to {_HIGHEST}")
    return found


def _is_free(held: ExitStack, host: str, port: int) -> bool:
    listener = held.enter_context(socket.socket())
    try:
        listener.bind((host, port))
    except OSError:
        return False
    return True
