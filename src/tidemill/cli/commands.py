"""All commands as one application.

The module of a command is imported when that command is asked for: what ``run`` needs takes a second and more to load,
and the others should not wait for it.
"""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from inspect import getdoc

import typer

from tidemill.errors import TidemillError
from tidemill.startup import quick_imports

_LONG_LIVED = {"run", "consume"}
# Each is in a module of its name, under that name, with underscores.
COMMANDS = (
    "upstream", "run", "metrics", "consume", "check-topic", "partitions", "verify", "demo", "warm", "fault", "simulate",
)  # fmt: skip


def application(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """The application with some of its commands."""
    app = typer.Typer(
        name="tidemill",
        help="Change data capture for TiDB and TiKV on Apache Spark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(root)
    for name in commands:
        with quick_imports() if name in _LONG_LIVED else nullcontext():
            module = name.replace("-", "_")
            command = getattr(import_module(f"tidemill.cli.{module}"), module)
        if isinstance(command, typer.Typer):
            for each in command.registered_commands:
                each.short_help = _first_sentence(each.callback)
            help_of_group = command.registered_callback.callback if command.registered_callback else None
            app.add_typer(command, name=name, short_help=_first_sentence(help_of_group) or command.info.help)
        else:
            app.command(name, short_help=_first_sentence(command))(command)
    return app


def _first_sentence(command: Callable[..., object] | None) -> str:
    """What a list of commands says of one: the whole sentence, which would be cut off in the middle otherwise."""
    paragraph = (getdoc(command) or "").split("\n\n")[0]
    return re.split(r"(?<=\.)\s", paragraph)[0].replace("\n", " ")


def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from tidemill import __version__

        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def run_app() -> None:
    """Run the command that the arguments name. Raises SystemExit."""
    match sys.argv[1:]:
        case ["--version"]:
            wanted: Sequence[str] = ()
        case [name, *_] if name in COMMANDS:
            wanted = (name,)
        case _:
            wanted = COMMANDS  # for the help, or to say which there are
    try:
        application(wanted)()
    except TidemillError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
