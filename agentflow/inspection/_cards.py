"""Runs as small tables in notebooks."""

import time
from collections.abc import Callable, Sequence

from agentflow.errors import ConfigurationError
from agentflow.inspection._types import RunSummary, SeedSummary
from agentflow.runs import html_card

SHOWN_SEEDS = 10
"""Seeds in the table of a run."""


def run_card(run: RunSummary, seeds: Sequence[SeedSummary]) -> str:
    """Return the table of a run with its first seeds."""
    begun = "" if run.started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))
    calls = {role: used for role, used in run.usage.items() if used.calls}
    rows = [
        ("state", run.state.value),
        ("folder", run.folder),
        ("started", begun),
        ("seeds", _counts(run)),
        ("steps", str(run.steps or "")),
        *((f"model of the {role}", name) for role, name in run.models.items()),
        *(
            (f"calls of the {role}", f"{used.calls}, {used.prompt_tokens + used.completion_tokens} tokens")
            for role, used in calls.items()
        ),
        ("cost", "" if run.cost is None else f"{run.cost:.4f}"),
        *((f"failed: {kind}", str(number)) for kind, number in run.failures.items()),
        *((seed.id, f"{seed.state.value}: {seed.text}") for seed in seeds),
    ]
    left = run.seeds.total - len(seeds)
    shown = [(name, text) for name, text in rows if text]
    return html_card(f"{run.kind.value} {run.name}", shown, note=f"{left} more seeds" if left > 0 else "")


def runs_card(place: str, runs: Sequence[RunSummary]) -> str:
    """Return the table of the runs of a place."""
    return html_card(
        f"Runs of {place}", [(run.id, f"{run.kind.value}, {run.state.value}, {_counts(run)}") for run in runs]
    )


def card_or_error(title: str, card: Callable[[], str]) -> str:
    """Return a table, or one with the reason that the run can't be read: a notebook would show a traceback."""
    try:
        return card()
    except ConfigurationError as error:
        return html_card(title, [("can't be read", str(error))])


def _counts(run: RunSummary) -> str:
    return f"{run.seeds.done} of {run.seeds.total} done"
