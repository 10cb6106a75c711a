"""Texts and tables about the progress, the consumption and the results of runs, for terminals, notebooks and reports."""

from collections.abc import Iterable, Mapping
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

from agentflow._terminal import printable
from agentflow.trace import Usage

if TYPE_CHECKING:
    from rich.table import Table

    from agentflow.models import ModelSettings


_UNITS = (("s", 1), ("min", 60), ("h", 3600), ("day", 86400))
_SHOWN_KINDS = 8
_NAME_CHARS = 40


def speed_text(rate: float, remaining: float | None) -> str:
    """Return the rate and the estimated time to the end: `4.2/min, ETA 1 h 05 min`; a dash stands for unknown.

    >>> speed_text(0.07, 3900)
    '4.2/min, ETA 1 h 05 min'
    """
    unit, size = next((unit_size for unit_size in _UNITS if rate * unit_size[1] >= 1), _UNITS[-1])
    return f"{f'{rate * size:.1f}/{unit}' if rate else '–'}, ETA {duration_text(remaining)}"


def duration_text(seconds: float | None) -> str:
    """Return seconds in the two largest units; a dash stands for unknown.

    >>> duration_text(3900)
    '1 h 05 min'
    """
    if seconds is None:
        return "–"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {smaller}"
    return f"{whole} s"


def usage_text(tokens: int, cost: float | None) -> str:
    """Return tokens with their cost, if there is one.

    >>> usage_text(3400, 0.12)
    '3,400 tokens, cost 0.1200'
    """
    return f"{tokens:,} tokens{f', cost {cost:.4f}' if cost else ''}"


def estimates_text(usage: Mapping[str, Usage]) -> str:
    """Return the share of calls whose tokens are an estimate; empty: none is.

    >>> estimates_text({"planner": Usage(6, 300, 40, estimated=2)})
    '2 of 6 token counts are estimates'
    """
    total = sum(usage.values(), Usage())
    return f"{total.estimates} of {total.calls} token counts are estimates" if total.estimates else ""


def failures_text(failures: Mapping[str, int]) -> str:
    """Return failures by kind in one line, the most frequent first; long names and long lists are cut.

    >>> failures_text({"tool timeout": 3, "model rate_limited": 1})
    'tool timeout 3, model rate_limited 1'
    """
    named = sorted(failures.items(), key=lambda kind: -kind[1])
    shown = [f"{one_line(name, _NAME_CHARS)} {count}" for name, count in named[:_SHOWN_KINDS]]
    others = sum(count for _, count in named[_SHOWN_KINDS:])
    return ", ".join([*shown, *([f"others {others}"] if others else [])]) or "none"


def one_line(text: str, limit: int) -> str:
    """Return a text as one line without control characters, cut to a number of characters.

    >>> one_line("a very\\nlong name", 9)
    'a very l…'
    """
    # A long text is cut first: only its beginning is shown.
    line = " ".join(printable(text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def cost_by_role(models: "Mapping[str, ModelSettings]", usage: Mapping[str, Usage]) -> dict[str, float]:
    """Return the cost by role, of models with prices."""
    return {
        role: round(model.cost(usage.get(role, Usage())), 6)
        for role, model in models.items()
        if model.known_prices is not None
    }


def prices_as_of(models: "Iterable[ModelSettings]") -> str:
    """Return the date of the built-in prices if one of the models uses them, else an empty text."""
    return max((str(model.prices_as_of) for model in models if model.prices_as_of), default="")


def cost_text(cost: Mapping[str, float], as_of: str, kept: int = 0, unit: str = "") -> str:
    """Return the cost in one line, with the date of built-in prices.

    :param kept: number of results that it paid for.
    :param unit: name of one of them.
    """
    total = sum(cost.values())
    per_unit = f", {total / kept:.4f} per {unit}" if kept else ""
    if not as_of:
        return f"{total:.4f}{per_unit}, by the prices of the settings"
    return f"{total:.4f}{per_unit} (US dollars, list prices as of {as_of}; `prices` in the settings overrides them)"


def report_table(rows: Iterable[tuple[str, str]]) -> "Table":
    """Return a table of names and texts for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(printable(name), Text(printable(text)))
    return table


def role_names(models: Mapping[str, str]) -> str:
    """Return the model that all roles share, or each role with its model."""
    shared = set(models.values())
    return shared.pop() if len(shared) == 1 else ", ".join(f"{role} {name}" for role, name in models.items())


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts in one line: `timeout 2, refused 1`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


_ROWS = 40
_TEXT_CHARS = 500
_TITLE_CHARS = 120
# The colours of the page are inherited, so it is readable on a light and on a dark one. Style sheets are often removed.
_BOX = (
    "border:1px solid;border-color:color-mix(in srgb,currentColor 30%,transparent);border-radius:6px;"
    "padding:8px 12px;max-width:60em;overflow-x:auto;overflow-wrap:anywhere;font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
)
_NAME = "text-align:left;vertical-align:top;padding:1px 16px 1px 0;font-weight:600;white-space:nowrap"
_TEXT = "text-align:left;vertical-align:top;padding:1px 0;overflow-wrap:anywhere;white-space:pre-wrap"


def html_card(title: str, rows: Iterable[tuple[str, str]], *, note: str = "") -> str:
    """Return a titled table as a small HTML fragment for a notebook: escaped, self-contained, for light and dark pages.

    Long texts and more than 40 rows are cut.

    :param rows: names and texts.
    :param note: line below the table.

    Example::

        class Result:
            def _repr_html_(self) -> str:
                return html_card("Synthesis", [("pairs", "12")])
    """
    remaining = iter(rows)
    shown = "".join(
        f'<tr style="background:none"><th scope="row" style="{_NAME}">{_safe(name, _TITLE_CHARS)}</th>'
        f'<td style="{_TEXT}">{_safe(text, _TEXT_CHARS)}</td></tr>'
        for name, text in islice(remaining, _ROWS)
    )
    left = sum(1 for _ in remaining)
    notes = [note] if note else []
    notes += [f"{left} more"] if left else []
    below = "".join(
        f'<div style="margin-top:4px;opacity:.75">{_safe(line, _TEXT_CHARS)}</div>' for line in notes
    )
    return (
        f'<div class="agentflow" dir="ltr" style="{_BOX}"><strong>{_safe(title, _TITLE_CHARS)}</strong>'
        f'<table style="border:0;border-collapse:collapse;margin:4px 0 0">{shown}</table>{below}</div>'
    )


class ResultRecord(dict[str, Any]):
    """A result as a plain dictionary that a notebook shows as a table.

    Example::

        record = ResultRecord({"steps": 3}, html_card("Training", [("steps", "3")]))
        assert record == {"steps": 3}
    """

    def __init__(self, fields: Mapping[str, Any], html: str) -> None:
        """Copy the fields.

        :param html: what a notebook shows, as of `html_card`.
        """
        super().__init__(fields)
        self._html = html

    def _repr_html_(self) -> str:
        return self._html


def _safe(text: str, limit: int) -> str:
    shown = printable(text[: limit + 1])
    return escape(shown if len(text) <= limit else f"{shown[:limit]}…")
