"""Rendering of a call's path."""

import html
import re

import pytest

from agentflow.trace import TokenTree, Voice, as_html, coloured
from tests.agentflow.trace._calls import OTHER, call, text


def trees() -> list[tuple[str, str]]:
    tree = TokenTree(
        [
            call("1", "a<b", "said"),
            call("v", "a<bsaid?", "no", OTHER),
            call("2", "a<bsaid?no.", "more"),
        ]
    )
    return [(piece.kind, text(piece.ids)) for piece in tree.pieces("2")]


@pytest.mark.promise("tokens:shown")
def test_a_path_is_split_by_the_call_that_sampled_it() -> None:
    assert trees() == [
        ("context", "a<b"),
        ("trained", "said"),
        ("context", "?"),
        ("other", "no"),
        ("context", "."),
        ("trained", "more"),
    ]


@pytest.mark.promise("tokens:shown")
def test_a_terminal_gets_colours_and_a_page_shows_each_log_probability() -> None:
    tree = TokenTree([call("1", "a<b", "yes!", logprob=-1.5), call("2", "a<byes!c", "d", Voice(agent="sub"))])
    shown = coloured(tree.pieces("1"), text)
    assert shown.plain == "a<byes!"
    assert [str(span.style) for span in shown.spans] == [
        "dim", "green", "green", "green underline", "green underline",
    ]  # fmt: skip
    page = as_html(tree.pieces("1"), text, title="call <1>")
    assert "<title>call &lt;1&gt;</title>" in page
    assert '<span class="context">a&lt;b</span>' in page
    assert re.findall(r'title="(1: [^"]+)">(.)<', page) == [
        ("1: -1.500", "y"), ("1: -2.500", "e"), ("1: -3.500", "s"), ("1: -4.500", "!"),
    ]  # fmt: skip
    other = as_html(tree.pieces("2"), text)
    assert '<span class="other" title="1">yes!</span>' in other
    assert html.unescape(re.sub(r"<[^>]*>", "", other.split("</style>")[1])).strip() == "a<byes!cd"


@pytest.mark.promise("tokens:shown")
def test_tokens_that_form_one_character_are_joined() -> None:
    def bytes_of(ids: object) -> str:
        assert isinstance(ids, list | tuple)
        return bytes(ids).decode(errors="replace")  # pyright: ignore[reportUnknownArgumentType]

    tree = TokenTree([call("1", "a", "é".encode().decode("latin-1") + "b")])
    shown = coloured(tree.pieces("1"), bytes_of)
    assert (shown.plain, len(shown.spans)) == ("aéb", 3)
