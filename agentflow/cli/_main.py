"""Argument parsing and dispatch; the module of a command is imported when the command is called."""

import argparse
import gc
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from agentflow import __version__
from agentflow._arguments import CommandParser
from agentflow._secrets import hide_arguments
from agentflow.cli._arguments import (
    count,
    describe_launch,
    describe_resume,
    describe_retry,
    describe_run,
    describe_settings,
    described,
)
from agentflow.cli._output import Exit
from agentflow.errors import ConfigurationError, exit_report

_HOMES = {"bundle": "export", "eval": "evaluate", "tune": "swarm"}
"""Modules of commands with another name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `agentflow COMMAND …` and return the exit status."""
    if arguments is None:
        hide_arguments(sys.argv)
    parser = command_parser()
    parsed = _parsed(parser, arguments)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return Exit.REFUSED
    return _run(parsed, parser.prog)


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = CommandParser(
        prog="agentflow",
        **described("Grow trees of agent trajectories and turn them into grounded training data."),
    )
    parser.add_argument("--version", action="version", version=f"agentflow {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, what, describe in (
        ("synth", "grow seeds into question-answer pairs", _describe_synth),
        ("audit", "check questions that came from elsewhere over their documents", _describe_audit),
        ("rollout", "work on tasks with the team or a single agent and score the answers", _describe_rollout),
        ("eval", "compare models on benchmarks; by default on the bundled samples", _describe_eval),
        (
            "launch",
            "run a synthesis, rollout or evaluation on several workers or machines, a training on one",
            describe_launch,
        ),
        ("train", "train a policy on tasks by reinforcement learning", _describe_train),
        ("tune", "train the model behind any agent on its own calls", _describe_tune),
        ("swarm", "train on episodes that clients play, or watch such a training", _describe_swarm),
        ("init", "write a minimal settings file and seeds, or an example", _describe_init),
        (
            "check",
            "try everything that a run needs: tools, seeds, models, reward; a training small",
            _describe_check,
        ),
        ("preview", "work on two seeds or tasks and show the result", _describe_preview),
        ("analyse", "print tables and draw a chart of finished rollouts", _describe_analyse),
        (
            "tokens",
            "show the tokens that a training used: mask, log-probabilities, advantages, forks",
            _describe_tokens,
        ),
        ("view", "show runs in a browser while they grow: trees, nodes, tokens, curves", _describe_view),
        ("bundle", "write runs as a page that opens without a server", _describe_bundle),
        ("export", "write a run as a data set for other trainers", _describe_export),
        ("data", "prepare training data, read tasks from any source", _describe_data),
        ("models", "list small real models, or fetch one from the package index", _describe_models),
        ("serve-model", "serve a model with vLLM until Ctrl-C", _describe_serve_model),
        ("serve-env", "serve tasks with their sandboxes to OpenEnv and verifiers", _describe_serve_env),
        ("ctl", "watch any run, and control a running synthesis", _describe_ctl),
        ("extras", "list the optional dependencies, or add some", _describe_extras),
        ("completion", "print the completion script of a shell", _describe_completion),
        ("doctor", "check what this machine can run, and how to fix the rest", _describe_doctor),
    ):
        describe(commands.add_parser(name, help=what, **described(what)))
    return parser


def synth(arguments: Sequence[str] | None = None, *, prog: str = "agentflow synth") -> int:
    """Run `agentflow synth …` and return the exit status."""
    if arguments is None:
        hide_arguments(sys.argv)
    what = "Grow seeds into question-answer pairs. Without arguments, the offline engine explores the bundled corpus."
    parser = CommandParser(prog=prog, **described(what))
    _describe_synth(parser)
    return _run(_parsed(parser, arguments, command="synth"), prog)


