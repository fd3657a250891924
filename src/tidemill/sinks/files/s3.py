"""A client for a bucket that speaks S3, and what its errors mean: what passes by itself and what somebody must fix.

pyarrow's S3 file system cannot write an object on a condition, nor abort an upload of somebody else's; botocore can.
It is imported where a bucket is first used, so that nobody else waits for it.
"""

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tidemill.errors import SinkError, SinkUnavailableError

if TYPE_CHECKING:
    from tidemill.sinks.files.storage import StorageOptions

Client = Any  # botocore makes its classes as it goes

MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})
CONDITION_FAILED: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
UPLOAD_GONE: Final = frozenset({"NoSuchUpload"})

# What the store says when it is busy, or away for a while. Any status from 500 on is taken for the same.
_PASSING: Final = frozenset(
    {"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded",
     "InternalError", "ServiceUnavailable", "OperationAborted", "ConditionalRequestConflict", "NoSuchUpload", "429"}
)  # fmt: skip
_NOT_IMPLEMENTED: Final = "NotImplemented"
_REASONS: Final = {
    "AccessDenied": "access is denied. Give this user the rights to read, write, list and delete there",
    "403": "access is denied. Give this user the rights to read, write, list and delete there",
    "AllAccessDisabled": "access is disabled. Let the owner of the bucket enable it",
    "InvalidAccessKeyId": "the access key is not known. Check 'access-key', or the environment's credentials",
    "SignatureDoesNotMatch": "the secret does not fit the access key. Check 'secret-access-key'",
    "NoSuchBucket": "there is no such bucket. Create it, or correct its name",
    "ExpiredToken": "the session has expired. Give a new 'session-token'",
    "ExpiredTokenException": "the session has expired. Give a new 'session-token'",
    "InvalidToken": "the session token is not valid. Give a new 'session-token'",
    "RequestTimeTooSkewed": "this machine's clock is wrong. Set it",
    "PermanentRedirect": "the bucket is in another region. Correct 'region'",
    "AuthorizationHeaderMalformed": "the bucket is in another region. Correct 'region'",
    "QuotaExceeded": "the quota is used up. Raise it or free some space",
    "XMinioStorageFull": "the storage is full. Free some space",
    _NOT_IMPLEMENTED: "the store does not support this request. It must support conditional writes (If-Match and "
    "If-None-Match) and multipart uploads",
}
_NO_ANSWER: Final = "nobody answers, or not in time. Check 'endpoint' and the network"
_FAILURES: Final = {
    "NoCredentialsError": "no credentials were found. Give 'access-key' and 'secret-access-key', set AWS_ACCESS_KEY_ID "
    "and AWS_SECRET_ACCESS_KEY, or give this machine a role",
    "PartialCredentialsError": "the environment's credentials are incomplete. Set all of them",
    "ProfileNotFound": "AWS_PROFILE names a profile that there is not. Correct it",
    "SSLError": "TLS failed: the certificate is not trusted, or the endpoint speaks no TLS. Check 'endpoint'",
}


def open_client(options: "StorageOptions") -> Client:
    """One per process and place. Raises nothing: what is wrong shows at the first request."""
    return _client(os.getpid(), options)


@lru_cache(maxsize=8)
def _client(process: int, options: "StorageOptions") -> Client:
    import botocore.session
    from botocore.config import Config

    session = botocore.session.Session()
    if options.access_key:
        session.set_credentials(options.access_key, options.secret_access_key, options.session_token or None)
    if options.role_arn:
        _assume_role(session, options)
    settings = Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 3},  # the changefeed itself waits longer
        s3={"addressing_style": "path" if options.force_path_style else "virtual"},
        # Other stores than AWS's do not know the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return session.create_client(
        "s3", endpoint_url=options.endpoint or None, region_name=options.region or None, config=settings
    )


def _assume_role(session: Any, options: "StorageOptions") -> None:
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    source = session.get_credentials()

    def create(service: str, **given: Any) -> Any:
        return session.create_client(service, region_name=options.region or "us-east-1", **given)

    more = {"ExternalId": options.external_id} if options.external_id else {}
    fetcher = AssumeRoleCredentialFetcher(create, source, options.role_arn, extra_args=more)
    session._credentials = DeferredRefreshableCredentials(
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )  # has no public setter


def code_of(error: BaseException) -> str:
    """What S3 calls the error; empty where it did not answer."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed a little later: the store is busy or out of reach."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = code_of(error)
        return code in _PASSING or (status >= 500 and code != _NOT_IMPLEMENTED)
    if isinstance(error, exceptions.SSLError):
        return False
    return isinstance(
        error,
        exceptions.HTTPClientError
        | exceptions.ConnectionError
        | exceptions.IncompleteReadError
        | exceptions.CredentialRetrievalError
        | exceptions.MetadataRetrievalError,
    )


def translate(what: str, place: str, error: Exception) -> SinkError:
    """The error for a request that failed, in our words: the store's own text may quote the request."""
    kind = SinkUnavailableError if is_passing(error) else SinkError
    return kind(
        f"cannot {what} {place}: {_reason(error)}, then start again; the changefeed continues from its checkpoint and "
        "nothing is lost."
    )


def _reason(error: Exception) -> str:
    code = code_of(error)
    if code in _REASONS:
        return _REASONS[code]
    if code:
        return f"the store answers {code}. See what it reports about it"
    for kind in type(error).__mro__:
        if kind.__name__ in _FAILURES:
            return _FAILURES[kind.__name__]
    return _NO_ANSWER if is_passing(error) else f"{type(error).__name__}. Check the sink URI"
