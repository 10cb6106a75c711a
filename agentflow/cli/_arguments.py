"""Descriptions of arguments that several commands share, and those of `launch`."""

import argparse
from collections.abc import Mapping
from typing import TypedDict

from agentflow.cli._output import EXITS


class _Description(TypedDict):
    """Arguments of a parser."""

    description: str
    epilog: str
    formatter_class: type[argparse.HelpFormatter]


def described(what: str) -> _Description:
    """Return the description of a parser."""
    return {
        "description": what,
        "epilog": EXITS,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def describe_settings(parser: argparse.ArgumentParser) -> None:
    """Add the settings file and settings."""
    what = "settings file, YAML or JSON, and settings that override it"
    complete(
        parser.add_argument("settings", nargs="*", default=[], metavar="CONFIG|key=value", help=what), _FILE
    )
    complete(parser.add_argument("--config", metavar="FILE", help="the settings file as an option"), _FILE)


_FILE = {"bash": "_shtab_compgen_files", "zsh": "_files"}
"""Completion by names of files; fish does it anyway."""


def complete(action: argparse.Action, by: Mapping[str, str]) -> None:
    """Complete an argument in shells."""
    # The attribute that shtab reads.
    setattr(action, "complete", by)  # noqa: B010


def describe_resume(parser: argparse.ArgumentParser) -> None:
    """Add the handling of an existing run."""
    parser.add_argument(
        "--resume",
        choices=("auto", "always", "never"),
        default="auto",
        help="resume an existing run; auto: if there is one (default)",
    )


def describe_retry(parser: argparse.ArgumentParser) -> None:
    """Add the handling of failed seeds or tasks."""
    what = "work again on seeds or tasks that failed for a reason that may pass: unusable answers, an outage, a time limit"
    parser.add_argument("--retry-failed", action="store_true", help=what)


def describe_run(parser: argparse.ArgumentParser, report: str) -> None:
    """Add the options of all runs."""
    describe_resume(parser)
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and exit")
    parser.add_argument("--json", action="store_true", help=f"print the {report} as JSON")


def count(text: str) -> int:
    """Return a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


LAUNCHED = ("synth", "rollout", "eval", "train")
"""Commands that can be launched."""


def describe_launch(parser: argparse.ArgumentParser) -> None:
    """Add the place and the command of a launch."""
    what = "local: processes of this machine; ray://HOST:PORT, HOST:PORT or auto: a Ray cluster; k8s: print a Job"
    parser.add_argument("--on", required=True, metavar="PLACE", help=what)
    what = "number of run processes, on each machine of a cluster (default: 1)"
    parser.add_argument("--workers", type=count, default=1, metavar="N", help=what)
    what = "folder that Ray copies to each machine, where relative paths of the settings are looked up"
    parser.add_argument("--working-dir", metavar="DIR", help=what)
    what = "only machines with this Ray label"
    parser.add_argument("--label", metavar="KEY=VALUE", help=what)
    what = "image of the workers, for k8s"
    parser.add_argument("--image", default="agentflow", metavar="IMAGE", help=what)
    what = "Secret with AGENTFLOW_JOURNAL and keys of models, for k8s"
    parser.add_argument("--secret", default="agentflow", metavar="NAME", help=what)
    what = f"{', '.join(LAUNCHED)} with its arguments; all but train need journal=postgresql://…"
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help=what)
