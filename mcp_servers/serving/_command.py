"""The command line: `python -m mcp_servers BACKEND... [--http HOST:PORT] [--token TOKEN|none] [--config FILE]`."""

import argparse
import logging
import sys
from collections.abc import Sequence

import anyio

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.settings import load_settings
from agentflow.telemetry import Level, configure_logging
from mcp_servers.core._registry import BACKENDS
from mcp_servers.serving._serve import serve
from mcp_servers.serving._settings import ServerSettings

__all__ = ["main", "set_up_logging"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a server until it is told to stop. The exit status: 0, 1 if it failed, 2 if its settings can't be used."""
    given = _parser().parse_intermixed_args(arguments)
    try:
        settings = load_settings(ServerSettings, given.config, _overrides(given))
        set_up_logging(settings.log_level)
        anyio.run(serve, settings, _wants_http(given, settings))
    except ConfigurationError as error:
        return _complain(error, 2)
    except AgentFlowError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:  # before it served: afterwards signals stop it in order
        return 130
    return 0


def set_up_logging(level: Level) -> None:
    """Our own words at the level asked for; of others only what may need a hand.

    What libraries say below that matters to themselves, and holds names of connections and whole messages.
    """
    configure_logging(Level.WARNING)
    for package in ("agentflow", "mcp_servers", "runtimes"):
        logging.getLogger(package).setLevel(level.name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mcp_servers",
        description="Serve backends over MCP: on standard input and output, or over HTTP.",
        epilog=f"Backends: {', '.join(BACKENDS)}, or package.module:Class. "
        "A word with '=' sets a setting: sessions.idle_seconds=600.",
    )
    parser.add_argument(
        "words", nargs="*", metavar="BACKEND", help="what to serve, beside the configuration's"
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="serve streamable HTTP there")
    parser.add_argument("--host", help="serve streamable HTTP on this address")
    parser.add_argument("--port", help="serve streamable HTTP on this port; 0: any free one")
    parser.add_argument("--workers", metavar="N", help="serve with that many processes behind the one port")
    parser.add_argument(
        "--token", help="the bearer token; 'none': no token (loopback only); default: one is made"
    )
    parser.add_argument("--config", metavar="FILE", help="a configuration file, YAML or JSON")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    return parser


def _overrides(given: argparse.Namespace) -> list[str]:
    """What the command line sets, as `key=value` words."""
    words: list[str] = [word for word in given.words if "=" in word]
    # A mapping merges with the one in the file, so that the settings given there stay.
    words += [f"backends={{{word}: {{}}}}" for word in given.words if "=" not in word]
    host, port = _address(given.http) if given.http else (None, None)
    for key, value in (
        ("host", given.host or host),
        ("port", given.port or port),
        ("workers", given.workers),
        ("token", given.token),
        ("log_level", given.log_level),
    ):
        if value is not None:
            words.append(f"{key}={value}")
    return words


def _address(text: str) -> tuple[str | None, str | None]:
    """`HOST:PORT`, `HOST:`, `:PORT` or `PORT`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or None, port or None


def _wants_http(given: argparse.Namespace, settings: ServerSettings) -> bool:
    named = (given.http, given.host, given.port)
    return any(value is not None for value in named) or bool(settings.model_fields_set & {"host", "port"})


def _complain(error: AgentFlowError, status: int) -> int:
    sys.stderr.write(f"mcp_servers: {error}\n")
    return status
