"""Results as HTML for notebooks: one escaped fragment without scripts, references and colours of its own."""

from collections.abc import Iterable, Mapping
from html import escape
from itertools import islice
from typing import Any

from agentflow._terminal import printable

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
    given = iter(rows)
    shown = "".join(
        f'<tr style="background:none"><th scope="row" style="{_NAME}">{_safe(name, _TITLE_CHARS)}</th>'
        f'<td style="{_TEXT}">{_safe(text, _TEXT_CHARS)}</td></tr>'
        for name, text in islice(given, _ROWS)
    )
    left = sum(1 for _ in given)
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
