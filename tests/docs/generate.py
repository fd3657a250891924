"""The generated parts of the reference pages: options from the command line, parameters from the sink URI's table.

python -m tests.docs.generate        rewrites them; a test fails while they are out of date
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemill.api.app import create_app
from tidemill.api.metrics import ALERTS, METRICS
from tidemill.cli.commands import application, runnable
from tidemill.config.keys import KEYS, REFUSED
from tidemill.flow.encoder import FOR_QUEUES, Avro, Debezium, protocol_keys
from tidemill.flow.encoder.port import Option
from tidemill.flow.filter import events, functions
from tidemill.sinks.files.uri import known_parameters, refused_parameters
from tidemill.sinks.kafka import uri as kafka
from tidemill.sinks.tikv import uri as tikv
from tidemill.testing.operations import FakeCluster

CLUSTER = ("changefeed", "capture", "processor", "span", "tso", "unsafe", "metrics")  # groups of commands
ROOT = Path(__file__).parent.parent.parent
PAGES = {
    ROOT / "docs/reference/commands.md": lambda: commands(),
    ROOT / "docs/reference/api.md": lambda: api(),
    ROOT / "docs/reference/metrics.md": lambda: metrics(),
    ROOT / "docs/reference/sink-uri.md": lambda: parameters(),
    ROOT / "docs/reference/changefeed-config.md": lambda: config_keys(),
    ROOT / "docs/reference/protocol-avro.md": lambda: protocol_options(Avro.options),
    ROOT / "docs/reference/protocol-debezium.md": lambda: protocol_options(Debezium.options),
    ROOT / "docs/reference/queue-protocols.md": lambda: queue_protocols(),
}
_PLAIN = (
    "run", "server", "partitions", "consume", "check-topic", "verify", "upstream", "demo", "warm", "simulate",
)  # fmt: skip
_CONNECTION = ("server", "ca", "cert", "key", "user", "password", "token")
_KAFKA = re.compile(r"(?<=<!-- kafka: begin -->\n).*?(?=<!-- kafka: end -->)", re.DOTALL)
_TIKV = re.compile(r"(?<=<!-- tikv: begin -->\n).*?(?=<!-- tikv: end -->)", re.DOTALL)
_GENERATED = re.compile(r"(?<=<!-- generated: begin -->\n).*?(?=<!-- generated: end -->)", re.DOTALL)


def commands() -> str:
    """A section per command: its help, its options."""
    found: dict[str, Any] = runnable(application()).commands
    sections = [_command(name, found[name]) for name in _PLAIN]
    for name in CLUSTER:
        group = found[name]
        sections += [f"## tidemill {name}\n\n{group.help}\n"]
        sections += [
            _command(f"{name} {verb}", command, "###", _CONNECTION) for verb, command in group.commands.items()
        ]
    sections += ["### To reach a capture\n\n" + _connection(found["capture"].commands["list"])]
    group = found["fault"]
    sections += [f"## tidemill fault\n\n{group.help}\n\n" + "\n".join(_options(group.params)) + "\n"]
    sections += [_command(f"fault {name}", command, "###") for name, command in group.commands.items()]
    return "\n".join(sections)


def _connection(command: Any) -> str:
    """The options that all commands have that ask a capture."""
    return "\n".join(_options([each for each in command.params if each.name in _CONNECTION])) + "\n"


def api() -> str:
    """Every path, then the fields of bodies."""
    document = create_app(FakeCluster().operations(0)).openapi()
    sections = []
    for title, is_of in (
        ("Version 2", lambda path: path.startswith("/api/v2")),
        ("Version 1", lambda path: path.startswith("/api/v1")),
        ("Without a version", lambda path: not path.startswith("/api/")),
    ):
        lines = [f"## {title}", "", "| Path | What | Body | Answer |", "|---|---|---|---|"]
        for path, item in document["paths"].items():
            lines += [_path(path, method, each) for method, each in item.items() if is_of(path)]
        sections.append("\n".join(lines) + "\n")
    schemas = document["components"]["schemas"]
    shown: dict[str, str] = {}
    while missing := _named_in([*sections, *shown.values()], schemas) - shown.keys():
        shown |= {name: "\n".join(_schema(name, schemas[name])) + "\n" for name in missing}
    return "\n".join([*sections, "## Bodies\n", *(shown[name] for name in sorted(shown))])


def _named_in(sections: list[str], schemas: Mapping[str, Any]) -> set[str]:
    return {name for name in schemas if any(f"[{name}]" in section for section in sections)}


def _path(path: str, method: str, operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    sent = content.get("application/json", {}).get("schema", {})
    told = next(each for code, each in operation["responses"].items() if code in ("200", "202"))
    answer = told.get("content", {}).get("application/json", {}).get("schema", {})
    body = "a form" if content and "application/json" not in content else _shape(sent)
    return f"| `{method.upper()} {path}` | {_summary(operation)} | {body} | {_shape(answer)} |"


def _summary(operation: dict[str, Any]) -> str:
    """Of what has none of its own, FastAPI makes one of the function's name."""
    text = str(operation["summary"])
    for kind in ("V1 ", "Form ", "Plain "):
        text = text.removeprefix(kind)
    return text.capitalize() if text.istitle() else text


