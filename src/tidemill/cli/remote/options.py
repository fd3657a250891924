"""The options of every command that asks a capture, and a decorator that gives them to it.

@connected
def list(api: Api, namespace: Namespace = "default", output: OutputFlag = Output.text) -> None: ...
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tidemill.cli.options import Output, name_of
from tidemill.cli.remote.client import Access, Api
from tidemill.errors import UsageError
from tidemill.model.security import Security

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="The changefeed's namespace.")]
OutputFlag = Annotated[Output, typer.Option("--output", help="How to print the answer.")]
Name = Annotated[str | None, typer.Argument(help="The changefeed's name.", show_default=False)]
ChangefeedId = Annotated[str | None, typer.Option("--changefeed-id", "-c", help="The same, as an option.")]
Table = Annotated[int, typer.Option("--table", help="The table's id, as changefeed query --output json shows it.")]
To = Annotated[str, typer.Option("--to", help="The capture that is to have it, as capture list shows it.")]
CaptureName = Annotated[str, typer.Argument(help="The capture's id, as capture list shows it.")]
CaptureId = Annotated[str, typer.Option("--capture-id", "-p", help="The capture's id, as capture list shows it.")]
NoConfirm = Annotated[bool, typer.Option("--no-confirm", help="Do not ask.")]

_Server = Annotated[
    str,
    typer.Option("--server", help="Any capture of the cluster: http://HOST:PORT.", envvar="TIDEMILL_SERVER"),
]
_Ca = Annotated[str, typer.Option("--ca", help="File with the certificate of the captures' authority: ask over TLS.")]
_Cert = Annotated[str, typer.Option("--cert", help="File with our own certificate, where captures want one.")]
_Key = Annotated[str, typer.Option("--key", help="File with the key of our own certificate.")]
_User = Annotated[str, typer.Option("--user", help="The user, where captures want one.", envvar="TIDEMILL_USER")]
_Password = Annotated[
    str,
    typer.Option(
        "--password",
        help="The user's password. @FILE reads it from a file, so that it is not on the command line.",
        envvar="TIDEMILL_PASSWORD",
    ),
]
_Token = Annotated[
    str, typer.Option("--token", help="A token instead of a user; @FILE reads it.", envvar="TIDEMILL_TOKEN")
]
_CONNECTION = {
    "server": (_Server, "http://127.0.0.1:8300"),
    "ca": (_Ca, ""),
    "cert": (_Cert, ""),
    "key": (_Key, ""),
    "user": (_User, ""),
    "password": (_Password, ""),
    "token": (_Token, ""),
}


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """The command without its ``api``, which is made of the options of a connection."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    own = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items() if name != "api"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _CONNECTION.items()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        taken = {name: given.pop(name) for name in _CONNECTION}
        with Api(_access(**taken)) as api:
            command(api=api, **given)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + more
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    del run.__wrapped__
    return run


def _access(server: str, ca: str, cert: str, key: str, user: str, password: str, token: str) -> Access:
    if token and user:
        raise UsageError("--token and --user are two ways to say who we are. Give one of them.")
    if bool(user) != bool(password):
        raise UsageError("--user and --password belong together. Give both, or neither.")
    secrets = (_secret(password, "--password"), _secret(token, "--token"))
    return Access(server, Security(ca, cert, key), user, *secrets)


def _secret(text: str, flag: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {flag} from {text[1:]}: {reason}. Check the path and its rights.") from None


def named(name: str | None, changefeed_id: str | None) -> str:
    """The changefeed, as it was given in one way or the other."""
    if name and changefeed_id and name != changefeed_id:
        raise UsageError(f"two changefeeds are named, {name!r} and --changefeed-id {changefeed_id!r}. Give one.")
    found = name or changefeed_id
    if not found:
        raise UsageError("which changefeed? Give its name; tidemill changefeed list shows them all.")
    return name_of(found)


def confirmed(question: str, no_confirm: bool) -> bool:
    """Whether to do it. Where there is nobody to ask, it has to be said beforehand."""
    if no_confirm:
        return True

    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to answer at: give --no-confirm if so.")
    return typer.confirm(question, err=True)
