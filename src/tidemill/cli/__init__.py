"""The command line: ``noun verb``, results on stdout, the rest on stderr; it holds no logic of its own.

Exit codes: 0 done, 1 failed, 2 misused. Signals are looked after before anything else is imported (``stopping``).
"""

import sys

from tidemill.cli.stopping import current, supervise

_GRACEFUL = {"run", "consume", "upstream", "server"}  # they stop by themselves


def main() -> None:
    """The entry point: an error of ours becomes one sentence and an exit code, never a traceback."""
    supervise(_run, is_graceful=bool({*sys.argv[1:2]} & _GRACEFUL))


def _run() -> None:
    from tidemill.spark import scratch

    with scratch.all_in_process_folder(), current().on_abandon(scratch.remove_folder):
        from tidemill.cli.commands import run_app

        run_app()
