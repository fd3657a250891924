"""An error as the API tells it: ``{"error_msg": …, "error_code": "CDC:Err…"}`` and a status.

The statuses are TiCDC's, but for refusals of what a client has asked for that TiCDC answers with 500: a name that is
taken, a sink that is the upstream itself, an import under way. They are 400 here as all other refusals, since asking
again would not help. Not being ready is 503 throughout.
"""

from tidemill.errors import (
    OperationError,
    SinkError,
    TidemillError,
    UnauthorizedError,
    UnhealthyError,
    UpstreamError,
    UsageError,
)
from tidemill.log import get_logger

log = get_logger("api")

_INTERNAL = "CDC:ErrInternalServerError"


def status_of(error: TidemillError) -> int:
    match error:
        case UnauthorizedError():
            return 401
        case UnhealthyError():
            return 500
        case OperationError():
            return 503 if error.retryable else 400
        case UsageError() | SinkError():
            return 400
        case UpstreamError():
            return 503
        case _:
            return 500


def body_of(message: str, code: str) -> dict[str, str]:
    return {"error_msg": message, "error_code": code}


def document_of(error: TidemillError) -> dict[str, str]:
    return body_of(f"[{error.cdc_code}]{error}", error.cdc_code)


def unexpected(error: Exception) -> dict[str, str]:
    """A bug of ours. What it says may hold anything, so it is for the log alone."""
    log.error("a request failed for a reason that nobody expected", error=type(error).__name__, detail=str(error))
    return body_of("an internal error; the capture's log has its details. Report it.", _INTERNAL)
