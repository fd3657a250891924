"""All commands as one application.

The module of a command is imported when that command is asked for: what ``run`` needs takes a second and more to load,
and the others should not wait for it.
"""

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidemill.cli.options import LOG_FILE, log_place
from tidemill.errors import TidemillError, suggestion
from tidemill.log import Format
from tidemill.startup import quick_imports

_LONG_LIVED = {"run", "consume", "server"}
_LOG_LEVEL = "log_level"
_PREFIX = "TIDEMILL_"
_NOT_FOR_ALL = {"help", "version", "install_completion", "show_completion"}
# Each is in a module of its name, under that name, with underscores. What lists say of one stands here, so that they
# import none.
COMMANDS = {
    "upstream": "Run a TiDB/TiKV cluster in this process: PD, stores and, if asked, SQL nodes.",
    "run": "Capture the changes of a cluster and write them downstream, in the foreground.",
    "server": "Run a capture of a cluster: captures share the work on all changefeeds.",
    "changefeed": "Create, watch and steer changefeeds of a cluster of captures.",
    "capture": "The captures of a cluster: list them, empty one before it stops.",
    "processor": "Which capture works on which changefeed.",
    "span": "Move the spans of a changefeed between captures.",
    "tso": "Timestamps: the upstream's own, and the time of any.",
    "unsafe": "For emergencies: metadata, locks, the GC safepoint.",
    "metrics": "What captures measure: a list, a Grafana board, alert rules.",
    "consume": "Read a topic of Kafka and write its rows and DDLs to a sink, in the foreground.",
    "check-topic": "Read a topic of Kafka and report every promise of the protocol that it breaks.",
    "partitions": "Change the number of partitions of a running changefeed's topics.",
    "verify": "Compare the downstream with the upstream at a ts, while both are written to.",
    "demo": "Run SQL on an embedded TiDB, capture it into files, show it arriving, check the result.",
    "warm": "Compile and archive once what later starts would load anew.",
    "fault": "Make a running tidemill upstream fail: split, merge, kill, delay.",
    "simulate": "Run a simulated cluster in which everything fails, and check what must always hold.",
}


class Listing(TyperGroup):
    """All commands by name; one is imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return runnable(application((cmd_name,))).commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}.{suggestion(args[0], COMMANDS) or ' See tidemill --help.'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def listing() -> typer.Typer:
    """The application, for its help and for what it does not know."""
    return _application(cls=Listing, completes=True)


def application(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """The application with some of its commands."""
    app = _application()
    for name in commands:
        with quick_imports() if name in _LONG_LIVED else nullcontext():
            module = name.replace("-", "_")
            command = getattr(import_module(f"tidemill.cli.{module}"), module)
        if isinstance(command, typer.Typer):
            for each in command.registered_commands:
                each.short_help = _first_sentence(each.callback)
            app.add_typer(command, name=name, short_help=COMMANDS[name])
        else:
            app.command(name, short_help=COMMANDS[name])(command)
    return app


def runnable(app: typer.Typer) -> Any:
    """``app`` as it is run: options that are not given are taken from the environment.

    An option is the same thing wherever it stands, so --pd is TIDEMILL_PD for each command that has it.
    """
    command: Any = typer.main.get_command(app)
    _complete(command)
    return command


def _complete(command: Any) -> None:
    """What every command has: options about its log lines, and each option's variable."""
    if any(option.name == _LOG_LEVEL for option in command.params):
        command.params += _log_options()
    for option in command.params:
        if option.param_type_name == "option" and option.envvar is None and option.name not in _NOT_FOR_ALL:
            option.envvar = variable_of(option.name)
            option.show_envvar = False
    if hasattr(command, "commands"):
        for each in command.commands.values():
            _complete(each)
    else:
        command.epilog = "Options may be given in the environment, too: --log-level as TIDEMILL_LOG_LEVEL, and so on."


def _log_options() -> list[Any]:
    """Those of a command that has nothing else, to be lent to the others."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def place(
        log_file: Annotated[
            Path | None,
            typer.Option(
                LOG_FILE, help="Append log lines to this file. Default: stderr.", callback=_set_file, expose_value=False
            ),
        ] = None,
        log_format: Annotated[
            Format,
            typer.Option("--log-format", help="How log lines look.", callback=_set_format, expose_value=False),
        ] = Format.text,
    ) -> None: ...

    return list(typer.main.get_command(app).params)[:2]


def _set_file(path: Path | None) -> None:
    log_place.file = path


def _set_format(form: Format) -> None:
    log_place.form = form


def variable_of(option: str) -> str:
    return f"{_PREFIX}{option.upper()}"


def _application(cls: type[TyperGroup] = TyperGroup, *, completes: bool = False) -> typer.Typer:
    app = typer.Typer(
        name="tidemill",
        cls=cls,
        help="Change data capture for TiDB and TiKV on Apache Spark.",
        no_args_is_help=True,
        add_completion=completes,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(root)
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
    try:
        match sys.argv[1:]:
            case ["--version"]:
                app = _application()
            case [name, *_] if name in COMMANDS:
                app = application((name,))
            case _:
                app = listing()  # for the help, or to say which there are
        runnable(app)(prog_name="tidemill")
    except TidemillError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
