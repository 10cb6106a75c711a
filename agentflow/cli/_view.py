"""`agentflow view`: serve a page about runs on this machine until Ctrl-C."""

import argparse
import json
import os
import signal
import sys
import webbrowser
from threading import Thread

import anyio

from agentflow.cli._output import Exit
from agentflow.dashboard import ServedView, open_view
from agentflow.inspection import RunCollection, open_runs


def run_view(given: argparse.Namespace) -> int:
    """Serve the page and return the exit status.

    :raises AgentFlowError: one line, if it can't be served.
    """
    return view_runs(given.place, port=given.port, opens=not given.no_open, as_json=given.json)


def view_runs(place: str, *, port: int = 0, opens: bool = True, as_json: bool = False) -> int:
    """Serve a page about the runs of a place until Ctrl-C, and open it in a browser if there is one.

    :raises AgentFlowError: one line, if it can't be served.
    """
    with open_runs(place) as runs:
        known = runs.runs()
        path = f"/r/{known[0].id}" if len(known) == 1 else "/"
        return anyio.run(_serve, runs, path, port, opens, as_json)


async def _serve(runs: RunCollection, path: str, port: int, opens: bool, as_json: bool) -> int:
    def show(view: ServedView) -> None:
        link = view.link(path)
        known = {"url": view.url, "link": link, "pid": os.getpid()}
        sys.stdout.write((json.dumps(known) if as_json else f"view: {link}") + "\n")
        sys.stdout.flush()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_view(runs, port=port, on_used=show) as view:
            show(view)
            if opens and _has_browser():
                # Some browsers block their caller until they are closed.
                Thread(target=webbrowser.open, args=(view.link(path),), daemon=True).start()
            async for _ in signals:
                break
    return Exit.DONE


def _has_browser() -> bool:
    """Return whether a window can open; a browser for terminals would take this one."""
    windows = sys.platform in ("darwin", "win32")
    return windows or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
