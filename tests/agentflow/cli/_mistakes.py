"""Typical mistakes and plain uses of every command, as tables.

`python -m tests.agentflow.cli._mistakes` runs both in one process of any installation and prints the results as JSON.
"""

import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.behaviour._markdown import snippets
from tests.behaviour._tree import ROOT

SEED = '{"content": "Explore the Grey Petrel"}\n'
TASK = '{"question": "Where was the captain born?", "answer": "Tollen Quay"}\n'
LATIN = os.fsdecode(b"\xff")
"""Name that is not UTF-8."""
GONE = '{"url": "http://127.0.0.1:9/mcp", "token": "x"}'


@dataclass(frozen=True, slots=True)
class Case:
    """Call of a command, and its end."""

    arguments: Sequence[str]
    """Arguments, starting with the command; `mcp_servers` stands for `python -m mcp_servers`."""
    text: str
    """Part of the error line; of the output, if the status is 0."""
    status: int = 2
    """Exit status."""
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    """Files of the working directory."""
    needs: str = ""
    """Extra without which the command only names that extra."""

    @property
    def name(self) -> str:
        """Name in a report."""
        return " ".join(self.arguments).encode("ascii", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a call."""

    status: int
    """Exit status."""
    out: str
    """Standard output."""
    err: str
    """Standard error."""
    lost: list[str]
    """Files that are gone or changed."""


def _seeds(text: str | bytes, *more: str) -> tuple[Sequence[str], Mapping[str, str | bytes]]:
    return ("synth", "seeds_file=seeds.jsonl", *more), {"seeds.jsonl": text}


NUMBERS = {
    "9" * 5000: "a number of 5,000 digits; 250 are the most",
    "[" * 900 + "]" * 900: "nested deeper than 100 levels; write it flatter",
    "[" * 100_000: "nested deeper than 100 levels; write it flatter",
    "NaN": "not JSON: NaN is no number; write null, or leave it out",
    "1e999": "the number 1e999 is out of range",
    '"\\ud800"': "a text has half of a surrogate pair",
    '"\0"': "not JSON: Invalid control character",
    '1, "a": 2': "a is given twice; remove one of them",
}
"""Values that JSON can write and no run can use, each with its error."""


def _tasks(*more: str) -> tuple[Sequence[str], Mapping[str, str | bytes]]:
    return ("rollout", "--data", "tasks.jsonl", *more), {"tasks.jsonl": TASK}


def _case(
    given: tuple[Sequence[str], Mapping[str, str | bytes]], text: str, status: int = 2, needs: str = ""
) -> Case:
    return Case(given[0], text, status, given[1], needs)


_ctl = partial(Case, ("ctl", "status", "--dir", "out"), status=1)
MISTAKES: Sequence[Case] = (
    # Settings files
    Case(("synth", "--config", "missing.yaml"), "missing.yaml: no such file"),
    Case(("synth", "--config", "c.yaml"), "c.yaml:2: not YAML", files={"c.yaml": "a: [1\nb: 2"}),
    Case(("synth", "--config", "c.yaml"), "write `key: value` lines", files={"c.yaml": "- a\n"}),
    Case(("synth", "--config", "c.json"), "c.json:1: not JSON", files={"c.json": '{"a": 1,}'}),
    Case(("synth", "--config", "folder"), "folder: can't be read: Is a directory", files={"folder/x": ""}),
    Case(("synth", "--config", "c.yaml"), "save it as UTF-8", files={"c.yaml": b"task: \xe9\n"}),
    Case(("synth", "--config", f"{LATIN}.yaml"), "\\udcff.yaml: no such file"),
    Case(("synth", "--config", "c.yaml"), "${NOWHERE} is not set", files={"c.yaml": "api_key: ${NOWHERE}"}),
    # Settings
    Case(("synth", "max_dept=3"), "max_dept is unknown; did you mean max_depth?"),
    Case(("synth", "max_depth=abc"), "max_depth: input should be a valid integer"),
    Case(("synth", "max_depth=-1"), "max_depth: input should be greater than or equal to 1"),
    Case(("synth", "max_depth"), "max_depth: neither a settings file nor key=value"),
    Case(("synth", "--max-depth", "3"), "unrecognized arguments: --max-depth"),
    Case(("synth", "available_tools=rag_search"), "available_tools: input should be a valid list"),
    Case(("synth", "resource_types=[ragg]"), "ragg is unknown; did you mean rag?"),
    Case(
        ("synth", "resource_init_configs.knowledge_bas.index_path=docs"),
        "knowledge_bas is unknown; did you mean knowledge_base?",
    ),
    Case(("synth", "selection_strategy=novlty"), "novlty is unknown; did you mean novelty?"),
    Case(("synth", "selection_strategy=mine:pick"), "mine: there is no such module"),
    Case(("init",), "config.yaml: exists already", files={"config.yaml": "mine"}),
    Case(("check", "missing.yaml"), "missing.yaml: no such file"),
    Case(
        ("check", "c.yaml"), "max_dept is unknown; did you mean max_depth?", files={"c.yaml": "max_dept: 3"}
    ),
    Case(("preview", "c.yaml"), "seeds.jsonl: no such file", files={"c.yaml": "seeds_file: seeds.jsonl"}),
    Case(("synth", "a.yaml", "--config", "b.yaml"), "a.yaml and b.yaml: only one settings file can be given"),
    Case(("synth", "imports=[tools.py]"), "imports: tools.py: there is no such file"),
    Case(
        ("rollout", "imports=[tools.py]"),
        "tools.py: raised when it was imported, in tools.py:1: ZeroDivisionError",
        files={"tools.py": "1 / 0"},
    ),
    Case(("synth", f"seed_description={'long ' * 1000}", "max_depth=0"), "max_depth: input should be"),
    Case(("rollout", "--data", ""), "an argument is empty"),
    Case(("eval", ""), "an argument is empty"),
    # Seeds
    Case(("synth", "seeds_file=nope.jsonl"), "nope.jsonl: no such file; name a JSONL file of seeds"),
    Case(("synth", f"seeds_file={LATIN}.jsonl"), "\\udcff.jsonl: no such file"),
    _case(_seeds('{"content": 1\n'), "seeds.jsonl:1: not JSON"),
    _case(_seeds('{"text": "a"}\n'), "seeds.jsonl:1: has no content; add a text under content"),
    _case(_seeds(b'{"content": "\xe9"}\n'), "seeds.jsonl: not UTF-8 text; save it as UTF-8"),
    _case(_seeds(""), "seeds.jsonl has no seed"),
    Case(("synth", "seeds_file=s.csv"), "s.csv:1: has no column content", files={"s.csv": "a,b\n1,2\n"}),
    _case(_seeds(SEED, "available_tools=[rag_serch]"), "Did you mean 'rag:search'?"),
    _case(_seeds(SEED, "resource_init_configs.knowledge_base.index_path=nodocs"), "nodocs"),
    *(
        _case(_seeds(f'{SEED}{{"content": "b", "kwargs": {{"a": {value}}}}}\n'), f"seeds.jsonl:2: {text}")
        for value, text in NUMBERS.items()
    ),
    *(
        Case(
            ("rollout", "--data", "t.jsonl"),
            f"t.jsonl:2: {text}",
            files={"t.jsonl": f'{TASK}{{"a": {value}}}\n'},
        )
        for value, text in NUMBERS.items()
    ),
    Case(
        ("synth", "seeds_file=s.csv"),
        "s.csv:2: not CSV: field larger",
        files={"s.csv": f"content\n{'x' * 200_000}\n"},
    ),
    Case(
        ("synth", "c.yaml"),
        "c.yaml:1: a number of 5,000 digits",
        files={"c.yaml": f"max_depth: {'9' * 5000}\n"},
    ),
    Case(
        ("synth", "c.yaml"),
        "c.yaml:1: a number of 4,002 digits",
        files={"c.yaml": f"max_depth: 0x{'f' * 4000}\n"},
    ),
    Case(("synth", "c.yaml"), "c.yaml: nested too deeply", files={"c.yaml": f"task: {'[' * 10_000}"}),
    # Models
    Case(("synth", "base_url=127.0.0.1:8000/v1"), "base_url: no URL with a scheme; write it as http://"),
    Case(("synth", "model_name=gpt-4.1"), "set OPENAI_API_KEY or the setting api_key"),
    Case(
        ("synth", "model_name=x", "base_url=http://127.0.0.1:9/v1", "max_cost=1"), "max_cost needs the prices"
    ),
    Case(
        ("synth", "model_name=x", "base_url=http://127.0.0.1:9/v1", "number_of_seed=1"),
        "can't be reached: no answer: Connection refused",
        status=3,
    ),
    # Output and journal
    Case(("synth", "output_dir=out"), "out is not a directory; name another", files={"out": "mine"}),
    Case(("synth", "output_dir=/proc/x"), "/proc/x is a directory of the system; name a directory"),
    Case(("synth", f"output_dir={LATIN}"), "is not UTF-8 text; rename it"),
    Case(("synth", "--resume", "always"), "there is no run 'synthesis' in synthesis_results to resume"),
    Case(("synth", "--resume", "perhaps"), "invalid choice: 'perhaps'"),
    Case(("synth", "journal=nowhere/journal.db"), "write sqlite:///FILE or postgresql://"),
    # Rollouts and evaluations
    Case(("rollout", "--data", "nope.jsonl"), "nope.jsonl: no such file"),
    Case(("rollout", "--data", "t.jsonl"), "t.jsonl:1: not JSON", files={"t.jsonl": '{"question"\n'}),
    Case(
        ("rollout", "--data", "t.jsonl"), "t.jsonl:1: question: is missing", files={"t.jsonl": '{"q": 1}\n'}
    ),
    Case(("rollout", "--data", "t.parquet"), "t.parquet", files={"t.parquet": "PAR1"}, needs="data"),
    Case(("rollout", "--benchmark", "hotpott"), "hotpott"),
    _case(_tasks("metric=exactmatch"), "did you mean exact_match?"),
    _case(_tasks("evaluation_metric=exactmatch"), "did you mean exact_match?"),
    _case(_tasks("metric=mine:reward"), "mine: there is no such module"),
    _case(_tasks("agent=teem"), "there is no 'teem'; choose team, single or module:function"),
    _case(_tasks("available_tools=[web_serch]"), "Did you mean 'web:search'?"),
    _case(_tasks("available_tools=[web_search]"), "no search engine is configured: set SERPER_API_KEY"),
    Case(("eval",), "the following arguments are required: NAME"),
    Case(("eval", "hotpott"), "hotpott"),
    Case(("eval", "mine.yaml"), "mine.yaml: no such file; name a benchmark"),
    Case(("eval", "bamboogle", "--limit", "0"), "argument --limit: '0' is no number from 1 on"),
    Case(("eval", "bamboogle", "--limit", "1", "--models", "openai/gpt-4.1"), "set OPENAI_API_KEY"),
    Case(("eval", "bamboogle", "--data", "nope.csv"), "nope.csv: no such file"),
    Case(("eval", "bamboogle", "available_tools=[rag_serch]"), "Did you mean 'rag:search'?"),
    Case(("analyse",), "the following arguments are required: FOLDER"),
    Case(("analyse", "nowhere"), "nowhere: no such directory; name the output_dir of a rollout"),
    Case(("analyse", "empty"), "empty: contains no summary.json", files={"empty/x": ""}),
    # Training and serving
    Case(("train", "--config", "nope.yaml"), "nope.yaml: no such file", needs="train"),
    Case(("train", "loss.name=grop"), "grop", needs="train"),
    Case(("train", "--backbone", "magic"), "invalid choice: 'magic'"),
    Case(("data",), "the following arguments are required: ACTION"),
    Case(("data", "prepare", "--search", "nope.jsonl"), "nope.jsonl: no such file"),
    Case(("serve-model",), "name a model: agentflow serve-model MODEL"),
    Case(("serve-model", "x", "port=99999"), "port: input should be less than or equal to 65535"),
    Case(("serve-model", "x", "python=/nowhere/python"), "there is no /nowhere/python; create it"),
    Case(
        ("serve-model", "x", f"python={sys.executable}"), "has no vLLM; `agentflow serve-model --install cpu`"
    ),
    # The rest
    Case(("ctl",), "the following arguments are required: ACTION"),
    Case(("ctl", "status"), "no run is active in synthesis_results", status=1),
    _ctl("out/control.json: damaged", files={"out/control.json": "{"}),
    _ctl("no run of this machine responds at http://127.0.0.1:9/mcp", files={"out/control.json": GONE}),
    _ctl("out/control.json: damaged", files={"out/control.json": f'{{"url": {"[" * 9000}'}),
    *(
        Case(("analyse", "out"), f"not a summary of a rollout: {text}", files={"out/summary.json": summary})
        for summary, text in (
            (f'{{"x": {"[" * 9000}', "nested deeper"),
            (f'{{"tasks": {"9" * 5000}}}', "Integer value out of range"),
            (b'{"metric": "\xff"}', "not UTF-8 text"),
        )
    ),
    Case(("ctl", "add", "--dir", "out"), "the following arguments are required: SEED"),
    Case(("ctl", "add", "--dir", "out", "s.jsonl"), "s.jsonl:1: not JSON", files={"s.jsonl": "{"}),
    Case(("extras", "add"), "the following arguments are required: NAME"),
    Case(("extras", "add", "wbe"), "'wbe' is unknown; did you mean web?"),
    Case(("doctor", "brwser"), "'brwser' is unknown. Did you mean 'browser'?"),
    Case(("completion", "csh"), "invalid choice: 'csh' (choose from 'bash', 'zsh', 'fish')"),
    Case(("synht",), "invalid choice: 'synht' (choose from 'synth'"),
    Case(("--verison",), "unrecognized arguments: --verison"),
    # Servers
    Case(("mcp_servers",), "name at least one backend to serve"),
    Case(("mcp_servers", "bahs"), "bahs is unknown; did you mean bash?"),
    Case(("mcp_servers", "mine:Backend"), "mine: there is no such module"),
    Case(("mcp_servers", "bash", "--http", "nowhere"), "port: input should be a valid integer"),
    Case(("mcp_servers", "bash", "--http", "127.0.0.1:99999"), "port: input should be less than"),
    Case(("mcp_servers", "bash", "--config", "nope.yaml"), "nope.yaml: no such file"),
    Case(("mcp_servers", "bash", "workers=2"), "workers need HTTP: add --http"),
    Case(("mcp_servers", "bash", "--http", "0.0.0.0:0", "--token", "none"), "set a token, or bind 127.0.0.1"),
    Case(("mcp_servers", "bash", "sesions.idle_seconds=3"), "sesions is unknown; did you mean sessions?"),
)
"""Mistakes: each ends with one line and this status, and loses nothing."""

USES: Sequence[Case] = (
    Case(("--version",), "agentflow ", 0),
    Case(("init", "new"), "next: cd new && agentflow check config.yaml", 0),
    Case(("check",), "91 documents of the bundled corpus", 0),
    Case(("check", "benchmark_name=gaia"), "reward    gaia: 1 for the reference answer", 0),
    Case(("preview", "max_depth=1", "min_depth=1", "--number", "1"), "Starting point: ", 0),
    Case(("synth", "--print-config"), "max_depth:", 0),
    Case(("synth", "number_of_seed=1", "max_depth=2"), "One of the questions", 0),
    Case(("rollout", "--print-config"), "max_turns:", 0),
    _case(_tasks(), "summary.json", 0),
    Case(("eval", "all", "--limit", "1"), "aime24", 0),
    Case(("eval", "amc23"), "math", 0),
    Case(("extras",), "zim", 0),
    Case(("completion", "zsh"), "#compdef agentflow", 0),
    Case(("doctor", "rag", "extras"), "rag", 0),
    Case(
        ("data", "prepare", "--search", "tasks.jsonl"),
        "combined_train.parquet",
        0,
        {"tasks.jsonl": TASK},
        "data",
    ),
)
"""Plain uses, which succeed."""

CORE_ONLY: Sequence[Case] = (
    Case(
        ("synth", "journal=postgresql://nobody@127.0.0.1:9/x", "number_of_seed=1"),
        "127.0.0.1:9",
        status=3,
        needs="postgres",
    ),
    Case(
        ("data", "prepare", "--search", "asked.jsonl"),
        "",
        files={"asked.jsonl": '{"question": "Who?", "golden_answers": ["she"]}\n'},
        needs="data",
    ),
)
"""Mistakes only without an extra: with it the files are written, or a server is awaited for a minute."""


ENDS = {
    "config.yaml": (2, "config.yaml: api_key: ${OPENAI_API_KEY} is not set"),
    "ctl status": (1, "no run is active"),
    "--models openai/": (1, "set OPENAI_API_KEY"),
    "agentflow train": (2, "agentflow train needs the extra train: "),
    "flywheel.yaml": (2, "agentflow synth needs the extra train: "),
    "synthesis_results": (2, "synthesis_results: no such file or folder; name the output_dir of a run"),
}
"""Parts of commands of the README that need a key, a run or an extra, and the end that they have without."""


def readme_commands() -> list[Case]:
    """Return the commands of the README, with their ends on an installation without keys and extras."""
    readme = ROOT / "README.md"
    [config] = snippets(readme, "yaml")
    lines = [line for snippet in snippets(readme, "sh") for line in snippet.text.splitlines()]
    cases: list[Case] = []
    for line in lines:
        words = line.partition("#")[0].split()
        # A server over HTTP runs until it is stopped.
        if words and words[0].startswith(".venv/bin/") and "--http" not in words:
            status, text = next((end for part, end in ENDS.items() if part in line), (0, ""))
            cases.append(Case(words, text, status, {"config.yaml": config.text}))
    return cases


def _in_process(case: Case) -> bool:
    return case.arguments[0].endswith("/agentflow") and not {"analyse", "data", "--models"} & {
        *case.arguments
    }


README: Sequence[Case] = [
    replace(case, arguments=case.arguments[1:]) for case in readme_commands() if _in_process(case)
]
"""Commands of the README that need no earlier one, and have at most one line to say."""


def call(case: Case) -> Ended:
    """Call the command in this process, in a new directory with the files of the case."""
    from agentflow.cli import main
    from mcp_servers.__main__ import main as serve

    program = (
        partial(serve, case.arguments[1:])
        if case.arguments[0] == "mcp_servers"
        else partial(main, case.arguments)
    )
    # Strict about letters, as the streams of a process are.
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        given = {
            Path(name): text.encode() if isinstance(text, str) else text for name, text in case.files.items()
        }
        for path, content in given.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        with redirect_stdout(out), redirect_stderr(err):
            try:
                status = program()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 1
        lost = [
            str(path) for path, content in given.items() if not path.is_file() or path.read_bytes() != content
        ]
    return Ended(int(status), _text(out), _text(err), lost)


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


if __name__ == "__main__":
    results = [asdict(call(case)) for case in (*MISTAKES, *CORE_ONLY, *USES, *README)]
    json.dump(results, sys.stdout)