def parse_command(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments of a command, such as `["synth", "config.yaml"]`; errors end the program."""
    return _parsed(command_parser(), arguments)


def _parsed(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    **preset: str,
) -> argparse.Namespace:
    """Parse the arguments; settings may be anywhere among them, which argparse alone does not support."""
    if "" in (sys.argv[1:] if arguments is None else arguments):
        parser.error("an argument is empty; set the variable that it comes from, or leave it out")
    parsed, left = parser.parse_known_args(arguments, argparse.Namespace(**preset))
    if parsed.command and not preset:
        parser = CommandParser(prog=f"{parser.prog} {parsed.command}")  # an error names the command
    if left and (not hasattr(parsed, "settings") or any(word.startswith("-") for word in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if hasattr(parsed, "settings"):
        words = [*parsed.settings, *left]
        # Not with `Path`, which raises for a long text.
        files = [word for word in words if "=" not in word or os.path.isfile(word)]
        for word in files:
            if not os.path.splitext(word)[1] and not os.path.exists(word):
                parser.error(f"{word}: neither a settings file nor key=value")
        parsed.settings = [word for word in words if word not in files]
        if len(config_files := [*files, *([parsed.config] if parsed.config else [])]) > 1:
            parser.error(f"{' and '.join(config_files)}: only one settings file can be given")
        parsed.config = config_files[0] if config_files else None
    return parsed


def _describe_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="FOLDER", help="new or empty folder (default: this)"
    )
    what = "copy this example with everything it needs, instead of settings and seeds"
    parser.add_argument("--example", default="", metavar="NAME", help=what)
    parser.add_argument("--json", action="store_true", help="print the written files as JSON")


def _describe_check(parser: argparse.ArgumentParser) -> None:
    _describe_kind(parser)
    what = "leave out the trial of a training, which loads the policy and starts the engine"
    parser.add_argument("--quick", action="store_true", help=what)


def _describe_kind(parser: argparse.ArgumentParser) -> None:
    describe_settings(parser)
    what = "command that the settings are for (default: the one that knows most of them)"
    kinds = ("synth", "rollout", "eval", "train", "tune")
    parser.add_argument("--for", dest="kind", choices=kinds, help=what)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _describe_preview(parser: argparse.ArgumentParser) -> None:
    _describe_kind(parser)
    parser.add_argument(
        "--number", type=count, default=2, metavar="N", help="number of seeds or tasks (default: 2)"
    )


def _describe_synth(parser: argparse.ArgumentParser) -> None:
    describe_settings(parser)
    describe_run(parser, "report")
    describe_retry(parser)


def _describe_audit(parser: argparse.ArgumentParser) -> None:
    what = "JSONL file: question, answer, and optionally id, documents, steps with quotes"
    parser.add_argument("questions", metavar="QUESTIONS", help=what)
    describe_settings(parser)
    what = "folder, JSONL file or single document over which they are checked"
    parser.add_argument("--documents", required=True, metavar="FOLDER", help=what)
    parser.add_argument("--model", default="", metavar="NAME", help="model; same as model_name=NAME")
    parser.add_argument(
        "-o",
        "--output",
        default="audit_results",
        metavar="DIR",
        help="output directory (default: audit_results)",
    )
    describe_resume(parser)
    describe_retry(parser)
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")


def _describe_rollout(parser: argparse.ArgumentParser) -> None:
    describe_settings(parser)
    parser.add_argument(
        "--data", metavar="FILE", help="file or reader of tasks, or hub:OWNER/NAME; same as data_path=FILE"
    )
    parser.add_argument("--benchmark", metavar="NAME", help="benchmark; same as benchmark_name=NAME")
    describe_run(parser, "summary")
    describe_retry(parser)


def _describe_training(parser: argparse.ArgumentParser) -> None:
    describe_settings(parser)
    parser.add_argument(
        "--backbone",
        choices=("local", "verl", "trinity", "debug"),
        help="training backend; debug: print rollouts without training",
    )
    describe_run(parser, "outcome")


def _describe_train(parser: argparse.ArgumentParser) -> None:
    _describe_training(parser)
    what = "serve the engine at engine.base_url until Ctrl-C, for a training with the same settings"
    parser.add_argument("--serve", action="store_true", help=what)


def _describe_tune(parser: argparse.ArgumentParser) -> None:
    _describe_training(parser)


def _describe_swarm(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "wait for clients and train on the episodes that they play"
    _describe_training(actions.add_parser("serve", help=what, **described(what)))
    what = "print the state of a training until it is over"
    watch = actions.add_parser("watch", help=what, **described(what))
    watch.add_argument("url", metavar="URL", help="address of its gateway")
    watch.add_argument("--token", default="", help="token of a client (default: AGENTFLOW_SWARM_TOKEN)")
    watch.add_argument("--once", action="store_true", help="print it once")
    watch.add_argument("--json", action="store_true", help="print it as JSON")


def _describe_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", metavar="NAME", help="benchmark, file that describes one, or all")
    describe_settings(parser)
    where = (
        "file of its tasks, folder with the published files, or hub:OWNER/NAME (default: the bundled samples)"
    )
    parser.add_argument("--data", metavar="SOURCE", help=where)
    parser.add_argument("--limit", type=count, metavar="N", help="maximum number of tasks per benchmark")
    parser.add_argument("--models", default="", metavar="A,B", help="models, separated by commas")
    parser.add_argument("--samples", type=count, metavar="N", help="episodes per task")
    describe_resume(parser)
    describe_retry(parser)
    parser.add_argument("--json", action="store_true", help="print the summaries as JSON")


def _describe_analyse(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="output directories of rollouts, or parents of them"
    )
    parser.add_argument("--picture", metavar="FILE.svg", help="also write a chart")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")


def _describe_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="output directory of a training")
    parser.add_argument(
        "--episode", metavar="ID", help="show this episode token by token (default: list all)"
    )
    parser.add_argument("--agent", metavar="NAME", help="only this agent of its episodes")
    parser.add_argument("--step", type=count, metavar="N", help="only episodes of this step")
    parser.add_argument(
        "--html", metavar="FILE", help="also write a page of the selected episodes, token by token"
    )
    parser.add_argument("--json", action="store_true", help="print the figures and calls as JSON")


def _describe_view(parser: argparse.ArgumentParser) -> None:
    what = f"{_PLACE}, or ssh://[USER@]HOST/PATH (default: this folder)"
    parser.add_argument("place", nargs="?", default=".", metavar="PLACE", help=what)
    _describe_journal(parser)
    _describe_opening(parser)
    parser.add_argument("--json", action="store_true", help="print the link as JSON")
    parser.add_argument(
        "--until-eof", action="store_true", help="end with standard input, for programs that start it"
    )
    parser.add_argument(
        "--command",
        dest="remote_command",
        default="agentflow",
        metavar="COMMAND",
        help="AgentFlow on the machine of ssh://[USER@]HOST/PATH (default: agentflow)",
    )


def _describe_opening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)"
    )
    parser.add_argument("--no-open", action="store_true", help="print the link only")


def _describe_bundle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="PLACE", help=_PLACE)
    _describe_journal(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="new folder, or that of an earlier bundle"
    )
    what = "ids of the seeds to include (default: all)"
    parser.add_argument("--seeds", nargs="+", default=[], metavar="ID", help=what)
    parser.add_argument("--no-blobs", action="store_true", help="leave images out")
    parser.add_argument("--no-prompts", action="store_true", help="leave prompts of model calls out")
    parser.add_argument("--json", action="store_true", help="print the contents as JSON")


_PLACE = "output directory of a run, folder of several, journal file, or postgresql://…"


def _describe_journal(parser: argparse.ArgumentParser) -> None:
    what = "database that the settings of a run in PLACE name; without it, none is connected to"
    parser.add_argument("--journal", default="", metavar="URL", help=what)


def _describe_export(parser: argparse.ArgumentParser) -> None:
    what = "output directory of a synthesis, a rollout or a training; its journal; or postgresql://…"
    parser.add_argument("run", metavar="RUN", help=what)
    parser.add_argument(
        "--name", default="", metavar="NAME", help="name of the run, if the place has several"
    )
    parser.add_argument(
        "--format",
        required=True,
        metavar="FORMAT",
        help="format, such as trl-sft, or file.py:NAME of yours; docs/exports.md lists them",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for the data set")
    what = "all answers, correct ones, or the best of each seed or task (default: what the format needs)"
    parser.add_argument("--take", metavar="all|correct|best", help=what)
    what = "trimmed: the calls that an answer needs (default); full: the whole path"
    parser.add_argument("--path", default="trimmed", metavar="trimmed|full", help=what)
    what = "agent: each path as one agent that calls tools (default)"
    parser.add_argument("--view", default="agent", metavar="VIEW", help=what)
    what = "hold out a tenth of the seeds or tasks as validation"
    parser.add_argument("--split", action="store_true", help=what)
    what = "also upload the folder to the Hugging Face hub; a new data set is private"
    parser.add_argument("--push-to-hub", default="", metavar="OWNER/NAME", help=what)
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")


def _describe_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the models as JSON")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    what = "download a model, and write it as a folder in Hugging Face format"
    fetch = actions.add_parser("fetch", help=what, **described(what))
    fetch.add_argument("name", metavar="NAME", help="name of the model; agentflow models lists them")
    where = "new folder (default: one in the cache of this user)"
    fetch.add_argument("--to", metavar="FOLDER", help=where)
    what = "data type of the weights (default: float32)"
    fetch.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=what)
    what = "print the folder as JSON"
    fetch.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=what)


def _describe_serve_model(parser: argparse.ArgumentParser) -> None:
    what = "directory of its weights, or its name on the hub"
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help=what)
    describe_settings(parser)
    what = "install vLLM into an environment of its own first; without MODEL, only that"
    parser.add_argument("--install", choices=("cpu", "cuda"), help=what)
    what = "register it as a replica of its model in this database, postgresql://user@host/database"
    parser.add_argument("--register", default="", metavar="DATABASE", help=what)
    what = "base URL by which other machines reach it (default: http://HOST:PORT/v1)"
    parser.add_argument("--address", default="", metavar="URL", help=what)
    parser.add_argument("--json", action="store_true", help="print its address as JSON")


def _describe_serve_env(parser: argparse.ArgumentParser) -> None:
    describe_settings(parser)
    parser.add_argument("--data", metavar="FILE", help="file of tasks; same as data_path=FILE")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0: a free one (default: 8000)")
    what = (
        "token that requests must carry; 'none': no token (loopback only); default: a generated token; "
        "AGENTFLOW_ENV_TOKEN gives it unseen by other users"
    )
    parser.add_argument("--token", help=what)
    what = "seconds without a request after which a session is closed (default: 600)"
    parser.add_argument("--idle", type=float, default=600.0, metavar="SECONDS", help=what)
    parser.add_argument("--json", action="store_true", help="print its address as JSON")
    what = "print the folder of the package for an environment with verifiers, and end"
    parser.add_argument("--verifiers-package", action="store_true", help=what)


def _describe_data(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "mix search and math questions into parquet files for training, validation and test"
    prepare = actions.add_parser("prepare", help=what, **described(what))
    source = "file, or hub:OWNER/NAME[:CONFIGURATION[:SPLIT]]"
    prepare.add_argument(
        "--search", nargs="+", default=[], metavar="SOURCE", help=f"questions with answers: {source}"
    )
    prepare.add_argument(
        "--math", nargs="+", default=[], metavar="SOURCE", help=f"problems with results: {source}"
    )
    prepare.add_argument("--aime24", metavar="SOURCE", help="problems of AIME 2024, for the test set")
    prepare.add_argument(
        "--output", default="data", metavar="FOLDER", help="output directory (default: data)"
    )
    prepare.add_argument(
        "--validation",
        type=int,
        metavar="N",
        help="number of held-out questions (default: 10 %%, at most 200)",
    )
    prepare.add_argument("--limit", type=count, metavar="N", help="maximum number of questions per source")
    prepare.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of order and selection (default: 0)"
    )
    prepare.add_argument("--json", action="store_true", help="print the written files as JSON")
    what = "read tasks from any source, filter them, and write them as JSONL"
    read = actions.add_parser("read", help=what, **described(what))
    where = "file, benchmark, reader such as reasoning_gym:countdown?size=100, or module:function"
    read.add_argument("source", metavar="SOURCE", help=where)
    read.add_argument(
        "words",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings of the reader: columns.question=problem ids=row limit=100 filters=[near_duplicates]",
    )
    read.add_argument("-o", "--output", metavar="FILE", help="JSONL file to write (default: none)")
    read.add_argument(
        "--show", type=count, default=3, metavar="N", help="number of tasks to show (default: 3)"
    )
    read.add_argument("--json", action="store_true", help="print counts and the first tasks as JSON")


def _describe_ctl(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, what in (
        ("status", "print its progress"),
        ("watch", "show its progress until it ends, as the run itself does"),
        ("pause", "begin no new calls"),
        ("resume", "continue after a pause"),
        ("stop", "stop it cleanly"),
        ("add", "add seeds: texts or files"),
        ("open", "show it in a browser"),
    ):
        action = actions.add_parser(name, help=what, description=what)
        action.add_argument(
            "--dir", default="synthesis_results", metavar="OUTPUT_DIR", help="the run's output_dir"
        )
        action.add_argument("--url", default="", help="address of its control server, instead of --dir")
        action.add_argument(
            "--token", default="", help="token of that server (default: $AGENTFLOW_CONTROL_TOKEN)"
        )
        lines = "; a line for each change" if name == "watch" else ""
        action.add_argument("--json", action="store_true", help=f"print the answer as JSON{lines}")
        if name == "watch":
            help_text = "follow a run of any kind by its journal: its output_dir, a folder of several, or postgresql://…"
            action.add_argument("place", nargs="?", default="", metavar="PLACE", help=help_text)
        elif name not in ("add", "open"):
            help_text = "command all processes of a run by its journal: its output_dir, or postgresql://…"
            action.add_argument("place", nargs="?", default="", metavar="PLACE", help=help_text)
        if name not in ("add", "open"):
            _describe_journal(action)
        if name not in ("watch", "open"):
            what = "name of the run in that journal, or of the evaluation, if several are unfinished"
            action.add_argument("--run", default="", metavar="NAME", help=what)
        if name == "watch":
            action.add_argument(
                "--patience",
                type=float,
                default=60.0,
                metavar="SECONDS",
                help="time to wait for a restart of a run that was killed (default: 60)",
            )
        if name == "open":
            _describe_opening(action)
        if name == "add":
            what = "text, or JSONL or CSV file; the first may be a journal instead: postgresql://…"
            action.add_argument("seeds", nargs="+", metavar="SEED", help=what)
            action.add_argument(
                "--name", default="", help="name of the list: adding the same list again adds nothing"
            )


def _describe_extras(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the extras as JSON")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    what = "install extras into this interpreter"
    add = actions.add_parser("add", help=what, description=what)
    add.add_argument("names", nargs="+", metavar="NAME", help="names of extras")
    add.add_argument("--dry-run", action="store_true", help="print the command and exit")


def _describe_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell that loads the script")


def _describe_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="what to check: installation, runtimes, backends, models, networks, or one of them by name (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--live", action="store_true", help="call each service that has a key once, which can cost money"
    )
    parser.add_argument(
        "--record",
        default="live-answers.jsonl",
        metavar="FILE",
        help="append the answers of --live without keys (default: %(default)s)",
    )


_EXTRAS = {
    "models": "train",
    "train": "train",
    "tune": "train",
    "tokens": "train",
    "export": "train",
    "data": "data",
}
"""Extras that commands need."""


def _run(arguments: argparse.Namespace, prog: str) -> int:
    """Call the command; every error ends as one line and an exit status."""
    # Names may hold bytes that are no text, and a terminal may know few letters.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _check_directory()
        command = arguments.command.replace("-", "_")
        home = _load(f"agentflow.cli._{_HOMES.get(command, command)}")
        return getattr(home, f"run_{command}")(arguments)
    except SystemExit:
        raise
    except BaseException as error:  # boundary: the user gets one line, whatever was raised
        report = exit_report(
            error, what=f"{prog} {arguments.command}", extra=_EXTRAS.get(arguments.command, "")
        )
    if report.message:
        with suppress(BrokenPipeError):
            sys.stderr.write(f"{prog}: {report.message}\n")
    if report.message and getattr(arguments, "json", False):
        sys.stdout.write(json.dumps({"error": report.message, "status": report.status}) + "\n")
    return report.status


def _load(name: str) -> ModuleType:
    """Import a module. Imports leave no garbage, so the collector waits: it would take a fifth of their time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_on:
            gc.enable()


def _check_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigurationError("the working directory was removed; change to another one") from None
