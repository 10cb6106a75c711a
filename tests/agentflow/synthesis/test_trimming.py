"""Paths without wandering."""

import pytest
from msgspec.structs import replace

from agentflow.synthesis._selection import trimmed_path
from agentflow.trace import ActionOutcome, Node, Observation, SourceSpan, Text, tree_id
from tests.agentflow.synthesis._grown import SEED, node, tree

OWN = tree_id("run", SEED)


def shown(path: tuple[int, ...], text: str, tool: str = "rag_search", **arguments: str) -> Node:
    """Return a node that names the document which it shows."""
    own = node(OWN, path, text, tool=tool, arguments=arguments)
    return replace(
        own, outcome=ActionOutcome(Observation((Text(text),), (SourceSpan("brenn-light", 0, len(text)),)))
    )


@pytest.mark.promise("synthesis:trimmed")
def test_a_read_keeps_the_search_that_showed_its_document_and_drops_the_rest() -> None:
    grown = tree(
        {
            (0,): shown((0,), "[1] Brenn (brenn-light)", query="light"),
            (0, 0): node(OWN, (0, 0), "Nothing about it.", tool="web_search", arguments={"query": "fish"}),
            (0, 0, 0): shown((0, 0, 0), "Built in 1874.", "rag_get", id="brenn-light"),
        }
    )
    root, search, wandering, read = (each.id for each in grown.nodes)
    assert trimmed_path(grown, {read}) == (root, search, read)
    assert trimmed_path(grown, {wandering}) == (root, wandering)
    assert trimmed_path(grown, ()) == (root,)


@pytest.mark.promise("synthesis:trimmed")
def test_of_two_searches_that_show_a_document_the_one_is_kept_that_is_needed_anyway() -> None:
    grown = tree(
        {
            (0,): shown((0,), "[1] Brenn (brenn-light)", query="light"),
            (0, 0): shown((0, 0), "[1] Brenn (brenn-light): built", query="tower"),
            (0, 0, 0): shown((0, 0, 0), "Built in 1874.", "rag_get", id="brenn-light"),
        }
    )
    root, first, second, read = (each.id for each in grown.nodes)
    assert trimmed_path(grown, {second, read}) == (root, second, read)
    assert trimmed_path(grown, {read}) == (root, first, read)


@pytest.mark.promise("synthesis:trimmed")
def test_a_tool_with_state_keeps_what_was_done_before_on_its_branch() -> None:
    grown = tree(
        {
            (0,): node(OWN, (0,), "done", tool="bash_run", arguments={"command": "cd data"}),
            (1,): node(OWN, (1,), "else", tool="bash_run", arguments={"command": "ls"}),
            (0, 0): node(OWN, (0, 0), "a.txt", tool="rag_search", arguments={"query": "notes"}),
            (0, 0, 0): node(OWN, (0, 0, 0), "3", tool="bash_run", arguments={"command": "wc -l a.txt"}),
        }
    )
    before, _, _, last = (each.id for each in grown.nodes[1:])
    assert trimmed_path(grown, {last}) == (grown.nodes[0].id, before, last)


@pytest.mark.promise("synthesis:trimmed")
def test_a_search_of_another_branch_replaces_one_that_only_named_the_document() -> None:
    grown = tree(
        {
            (0,): shown((0,), "[1] Brenn (brenn-light)", query="light"),
            (1,): shown((1,), "[1] Brenn (brenn-light): built", query="tower"),
            (0, 0): shown((0, 0), "Built in 1874.", "rag_get", id="brenn-light"),
        }
    )
    root, _, cited, read = (each.id for each in grown.nodes)
    assert trimmed_path(grown, {cited, read}) == (root, cited, read)
