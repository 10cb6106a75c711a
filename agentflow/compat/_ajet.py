"""The `ajet` command: `agentflow train` with the printed options."""

import sys
from collections.abc import Sequence

from agentflow._arguments import CommandParser
from agentflow._secrets import hide_arguments


def ajet(arguments: Sequence[str] | None = None) -> int:
    """Run `ajet --conf FILE [--backbone verl|local|debug]` as `agentflow train`, and return its exit status.

    Further arguments are those of `agentflow train`. See docs/migrating-tuner.md.
    """
    from agentflow.cli import main

    parser = CommandParser(
        prog="ajet",
        description="Train an agent: `agentflow train` with the options that AgentJet prints.",
        epilog="Further arguments are those of `agentflow train`.",
        allow_abbrev=False,
    )
    parser.add_argument("--conf", metavar="FILE", help="settings file; same as --config FILE")
    parser.add_argument("--backbone", choices=("verl", "trinity", "local", "debug"), help="training backend")
    if arguments is None:
        hide_arguments(sys.argv)
    given, rest = parser.parse_known_args(arguments)
    if given.backbone == "trinity":
        parser.error(
            "trinity: there is no such backend; use --backbone=verl, and schedule.mode=async for streaming"
        )
    words = [] if given.conf is None else [f"--config={given.conf}"]
    words += [] if given.backbone is None else [f"--backbone={given.backbone}"]
    return main(["train", *words, *rest])
