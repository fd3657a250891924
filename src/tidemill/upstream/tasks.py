"""What to tell of a task group that failed."""

from typing import NoReturn

from tidemill.errors import TidemillError


def first_of(error: BaseException) -> BaseException:
    """The error that ended a task group: one of ours if there is any, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_of(e) for e in error.exceptions]
    return next((e for e in leaves if isinstance(e, TidemillError)), leaves[0])


def raise_first(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    raise first_of(group) from None
