"""The generated parts of the reference pages: options from the command line, parameters from the sink URI's table.

python -m tests.docs.generate        rewrites them; a test fails while they are out of date
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from tidemill.cli.commands import application
from tidemill.config.keys import KEYS, REFUSED
from tidemill.flow.encoder import FOR_QUEUES, Avro, Debezium, protocol_keys
from tidemill.flow.encoder.port import Option
from tidemill.flow.filter import events, functions
from tidemill.sinks.files.uri import known_parameters, refused_parameters
from tidemill.sinks.kafka import uri as kafka

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    ROOT / "docs/reference/commands.md": lambda: commands(),
    ROOT / "docs/reference/sink-uri.md": lambda: parameters(),
    ROOT / "docs/reference/changefeed-config.md": lambda: config_keys(),
    ROOT / "docs/reference/protocol-avro.md": lambda: protocol_options(Avro.options),
    ROOT / "docs/reference/protocol-debezium.md": lambda: protocol_options(Debezium.options),
    ROOT / "docs/reference/queue-protocols.md": lambda: queue_protocols(),
}
_KAFKA = re.compile(r"(?<=<!-- kafka: begin -->\n).*?(?=<!-- kafka: end -->)", re.DOTALL)
_GENERATED = re.compile(r"(?<=<!-- generated: begin -->\n).*?(?=<!-- generated: end -->)", re.DOTALL)


def commands() -> str:
    """A section per command: its help, its options."""
    found: dict[str, Any] = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    sections = [
        _command(name, found[name])
        for name in ("run", "partitions", "consume", "check-topic", "verify", "upstream", "demo", "warm")
    ]
    group = found["fault"]
    sections += [f"## tidemill fault\n\n{group.help}\n\n" + "\n".join(_options(group.params)) + "\n"]
    sections += [_command(f"fault {name}", command, "###") for name, command in group.commands.items()]
    return "\n".join(sections)


def _command(name: str, command: Any, heading: str = "##") -> str:
    text, _, example = command.help.partition("Example: ")
    lines = [f"{heading} tidemill {name}", "", " ".join(text.split()), ""]
    lines += ["```sh", " ".join(example.split()), "```", "", *_options(command.params)]
    return "\n".join(lines) + "\n"


def _options(options: list[Any]) -> list[str]:
    lines = ["| Option | Default | Meaning |", "|---|---|---|"]
    for option in options:
        default = "required" if option.required else "" if option.default in (None, "") else f"`{option.default}`"
        if getattr(option, "is_flag", False):  # arguments cannot be one
            default = "off"
        if isinstance(option.default, StrEnum):
            default = f"`{option.default.value}`"
        instead = f" Or in the environment: `{option.envvar}`." if option.envvar else ""
        lines.append(f"| `{_name(option)}` | {default} | {option.help}{instead} |")
    return lines


def _name(option: Any) -> str:
    return str(option.opts[0] if option.param_type_name == "option" else option.opts[0].upper())


def parameters() -> str:
    """The parameters that are known, then those of TiCDC that are not."""
    lines = ["| Parameter | Default | Protocol | Meaning |", "|---|---|---|---|"]
    for parameter in known_parameters():
        protocols = "any" if len(parameter.protocols) > 1 else parameter.protocols[0]
        where = "" if parameter.is_for_blackhole else " Files only."
        lines.append(f"| `{parameter.name}` | {parameter.default} | {protocols} | {parameter.help}{where} |")
    lines += ["", "Refused, since it would silently do nothing:", "", "| Parameter of TiCDC | Why |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in refused_parameters().items()]
    return "\n".join(lines) + "\n"


def config_keys() -> str:
    """The keys of a changefeed's file, those of TiCDC that are not, the words of ignore-event and the functions."""
    lines = ["| Key | Default | Meaning |", "|---|---|---|"]
    lines += [f"| `{path}` | {key.default} | {key.help} |" for path, key in {**KEYS, **protocol_keys()}.items()]
    lines += ["", "Refused, since it would silently do nothing:", "", "| Key or section of TiCDC | Why |", "|---|---|"]
    lines += [f"| `{path}` | {why} |" for path, why in REFUSED.items()]
    words = ", ".join(f"`{word}`" for word in (*events.ROWS, *events.DDLS))
    lines += ["", "## Words of ignore-event", "", f"{words}.", ""]
    calls = ", ".join(f"`{name}`" for name in functions.names())
    lines += ["## Functions in expressions", "", f"{calls}."]
    return "\n".join(lines) + "\n"


def protocol_options(options: Mapping[str, Option]) -> str:
    """The options of a queue's protocol, as parameters of the sink URI."""
    lines = ["| Parameter | Default | Meaning |", "|---|---|---|"]
    for name, option in options.items():
        lines.append(f"| `{name}` | {option.default} | {option.help} |")
    return "\n".join(lines) + "\n"


def queue_protocols() -> str:
    """Of the protocols that have no page of their own."""
    kinds = [kind for kind in FOR_QUEUES.values() if kind not in (Avro, Debezium)]
    return "\n".join(f"### {kind.name}\n\n{protocol_options(kind.options)}" for kind in kinds)


def kafka_parameters() -> str:
    lines = ["| Parameter | Default | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {each.default} | {each.help} |" for name, each in kafka.PARAMETERS.items()]
    lines += ["", "Refused:", "", "| Parameter of TiCDC | Why |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in kafka.REFUSED.items()]
    return "\n".join(lines) + "\n"


def generated(page: Path) -> str:
    """What the page should say."""
    text = _KAFKA.sub(lambda _: kafka_parameters(), page.read_text())
    return _GENERATED.sub(lambda _: PAGES[page](), text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page))
