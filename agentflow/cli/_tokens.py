"""`agentflow tokens`: the tokens of a training, as a table of episodes or one episode by token."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from agentflow.cli._output import UNLIMITED, Exit, print_json, print_wide, text_table, write_out
from agentflow.errors import ConfigurationError
from agentflow.learner import EpisodeTokens, RunTokens, episodes_page
from agentflow.trace import Decode, coloured

_COLUMNS = (
    "step", "episode", "reward", "advantage", "version", "calls", "rows", "tokens", "unique", "trained", "forks",
)  # fmt: skip
_CALL_COLUMNS = (
    "call", "relation", "", "version", "prompt", "sampled", "advantage", "mean log-probability", "finish",
)  # fmt: skip
_PLAIN = {"opening", "append"}
"""Relations that are no forks."""


def run_tokens(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises ConfigurationError: one line, if the run or the episode can't be read, or the page can't be written.
    """
    run = RunTokens(Path(arguments.run))
    episodes = _chosen(run, arguments)
    decode, why = run.decoder()
    if why:
        sys.stderr.write(f"agentflow: {why}\n")
    if arguments.html:
        _write(Path(arguments.html), episodes_page(episodes, decode, title=f"Tokens of {arguments.run}"))
    show = _show_text if arguments.episode else _show_table
    if arguments.json:
        show = _show_json
    read = write_out(partial(show, episodes, decode))
    return Exit.DONE if read else Exit.INTERRUPTED


def _chosen(run: RunTokens, arguments: argparse.Namespace) -> list[EpisodeTokens]:
    """Return the episodes that the arguments select; one line is raised if there are none."""
    chosen: list[EpisodeTokens] = []
    agents: set[str] = set()
    for episode in run.episodes(arguments.step):
        if arguments.episode and arguments.episode not in (episode.sample.id, _without_agent(episode)):
            continue
        agents.add(episode.agent)
        if arguments.agent is None or episode.agent == arguments.agent:
            chosen.append(episode)
    if chosen:
        return chosen
    if agents:
        names = ", ".join(sorted(agents - {""})) or "it has only one, without a name"
        raise ConfigurationError(f"--agent: there is no agent {arguments.agent}; known: {names}")
    where = (
        f"--episode: {arguments.episode} is not in the stored rollouts"
        if arguments.episode
        else "no episodes"
    )
    raise ConfigurationError(f"{where}; `agentflow tokens {run.folder}` lists them")


def _without_agent(episode: EpisodeTokens) -> str:
    return episode.sample.id.replace(f"#{episode.agent}", "") if episode.agent else episode.sample.id


def _write(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigurationError(f"--html: {file} can't be written: {error.strerror}") from None


def _record(episode: EpisodeTokens, decode: Decode) -> dict[str, Any]:
    figures = episode.figures(decode)
    return {
        "step": episode.step,
        "episode": episode.sample.id,
        "group": episode.sample.task,
        "agent": episode.agent,
        "reward": episode.sample.reward,
        "advantage": episode.advantage,
        "trained": episode.trained_tokens(),
        "figures": structs.asdict(figures),
        "versions": sorted({call.version for call in episode.sample.calls}),
    }


def _show_json(episodes: Sequence[EpisodeTokens], decode: Decode) -> None:
    print_json(
        {"episodes": [{**_record(episode, decode), "calls": episode.calls(decode)} for episode in episodes]}
    )


def _show_table(episodes: Sequence[EpisodeTokens], decode: Decode) -> None:
    rows: list[list[str]] = []
    totals = Counter[str]()
    for episode in episodes:
        record = _record(episode, decode)
        figures = record["figures"]
        counts: dict[str, int] = {name: figures[name] for name in ("calls", "rows", "merged", "unique")}
        totals.update({**counts, "trained": record["trained"], "drift": figures["forks"].get("drift", 0)})
        forks = ", ".join(f"{name} {n}" for name, n in figures["forks"].items() if name not in _PLAIN)
        cells = [
            str(episode.step),
            episode.sample.id,
            f"{episode.sample.reward:g}",
            "left out" if episode.advantage is None else f"{episode.advantage:+.3f}",
            ", ".join(record["versions"]),
            *map(str, counts.values()),
            _share(record["trained"], counts["merged"]),
            forks,
        ]
        rows.append(cells)
    line = (
        f"{len(episodes)} episodes: {totals['calls']} calls in {totals['rows']} rows of {totals['merged']} tokens, "
        f"{totals['unique']} unique, {_share(totals['trained'], totals['merged'])} trained, drift {totals['drift']}"
    )
    print_wide(text_table(_COLUMNS, rows), line, width=UNLIMITED)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _show_text(episodes: Sequence[EpisodeTokens], decode: Decode) -> None:
    from rich.text import Text

    for episode in episodes:
        rows: list[list[str]] = []
        for call in episode.calls(decode):
            advantage = "" if call.advantage is None else f"{call.advantage:+.3f}"
            cells = [call.id, call.reason, call.note, call.version, str(call.prompt), str(call.sampled)]
            rows.append([*cells, advantage, f"{call.logprob:.3f}", call.finish])
        table = text_table(_CALL_COLUMNS, rows)
        parts: list[object] = [Text(episode.heading, "bold"), Text(episode.summary(decode)), table]
        for title, pieces in episode.rows():
            parts += [Text(f"\n{title}", "bold"), coloured(pieces, decode)]
        print_wide(*parts, width=UNLIMITED)
