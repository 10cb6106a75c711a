"""Observations become documents: hits and windows are joined, headings travel, copies count once."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from agentflow import Sandbox
from agentflow.questions import ShownDocument, divided, documents_from, documents_of
from agentflow.team import call_tool
from agentflow.trace import Action, MemoryBlobStore, Node, SourceSpan
from tests.agentflow.questions._notes import FIRST, SECOND, notes, shown


def window(text: str, start: int, end: int, *, document: str = "r41") -> Node:
    part = text[start:end]
    source = SourceSpan(document, 0, len(part), "Release 4.1", start, len(text))
    return shown(part, source, tool="rag_get", id=document, start=start)


@pytest.mark.promise("questions:documents")
def test_windows_of_a_document_are_one_document_and_complete_once_all_of_it_was_read() -> None:
    middle = FIRST.index("is not required")
    first, second = window(FIRST, 0, middle), window(FIRST, middle - 20, len(FIRST))
    [whole] = documents_of([first, second])
    assert whole.complete
    assert (whole.id, whole.title) == ("r41", "Release 4.1")
    [part] = documents_of([first])
    assert not part.complete
    found = next(each for each in whole.passages if "dump and restore" in each.text)
    spans = found.places_of("A dump and restore is not required. If you come from a release before 4.0")
    assert {node for node, _, _ in spans} == {first.id, second.id}
    nodes = {each.id: each.observation.text for each in (first, second)}
    said = "".join(nodes[node][start:end] for node, start, end in spans)
    assert said == "A dump and restore is not required. If you come from a release before 4.0"


@pytest.mark.promise("questions:documents")
def test_snippets_of_a_search_belong_to_the_documents_that_they_quote() -> None:
    text = "[1] Release 4.1\nFix a crash.\n\n[2] Release 4.0\nAdd the option."
    one = SourceSpan("r41", 16, 28, "Release 4.1", 50, 90)
    two = SourceSpan("r40", 46, 61, "Release 4.0", 60, 90)
    found = documents_of([shown(text, one, two, query="release")])
    assert [(each.id, each.text) for each in found] == [("r41", "Fix a crash."), ("r40", "Add the option.")]


@pytest.mark.promise("questions:documents")
def test_an_observation_that_names_no_document_is_a_result() -> None:
    [result] = documents_of([shown("count\n3", tool="sql_execute", query="SELECT 3 AS count")])
    assert result.computed
    assert result.complete
    assert "SELECT 3" in result.id


@pytest.mark.promise("questions:documents")
def test_headings_and_the_line_that_introduces_a_list_travel_with_its_entries() -> None:
    first, _ = notes()
    crash = next(each for each in first.passages if "crash of the planner" in each.text)
    assert crash.heading.startswith("Release 4.1 > Changes")
    assert "repairs the following:" in crash.heading + crash.text
    long = "# Notes\n\nThe release repairs:\n\n" + "\n\n".join(f"- Entry {n} {'x' * 400}" for n in range(6))
    [document] = documents_from([("n", "", long)])
    assert all("The release repairs:" in each.heading + each.text for each in document.passages)
    entries = [
        line for each in document.passages for line in each.text.split("\n\n") if line.startswith("- ")
    ]
    assert [len(entry) for entry in entries] == [410] * 6


@pytest.mark.promise("questions:copies")
def test_copies_and_translations_count_as_one_document() -> None:
    german = (
        "Version 4.1 von PGX erschien 2023 und läuft auf HPPA, IA64, S390, MIPS und ARM64. Die Prüfung mit TLS und SSL ist neu, "
        "ebenso 14.2, 15.3, 16.4 und 17.5 und die Anbindung an LDAP und SQL."
    )
    english = (
        "Release 4.1 of PGX appeared in 2023 and runs on HPPA, IA64, S390, MIPS and ARM64. The check by TLS and SSL is new, "
        "as are 14.2, 15.3, 16.4 and 17.5 and the connection to LDAP and to SQL."
    )
    found = documents_from(
        [("a", "", FIRST), ("b", "", FIRST[: len(FIRST) - 40]), ("c", "", english), ("d", "", german)]
    )
    assert [(each.id, each.copies) for each in found] == [("a", ("b",)), ("c", ("d",))]


def topic(name: str, count: int) -> list[tuple[str, str, str]]:
    return [
        (f"{name}{number}", "", f"The {name} harbour and its {name}quay. " + f"{name}ship{number} " * 60)
        for number in range(count)
    ]


@pytest.mark.promise("questions:groups")
def test_a_large_tree_is_divided_by_what_connects_its_documents() -> None:
    mixed = [each for pair in zip(topic("north", 4), topic("south", 4), strict=True) for each in pair]
    groups = divided(documents_from(mixed), characters=4_000, most=4)
    assert [{each.id[:5] for each in group} for group in groups[:2]] in (
        [{"north"}, {"south"}],
        [{"south"}, {"north"}],
    )
    assert {each.id for group in groups for each in group} == {each[0] for each in mixed}
    for group in groups:
        assert [each.number for each in group] == list(range(1, len(group) + 1))
        numbers = [passage.number for each in group for passage in each.passages]
        assert numbers == list(range(1, len(numbers) + 1))


# All documents have equally much in common, so that the smallest error of rounding decides.
_DIVIDE = """
from agentflow.questions import divided, documents_from
texts = [
    " ".join(f"quay{size}x{(place - back) % 30}" for size in range(2, 8) for back in range(size)) for place in range(30)
]
documents = documents_from([(f"d{number}", "", text) for number, text in enumerate(texts)])
print([[each.id for each in group] for group in divided(documents, characters=2_000, most=10)])
"""


@pytest.mark.promise("questions:groups")
def test_groups_do_not_depend_on_the_hash_seed() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _DIVIDE],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    assert "d29" in found.pop()


@pytest.mark.promise("questions:groups")
def test_a_document_that_does_not_fit_is_an_extract_of_whole_entries() -> None:
    long = "\n\n".join(
        f"- The {word} release number {n} " + "z" * 300 for n, word in enumerate(["red", "blue"] * 20)
    )
    [group, *_] = divided(documents_from([("long", "", long), ("r40", "", SECOND)]), characters=5_000, most=4)
    whole = {each.id: each for each in group}
    assert not whole["long"].complete
    assert sum(each.size for each in group) <= 5_000
    assert all(passage.text in long for passage in whole["long"].passages)


@pytest.mark.promise("questions:documents")
async def test_tools_that_search_and_read_name_their_documents() -> None:
    blobs = MemoryBlobStore()
    async with Sandbox() as sandbox:
        found = await call_tool(sandbox, Action("rag_search", {"query": "Candlebay lighthouse"}), blobs)
        first = found.observation.sources[0]
        read = await call_tool(sandbox, Action("rag_get", {"id": first.document}), blobs)
    assert len(found.observation.sources) > 2
    [source] = read.observation.sources
    assert (source.document, source.offset, source.length) == (first.document, 0, source.end - source.start)
    node = replace(shown("", tool="rag_get"), outcome=read)
    [document] = documents_of([node])
    assert isinstance(document, ShownDocument)
    assert document.complete


@pytest.mark.promise("questions:documents")
def test_a_document_that_is_the_only_one_is_shown_as_the_parts_that_were_read() -> None:
    middle = FIRST.index("## Changes")
    searched = [window(FIRST, 0, middle), window(FIRST, middle, len(FIRST))]
    parts = [reading(each) for each in searched]
    first, second = documents_of(parts)
    assert (first.id, second.id) == ("r41#0", f"r41#{middle}")
    assert second.title == "Release 4.1: ## Changes"
    assert first.complete and second.complete
    [whole] = documents_of(searched)
    assert "Remove the option" in second.text and "Remove the option" in whole.text
    assert len(documents_of(parts[:1])) == 1
    other = reading(window(SECOND, 0, len(SECOND), document="r40"))
    assert [each.id for each in documents_of([*parts, other])] == ["r41", "r40"]


def reading(node: Node) -> Node:
    """Return a node that reads with the tools for documents."""
    assert node.action is not None
    return replace(node, action=Action("document_read", node.action.arguments))


@pytest.mark.promise("questions:documents")
def test_where_headings_are_marked_a_short_paragraph_is_none_and_a_bare_bullet_joins_what_follows() -> None:
    text = "## Release 15.5\n\n-\n\nFix the sort (Tom Lane) §\n\nThe project thanks Jingzhou Fu. (CVE-2023-5868)\n\n-\n\nAdd a check"
    [page] = documents_from([("release.html", "", text)])
    assert {passage.heading for passage in page.passages} == {"Release 15.5"}
    assert "CVE-2023-5868" in page.text
    assert not any(passage.text.strip() == "-" for passage in page.passages)
    numbered = "Prev | Up | Next\n\n1.2. Changes\n\nRelease date: 2023-11-09\n\nFix the sort."
    [page] = documents_from([("release.html", "", numbered)])
    assert [passage.heading for passage in page.passages] == ["", "1.2. Changes"]
    [plain] = documents_from([("notes.txt", "", "Fix the sort\n\nIt was slow.")])
    assert [passage.heading for passage in plain.passages] == ["Fix the sort"]


@pytest.mark.promise("questions:documents")
def test_a_term_stays_with_its_description() -> None:
    entries = "\n\n".join(
        f"--option-{number}\n\nWith this option, the {number}th part of the work is left as it was before, and nothing else is."
        for number in range(40)
    )
    [document] = documents_from([("options", "", entries)])
    assert len(document.passages) > 3
    for passage in document.passages:
        assert passage.text.count("--option-") == passage.text.count("With this option")
        assert passage.text.startswith("--option-")
    [names] = documents_from([("names", "", "\n\n".join(f"Name {number}" for number in range(400)))])
    assert "".join(passage.text for passage in names.passages).count("Name") == 400


@pytest.mark.promise("questions:documents")
def test_a_table_of_numbers_in_two_editions_is_no_copy() -> None:
    prose = "This is a summary of what was measured, and the columns are the releases of the program."

    def table(first: int) -> str:
        return "\n".join(
            f"    read_{place}   " + " ".join(f"{place}.{release}" for release in range(first, first + 6))
            for place in range(20, 45)
        )

    old, new = f"{prose}\n\n{table(1)}", f"{prose}\n\n{prose}\n\n{prose}\n\n{prose}\n\n{table(2)}"
    assert [each.id for each in documents_from([("old", "", old), ("new", "", new)])] == ["old", "new"]
