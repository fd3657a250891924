"""What to tell of a task group that failed, and how to ask one that is about to end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn

from tidemill.errors import TidemillError


def first_of(error: BaseException) -> BaseException:
    """The error that ended a task group: one of ours if there is any, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_of(e) for e in error.exceptions]
    return next((e for e in leaves if isinstance(e, TidemillError)), leaves[0])


def raise_first(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    raise first_of(group) from None


def spawn(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
    """Run it in the group, unless that is about to end: then whoever asks is being cancelled as well."""
    try:
        tasks.create_task(work)
    except RuntimeError:
        work.close()


async def settle(seconds: float = 5.0) -> None:
    """Call it last on a loop that is to be closed. Tasks are cancelled, but for those in which gRPC waits for the end
    of a call: what it hears of a call later goes to the call's loop, and tells on stderr that it finds it closed."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    calls = {task for task in rest if "_AioCall" in getattr(task.get_coro(), "__qualname__", "")}
    for task in rest - calls:
        task.cancel()
    await asyncio.gather(*(rest - calls), return_exceptions=True)
    calls = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}  # to cancel may take one
    if calls:
        _, late = await asyncio.wait(calls, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
