"""Sinks with something in between: a half of a sink does as it is told, but for what a test is about."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidemill.sinks import SinkOptions


class Around:
    """Passes everything on to a half of a sink. Derived classes have what they change."""

    def __init__(self, half: Any) -> None:
        self.half = half

    def __getattr__(self, name: str) -> Any:
        return getattr(self.half, name)


def _as_it_is(half: Any) -> Any:
    return half


@dataclass(frozen=True)
class OptionsAround:
    """Options of a sink whose halves come wrapped; for ``Changefeed(…, sink=…)``."""

    options: SinkOptions
    owner: Callable[[Any], Any] = _as_it_is
    writer: Callable[[Any], Any] = _as_it_is

    def __getattr__(self, name: str) -> Any:
        return getattr(self.options, name)

    def named(self, changefeed: str, cluster_id: int) -> "OptionsAround":
        return replace(self, options=self.options.named(changefeed, cluster_id))

    def open_owner(self, *words: Any, **more: Any) -> Any:
        return self.owner(self.options.open_owner(*words, **more))

    def open_writer(self, *words: Any, **more: Any) -> Any:
        return self.writer(self.options.open_writer(*words, **more))


def around(owner: Callable[[Any], Any] = _as_it_is, writer: Callable[[Any], Any] = _as_it_is) -> Any:
    """For ``Changefeed``: the halves of its sink, each in what the caller puts around it."""
    return lambda options: OptionsAround(options, owner, writer)


@dataclass(frozen=True)
class OptionsOf:
    """Options whose halves are an object of the test's own, whatever the URI says but for its traits."""

    options: SinkOptions
    halves: Callable[[], Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.options, name)

    def named(self, changefeed: str, cluster_id: int) -> "OptionsOf":
        return self

    def open_owner(self, *words: Any, **more: Any) -> Any:
        return self.halves()

    def open_writer(self, *words: Any, **more: Any) -> Any:
        return self.halves()


def instead(halves: Callable[[], Any]) -> Any:
    """For ``Changefeed``: both halves of its sink are what ``halves`` returns."""
    return lambda options: OptionsOf(options, halves)
