"""From arguments to a command. A command's module is loaded when it is called."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module

from agentflow.cli._output import EXITS, Exit
from agentflow.errors import AgentFlowError, ConfigurationError

__all__ = ["main", "synth"]


_HOMES = {"eval": "evaluate"}
"""Commands whose module is called otherwise."""


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
        (
            "rollout",
            "work on tasks with the team or a single agent, and score the answers",
            _describe_rollout,
        ),
        (
            "eval",
            "benchmarks and models in one table; the bundled samples where there is no data",
            _describe_eval,
        ),
        ("train", "train a policy on tasks: episodes, a step, new weights, again", _describe_train),
        ("analyse", "tables and a picture of finished rollouts", _describe_analyse),
        ("data", "training data from published questions", _describe_data),
        ("serve-model", "serve a model by vLLM, until Ctrl-C", _describe_serve_model),
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
    return _run(_parsed(parser, arguments), parser.prog)


def synth(arguments: Sequence[str] | None = None, *, prog: str = "agentflow synth") -> int:
    """`agentflow synth …`; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Grow seeds into question-answer pairs. Without arguments: the offline engine on the bundled corpus.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _describe_synth(parser)
    return _run(_parsed(parser, arguments, command="synth"), prog)


def _parsed(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    **known: str,
) -> argparse.Namespace:
    """The arguments; settings may stand anywhere among them, which argparse alone does not see."""
    given, left = parser.parse_known_args(arguments, argparse.Namespace(**known))
    if left and (
        not hasattr(given, "settings") or any(word.startswith("-") or "=" not in word for word in left)
    ):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        given.settings = [*given.settings, *left]
    return given


def _describe_synth(parser: argparse.ArgumentParser) -> None:
    _describe_settings(parser)
    _describe_resume(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="show the resolved settings and do nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _describe_rollout(parser: argparse.ArgumentParser) -> None:
    _describe_settings(parser)
    parser.add_argument("--data", metavar="FILE", help="a file of tasks; the same as data_path=FILE")
    parser.add_argument("--benchmark", metavar="NAME", help="a benchmark; the same as benchmark_name=NAME")
    _describe_resume(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="show the resolved settings and do nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _describe_train(parser: argparse.ArgumentParser) -> None:
    _describe_settings(parser)
    parser.add_argument(
        "--backbone",
        choices=("local", "verl", "debug"),
        help="what makes the steps; debug: none are made, rollouts are shown",
    )
    _describe_resume(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="show the resolved settings and do nothing"
    )
    parser.add_argument("--json", action="store_true", help="print what it gave as JSON")


def _describe_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", metavar="NAME", help="a benchmark, a file that describes one, or all")
    _describe_settings(parser)
    parser.add_argument("--data", metavar="FILE", help="its tasks; by default the bundled samples")
    parser.add_argument("--limit", type=_count, metavar="N", help="tasks of each benchmark at most")
    parser.add_argument("--models", default="", metavar="A,B", help="models, one after the other")
    parser.add_argument("--samples", type=_count, metavar="N", help="episodes of each task")
    _describe_resume(parser)
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")


def _describe_analyse(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folders of rollouts, or above them")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw them too")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")


def _describe_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings, over those of the file")
    parser.add_argument("--config", metavar="FILE", help="a file of settings, YAML or JSON")


def _describe_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume",
        choices=("auto", "always", "never"),
        default="auto",
        help="whether to go on with a run that exists; auto: if there is one (default)",
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _describe_serve_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder with its weights, or a name on the hub")
    _describe_settings(parser)
    parser.add_argument("--json", action="store_true", help="print where it is served as JSON")


def _describe_data(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "mix search and math questions to parquet, to train, to validate and to test with"
    prepare = actions.add_parser(
        "prepare",
        help=what,
        description=what,
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = "a file, or hub:OWNER/NAME[:CONFIGURATION[:SPLIT]]"
    prepare.add_argument(
        "--search", nargs="+", default=[], metavar="SOURCE", help=f"questions with answers: {source}"
    )
    prepare.add_argument(
        "--math", nargs="+", default=[], metavar="SOURCE", help=f"problems with results: {source}"
    )
    prepare.add_argument("--aime24", metavar="SOURCE", help="the problems of AIME 2024, to test with")
    prepare.add_argument(
        "--output", default="data", metavar="FOLDER", help="where the files go (default: data)"
    )
    prepare.add_argument(
        "--validation", type=int, metavar="N", help="questions held out (default: a tenth, 200 at most)"
    )
    prepare.add_argument("--limit", type=_count, metavar="N", help="questions of each source at most")
    prepare.add_argument(
        "--seed", type=int, default=0, metavar="N", help="decides order and choice (default: 0)"
    )
    prepare.add_argument("--json", action="store_true", help="print what was written as JSON")


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
        command = given.command.replace("-", "_")
        home = import_module(f"agentflow.cli._{_HOMES.get(command, command)}")
        return getattr(home, f"run_{command}")(given)
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
