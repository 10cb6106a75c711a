"""Windows of long texts: kept within a limit, around what matters, and readable."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.text import (
    TextWindow,
    excerpt,
    find_windows,
    name_terms,
    placed_windows,
    search_terms,
    show_windows,
)

PROSE = " ".join(f"In year {year} the harbour of Vell paid {year % 97} crowns." for year in range(2_000))
MARK = re.compile(r"^(?:… ([\d,]+) characters …|\[([\d,]+)–([\d,]+)(?: of ([\d,]+))?\])$", re.MULTILINE)
PIECES = st.lists(
    st.sampled_from(
        ["keeper ", "Ada Holm. ", "\n", "  3. name: x\n", "| a | b |\n", '{"k": "v"}, ', "灯台守", "x" * 90, "# Title\n"]
    )
    | st.text(max_size=12),
    max_size=120,
).map("".join)  # fmt: skip


def number(text: str) -> int:
    return int(text.replace(",", ""))


def total_of(shown: str, text: str) -> int:
    """The characters of the text that an excerpt shows or says it leaves out; every window is compared."""
    total = 0
    for mark in MARK.finditer(shown):
        if mark[1]:
            total += number(mark[1])
        else:
            start, end = number(mark[2]), number(mark[3])
            assert shown[mark.end() + 1 :].startswith(text[start:end])
            total += end - start
    return total


@pytest.mark.promise("synthesis:windows")
@given(PIECES, st.integers(200, 900), st.data())
def test_an_excerpt_fits_its_limit_and_accounts_for_every_character(
    text: str, limit: int, data: st.DataObject
) -> None:
    shown = excerpt(text, limit, search_terms("keeper Ada Holm"))
    if len(text) <= limit:
        assert shown == text
        return
    assert len(shown) <= limit
    windows = find_windows(text, limit, search_terms("keeper Ada Holm"))
    assert all(one.end < other.start for one, other in pairwise(windows))
    placed = list(placed_windows(text, shown))
    assert [window for window, _ in placed] == list(windows)
    assert all(
        shown[place:].startswith(text[window.start : window.end] + "\n" * (window.end < len(text)))
        for window, place in placed
    )
    if not MARK.search(text):
        assert total_of(shown, text) == len(text)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    kept = find_windows(text, limit, keep=[(start, end)])
    whole = text[start:end].strip("\n")
    assert not whole or any(whole in text[one.start : one.end] for one in kept)


@pytest.mark.promise("synthesis:windows")
def test_a_passage_deep_in_a_long_text_is_found_and_shown_with_its_offsets() -> None:
    fact = "The first keeper of Brenn Light was Ada Holm."
    page = f"{PROSE[:90_000]} {fact} {PROSE[90_000:100_000]}"
    shown = excerpt(page, 2_000, search_terms("Who kept the lighthouse of Brenn?"))
    assert fact in shown and page[:40] in shown
    # What matches nothing fills at most half of the limit.
    assert len(shown) <= 1_600
    assert total_of(shown, page) == len(page)
    # A name counts where no other word leads there.
    assert fact in excerpt(page, 2_000, frozenset(), name_terms("Nothing but Holm."))
    assert fact not in excerpt(page, 2_000)


@pytest.mark.promise("synthesis:windows")
def test_windows_are_told_from_lines_of_a_text_that_look_like_theirs() -> None:
    text = "[0–900 of 900]\n" + "A page. " * 200 + "\n… 7 characters …\n[5–9]\nwxyz\n" + "More. " * 200
    windows = find_windows(text, 400)
    assert [window for window, _ in placed_windows(text, show_windows(text, windows))] == list(windows)
    assert list(placed_windows(text, "[0–900 of 900]\nanything else")) == []
    assert list(placed_windows(text, "[0–99,999,999]\nA page.")) == []


@pytest.mark.promise("synthesis:windows")
def test_without_anything_to_look_for_the_beginning_and_the_end_are_shown() -> None:
    shown = excerpt(PROSE, 1_500)
    assert PROSE[:1_000] in shown and PROSE[-40:] in shown


@pytest.mark.promise("synthesis:windows:readable")
def test_passages_end_at_sentences_rows_and_members() -> None:
    windows = find_windows(PROSE, 2_000, search_terms("1203 1644"))
    assert all(PROSE[one.start : one.end].rstrip().endswith(".") for one in windows)
    assert all(PROSE[one.start :].lstrip().startswith("In year") for one in windows)
    records = [{"id": each, "name": f"name {each}", "note": "x" * 60} for each in range(900)]
    members = json.dumps(records)
    windows = find_windows(members, 2_000, search_terms("name 433"))
    shown = [members[one.start : one.end].strip().removeprefix("[").removesuffix(",") for one in windows]
    assert {"id": 433, "name": "name 433", "note": "x" * 60} in [
        each for text in shown for each in json.loads(f"[{text.removesuffix(']')}]")
    ]


@pytest.mark.promise("synthesis:windows:readable")
@pytest.mark.parametrize("delimiter", [" | ", "\t", ","])
def test_rows_of_a_table_come_with_its_header(delimiter: str) -> None:
    header = delimiter.join(("port", "year", "crowns"))
    rows = [delimiter.join((f"port{each}", str(1_000 + each), str(each % 7))) for each in range(3_000)]
    table = "\n".join(["Dues of all ports", header, *rows])
    shown = excerpt(table, 700, search_terms("port2444"))
    assert header in shown and rows[2_444] in shown
    markdown = "\n".join(
        ["| port | year |", "| --- | --- |", *(f"| port{each} | {each} |" for each in range(3_000))]
    )
    shown = excerpt("Text.\n\n" * 60 + markdown, 700, search_terms("port2444"))
    assert "| port | year |\n| --- | --- |" in shown and "| port2444 | 2444 |" in shown


@pytest.mark.promise("synthesis:windows:readable")
def test_a_passage_comes_with_the_headings_and_items_that_it_belongs_to() -> None:
    hits = "\n".join(
        f"[{each}] Title {each}\n" + f"Words about subject{each}. " * 40 + "\n" for each in range(1, 13)
    )
    shown = excerpt(hits, 2_000, search_terms("subject7"))
    assert [f"[{each}] Title {each}" in shown for each in range(1, 13)] == [True] * 12
    assert "subject7." in shown
    listing = "tables:\n" + "".join(
        f"  {each}. name: table{each}\n     columns:\n"
        + "".join(f"       - column{each}x{one}\n" for one in range(60))
        for each in range(1, 13)
    )
    shown = excerpt(listing, 1_200, search_terms("column9x44"))
    assert "- column9x44\n" in shown and "  9. name: table9\n" in shown and "tables:" in shown
    labelled = "\n".join(
        f"table{each}: " + ", ".join(f"column{each}x{one} TEXT" for one in range(60)) for each in range(12)
    )
    shown = excerpt(labelled, 2_000, search_terms("column9x44"))
    assert "column9x44 TEXT," in shown and all(f"table{each}:" in shown for each in range(12))
    page = (
        "# Ports\n\n## Vell\n\n"
        + "A line of Vell.\n" * 300
        + "## Brenn\n\n"
        + "A line of Brenn.\n" * 300
        + "The lamp."
    )
    shown = excerpt(page, 500, search_terms("lamp"))
    assert "# Ports" in shown and "## Brenn" in shown and "The lamp." in shown


@pytest.mark.promise("synthesis:windows")
@pytest.mark.parametrize(
    "text",
    [
        "\n".join(" " * each + f"item {each}" for each in range(440)),
        "\n".join("#" * (1 + each % 6) + f" heading {each}\nbody" for each in range(9_000)),
        "\n".join(f"{each}. keeper" for each in range(9_000)),
        "\n".join("|" * (each % 7) for each in range(9_000)),
        "\n".join(f"table{each}: " + "column, " * 60 for each in range(200)),
        "\n" * 50_000,
        "keeper" * 20_000,
        "\ud800" * 5_000,
    ],
    ids=["deep", "headings", "items", "pipes", "labels", "lines", "word", "surrogates"],
)
@pytest.mark.parametrize("limit", [1, 200, 700, 6_000])
def test_odd_texts_fit_their_limit_too(text: str, limit: int) -> None:
    assert len(excerpt(text, limit, search_terms("keeper of item 300"))) <= max(limit, 200)


@pytest.mark.promise("synthesis:windows")
def test_scripts_without_spaces_are_searched_too() -> None:
    text = "港の税は毎年変わりました。" * 400 + "灯台守はアダでした。" + "港の税は毎年変わりました。" * 400
    assert "灯台守はアダでした。" in excerpt(text, 600, search_terms("灯台守は誰ですか"))


@pytest.mark.promise("synthesis:windows")
def test_spans_to_keep_are_never_cut_even_if_they_exceed_the_limit() -> None:
    kept = ((10_000, 10_400), (50_000, 50_400))
    shown = excerpt(PROSE, 300, search_terms("harbour"), keep=kept)
    assert all(PROSE[start:end].strip() in shown for start, end in kept)
    windows = (TextWindow(0, 3), TextWindow(5, 8))
    assert (
        show_windows("abcdefghij", windows)
        == "[0–3 of 10]\nabc\n… 2 characters …\n[5–8]\nfgh\n… 2 characters …"
    )
