"""From arguments to a command. A command's module is loaded when it is called."""

import argparse
import json
import sys
from collections.abc import Sequence

from agentflow.cli._exits import EXITS, Exit
from agentflow.errors import AgentFlowError, ConfigurationError

__all__ = ["main", "synth"]


def main(arguments: Sequence[str] | None = None) -> int:
    """`agentflow COMMAND …`; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="agentflow",
        description="Grow trees of agent trajectories and turn them into grounded training data.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, what, describe in (
        ("synth", "grow seeds into question-answer pairs", _describe_synth),
        ("ctl", "watch and steer a run that is going on", _describe_ctl),
        ("doctor", "try what this machine can run, and say what mends the rest", _describe_doctor),
    ):
        describe(
            commands.add_parser(
                name,
                help=what,
                description=what,
                epilog=EXITS,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return _run(parser.parse_args(arguments), parser.prog)


def synth(arguments: Sequence[str] | None = None, *, prog: str = "agentflow synth") -> int:
    """`agentflow synth …`; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Grow seeds into question-answer pairs. Without arguments: the offline engine on the bundled corpus.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _describe_synth(parser)
    return _run(parser.parse_args(arguments, argparse.Namespace(command="synth")), prog)


def _describe_synth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings, over those of the file")
    parser.add_argument("--config", metavar="FILE", help="a file of settings, YAML or JSON")
    parser.add_argument(
        "--resume",
        choices=("auto", "always", "never"),
        default="auto",
        help="whether to go on with a run that exists; auto: if there is one (default)",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="show the resolved settings and do nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _describe_ctl(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, what in (
        ("status", "how far it is"),
        ("pause", "begin nothing new"),
        ("resume", "go on"),
        ("stop", "end it cleanly"),
        ("add", "add seeds: texts, or files of them"),
    ):
        action = actions.add_parser(name, help=what, description=what)
        action.add_argument(
            "--dir", default="synthesis_results", metavar="OUTPUT_DIR", help="the run's output_dir"
        )
        action.add_argument("--json", action="store_true", help="print what it answers as JSON")
        if name == "add":
            action.add_argument("seeds", nargs="+", metavar="SEED", help="a text, or a JSONL or CSV file")
            action.add_argument(
                "--name", default="", help="a name for the list: the same list again then adds nothing"
            )


def _describe_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="what to try: runtimes, backends, models, networks, or one of them by its name; by default all",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _run(given: argparse.Namespace, prog: str) -> int:
    try:
        if given.command == "synth":
            from agentflow.cli._synth import run_synth

            return run_synth(given)
        if given.command == "doctor":
            from agentflow.cli._doctor import run_doctor

            return run_doctor(given)
        from agentflow.cli._ctl import run_ctl

        return run_ctl(given)
    except ConfigurationError as error:
        return _complain(given, prog, error, Exit.REFUSED)
    except AgentFlowError as error:
        return _complain(given, prog, error, Exit.FAILED)
    except KeyboardInterrupt:  # before it listens to signals: afterwards they stop it in order
        return Exit.INTERRUPTED


def _complain(given: argparse.Namespace, prog: str, error: AgentFlowError, status: Exit) -> int:
    sys.stderr.write(f"{prog}: {' '.join(str(error).split())}\n")
    if given.json:
        sys.stdout.write(json.dumps({"error": str(error), "status": int(status)}) + "\n")
    return status