def _shape(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        shapes = [_shape(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(shapes) + (", or nothing" if len(shapes) < len(schema["anyOf"]) else "")
    if schema.get("type") == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    return str(schema.get("type", ""))


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", ""]
    if schema.get("description"):
        lines += [" ".join(schema["description"].split()), ""]
    if not schema.get("properties"):
        return [*lines, "`{}`"]
    lines += ["| Field | Kind | Meaning |", "|---|---|---|"]
    for field, each in schema["properties"].items():
        default = each.get("default")
        meaning = each.get("description", "")
        kind = _shape(each) + (", required" if field in schema.get("required", ()) and "Body" in name else "")
        lines.append(f"| `{field}` | {kind} | {meaning}{f' Default: `{default}`.' if default else ''} |")
    return lines


def metrics() -> str:
    """The metrics, then the alerts."""
    lines = ["| Metric | Kind | Labels | Meaning |", "|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |" for m in METRICS]
    lines += ["", "## Alerts", "", "| Alert | Level | When | For | Meaning |", "|---|---|---|---|---|"]
    for each in ALERTS:
        when = each.expression.replace("|", "\\|")
        lines.append(f"| `{each.name}` | {each.severity} | `{when}` | {each.lasting} | {each.summary} |")
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any, heading: str = "##", but: tuple[str, ...] = ()) -> str:
    text, _, example = command.help.partition("Example: ")
    lines = [f"{heading} tidemill {name}", "", " ".join(text.split()), ""]
    lines += ["```sh", " ".join(example.split()), "```", ""]
    own = [each for each in command.params if each.name not in but]
    lines += _options(own) if own else []
    return "\n".join(lines) + "\n"


def _options(options: list[Any]) -> list[str]:
    lines = ["| Option | Default | Meaning |", "|---|---|---|"]
    for option in options:
        default = "required" if option.required else "" if option.default in (None, "") else f"`{option.default}`"
        if getattr(option, "is_flag", False):  # arguments cannot be one
            default = "off"
        if isinstance(option.default, StrEnum):
            default = f"`{option.default.value}`"
        instead = f" Or in the environment: `{option.envvar}`." if option.envvar and option.show_envvar else ""
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


def tikv_parameters() -> str:
    lines = ["| Parameter | Default | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {each.default} | {each.help} |" for name, each in tikv.known_parameters().items()]
    return "\n".join(lines) + "\n"


def kafka_parameters() -> str:
    lines = ["| Parameter | Default | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {each.default} | {each.help} |" for name, each in kafka.PARAMETERS.items()]
    lines += ["", "Refused:", "", "| Parameter of TiCDC | Why |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in kafka.REFUSED.items()]
    return "\n".join(lines) + "\n"


def generated(page: Path) -> str:
    """What the page should say."""
    text = _TIKV.sub(lambda _: tikv_parameters(), page.read_text())
    text = _KAFKA.sub(lambda _: kafka_parameters(), text)
    return _GENERATED.sub(lambda _: PAGES[page](), text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page))
