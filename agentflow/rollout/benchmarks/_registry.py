"""The ten benchmarks and their default numbers of tasks."""

import difflib
import re
from pathlib import Path
from typing import Final

from agentflow.errors import ConfigurationError
from agentflow.rollout.benchmarks import _readers as readers
from agentflow.rollout.benchmarks._benchmark import Benchmark
from agentflow.rollout.benchmarks._described import read_description

_SAMPLES: Final = Path(__file__).parent / "samples"
_OPEN: Final = "$question\n\nAnswer with a name, a date, a number or a few words."
_EXACT: Final = (
    "$question\n\nAnswer with a number, as few words as possible, or a list of these, separated by commas. Write numbers"
    " in digits, without separators, and without units unless the question asks for them; write no articles and no"
    " abbreviations."
)
_WHOLE: Final = "$question\n\nThe answer is a whole number from 0 to 999."
_VALUE: Final = "$question\n\nAnswer with the exact value."
_GAME: Final = (
    "Use the four numbers $numbers, each exactly once, with + - * / and brackets, so that the result is 24."
    "\n\nAnswer with one expression, as in (1 + 2 + 3) * 4."
)
_CHOICE: Final = "$question\n\n$choices\n\nAnswer with the letter of the right option."

_TEN: Final = (
    Benchmark(
        name="bamboogle", title="Bamboogle", category="search", read=readers.read_open, prompt=_OPEN,
        metric="exact_match", judged=True, limit=125, file=_SAMPLES / "bamboogle.csv",
    ),
    Benchmark(
        name="2wiki", title="2WikiMultihopQA", category="search", read=readers.read_open, prompt=_OPEN,
        metric="exact_match", judged=True, limit=100, file=_SAMPLES / "2wiki.json",
    ),
    Benchmark(
        name="hotpotqa", title="HotpotQA", category="search", read=readers.read_open, prompt=_OPEN,
        metric="exact_match", judged=True, limit=100, file=_SAMPLES / "hotpotqa.json",
    ),
    Benchmark(
        name="musique", title="MuSiQue", category="search", read=readers.read_musique, prompt=_OPEN,
        metric="exact_match", judged=True, limit=100, file=_SAMPLES / "musique.jsonl",
    ),
    Benchmark(
        name="gaia", title="GAIA", category="agentic", read=readers.read_gaia, prompt=_EXACT,
        metric="gaia", judged=True, limit=127, file=_SAMPLES / "gaia.jsonl",
    ),
    Benchmark(
        name="aime24", title="AIME 2024", category="math", read=readers.read_aime, prompt=_WHOLE,
        metric="math", limit=30, file=_SAMPLES / "aime24.jsonl",
    ),
    Benchmark(
        name="amc23", title="AMC 2023", category="math", read=readers.read_amc, prompt=_VALUE,
        metric="math", limit=40, file=_SAMPLES / "amc23.jsonl",
    ),
    Benchmark(
        name="gameof24", title="Game of 24", category="math", read=readers.read_game, prompt=_GAME,
        metric="game24", limit=100, skip=900, file=_SAMPLES / "gameof24.csv",
    ),
    Benchmark(
        name="gpqa", title="GPQA", category="science", read=readers.read_gpqa, prompt=_CHOICE,
        metric="multiple_choice", limit=100, file=_SAMPLES / "gpqa.csv",
    ),
    Benchmark(
        name="medqa", title="MedQA", category="science", read=readers.read_medqa, prompt=_CHOICE,
        metric="multiple_choice", limit=100, file=_SAMPLES / "medqa.jsonl",
    ),
)  # fmt: skip
_BY_NAME: Final = {benchmark.name: benchmark for benchmark in _TEN}
_ALIASES: Final = {
    "2wikimultihopqa": "2wiki",
    "2wikimultihop": "2wiki",
    "hotpot": "hotpotqa",
    "aime": "aime24",
    "aime2024": "aime24",
    "amc": "amc23",
    "amc2023": "amc23",
    "game24": "gameof24",
    "gpqadiamond": "gpqa",
    "medqausmle": "medqa",
}


def benchmark_names() -> list[str]:
    """Return the names of the ten benchmarks, in the order of their tables. See docs/benchmarks.md."""
    return list(_BY_NAME)


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name in any spelling, or the one that a YAML or JSON file describes. See docs/benchmarks.md.

    :raises ConfigurationError: one line, if there is none, or the file can't be used.
    """
    if Path(name).suffix.lower() in {".yaml", ".yml", ".json"}:
        return read_description(Path(name))
    plain = re.sub(r"[\W_]", "", name).lower()
    found = _BY_NAME.get(_ALIASES.get(plain, plain))
    if found is None:
        near = difflib.get_close_matches(plain, [*_BY_NAME, *_ALIASES], n=1)
        meant = (
            f"did you mean {_ALIASES.get(near[0], near[0])}?"
            if near
            else f"write one of {', '.join(_BY_NAME)}"
        )
        raise ConfigurationError(f"benchmark {name}: unknown; {meant}")
    return found
