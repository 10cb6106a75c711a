"""The rag tools, on real indexes."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow import Sandbox
from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.sandbox import TextContent
from mcp_servers.rag import RagBackend
from mcp_servers.rag._terms import terms_of
from tests.mcp_servers.rag._library import library, write_lines

BOATS = [
    {
        "id": "sloop",
        "title": "Sloop",
        "text": "A sloop has one mast. It is quick. “Quick as a gull.” Anna owns one.",
    },
    {"id": "brig", "title": "Brig", "text": "A brig has two masts. Bruno built a brig in Zürich."},
    {"id": "raft", "text": "A raft has no mast at all."},
]


def text_of(result_parts: tuple[object, ...]) -> str:
    (part,) = result_parts
    assert isinstance(part, TextContent)
    return part.text


@pytest.mark.promise("rag:search")
async def test_a_hit_gives_the_position_of_its_snippet_and_the_matched_words(tmp_path: Path) -> None:
    async with library(index_path=write_lines(tmp_path / "boats.jsonl", BOATS)) as boats:
        hits = await boats.hits("Which brigs have masts?")
        assert [hit["id"] for hit in hits] == ["brig", "raft", "sloop"]
        best = hits[0]
        text = str((await boats.data("get", id="brig"))["text"])
        assert text[cast("int", best["start"]) : cast("int", best["end"])] == best["snippet"] == text
        marked = [text[start:end] for start, end in cast("list[tuple[int, int]]", best["highlights"])]
        assert marked == ["brig", "masts", "brig"]
        assert best["title"] == "Brig"
        assert hits[1]["title"] == "raft"
        scores = [cast("float", hit["score"]) for hit in hits]
        assert scores == sorted(scores, reverse=True) == [round(score, 4) for score in scores]


async def test_accents_and_endings_make_no_difference(tmp_path: Path) -> None:
    async with library(index_path=write_lines(tmp_path / "boats.jsonl", BOATS)) as boats:
        assert await boats.ids("zurich") == await boats.ids("Zu\u0308rich") == ["brig"]
        assert await boats.ids("OWNING") == ["sloop"]


async def test_words_that_stand_together_count_more(tmp_path: Path) -> None:
    texts = {
        "apart": "The port lies far from old Vannick town.",
        "near": "The old Port Vannick lies far from town.",
    }
    lines = [{"id": name, "title": "x", "text": text} for name, text in texts.items()]
    async with library(index_path=write_lines(tmp_path / "ports.jsonl", lines)) as ports:
        assert await ports.ids("port vannick") == ["near", "apart"]


@pytest.mark.promise("rag:search:text")
async def test_a_model_reads_titles_ids_and_snippets(tmp_path: Path) -> None:
    async with library(index_path=write_lines(tmp_path / "boats.jsonl", BOATS)) as boats:
        result = await boats.call("search", query="two masts", top_k=2)
        assert text_of(result.parts) == (
            "[1] Brig (brig)\nA brig has two masts. Bruno built a brig in Zürich.\n\n"
            "[2] raft (raft)\nA raft has no mast at all."
        )
        nothing = await boats.call("search", query="submarine")
        assert nothing.ok
        assert nothing.data == {"hits": []}
        assert text_of(nothing.parts) == "no hits"


@pytest.mark.promise("rag:batch")
async def test_several_searches_return_what_each_returns_alone(tmp_path: Path) -> None:
    async with library(index_path=write_lines(tmp_path / "boats.jsonl", BOATS)) as boats:
        both = await boats.call("batch_search", queries=["brig", "submarine"], top_k=1)
        assert both.data == {
            "results": [
                {"query": "brig", "hits": await boats.hits("brig", top_k=1)},
                {"query": "submarine", "hits": []},
            ]
        }
        assert text_of(both.parts).startswith("# brig\n\n[1] Brig (brig)\n")
        assert text_of(both.parts).endswith("# submarine\n\nno hits")


@pytest.mark.promise("rag:get")
async def test_a_document_is_read_in_parts_that_join(tmp_path: Path) -> None:
    async with library(index_path=write_lines(tmp_path / "boats.jsonl", BOATS)) as boats:
        whole = await boats.call("get", id="sloop")
        assert text_of(whole.parts) == f"Sloop (sloop)\n{BOATS[0]['text']}"
        assert whole.data["next_start"] is None
        read, start = "", 0
        while start is not None:
            part = await boats.data("get", id="sloop", start=start, length=7)
            read, start = read + str(part["text"]), cast("int | None", part["next_start"])
        assert read == BOATS[0]["text"] == whole.data["text"]
        past = await boats.call("get", id="sloop", start=1000)
        assert past.error is not None
        assert past.error.kind == "bad_arguments"
        unknown = await boats.call("get", id="Brigs")
        assert unknown.error is not None
        assert unknown.error.kind == "not_found"
        assert "Did you mean 'brig'?" in unknown.error.message


@pytest.mark.promise("rag:bundled")
async def test_without_settings_the_corpus_that_comes_along_is_searched() -> None:
    async with library() as isles:
        assert (await isles.ids("Kelder Bridge"))[0] == "kelder-bridge"
        assert cast("int", (await isles.data("stats"))["documents"]) > 50
        assert len(await isles.hits("island")) == 5


@pytest.mark.promise("rag:shared")
async def test_the_tools_need_no_session_and_no_session_changes_the_documents(tmp_path: Path) -> None:
    assert not any(tool.stateful for tool in RagBackend().tools)
    assert all(tool.hints.read_only for tool in RagBackend().tools)
    async with Sandbox(backends=["rag"]) as sandbox:
        with pytest.raises(ToolFailure, match="can only be set by the server"):
            await sandbox.create_session("rag", {"index_path": str(tmp_path)})


def nothing_there(folder: Path) -> dict[str, object]:
    return {"index_path": str(folder / "nowhere")}


def nothing_in_it(folder: Path) -> dict[str, object]:
    return {"index_path": str(folder)}


def another_index(folder: Path) -> dict[str, object]:
    (folder / "meta.json").write_text("{}")
    return {"index_path": str(folder)}


def no_model(folder: Path) -> dict[str, object]:
    return {"mode": "dense", "embedding": {"model": str(folder)}}


def unnamed_model(folder: Path) -> dict[str, object]:
    return {"embedding": {"base_url": "http://127.0.0.1:9/v1"}}


def unknown_setting(folder: Path) -> dict[str, object]:
    return {"top": 3}


@pytest.mark.promise("rag:settings")
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (nothing_there, "nowhere does not exist"),
        (nothing_in_it, "no .jsonl, .md or .txt file"),
        (another_index, "was not built by this backend"),
        (no_model, "is no embedding model; name its folder"),
        (unnamed_model, "set embedding.model"),
        (unknown_setting, "top is unknown; did you mean top_k?"),
    ],
)
async def test_settings_that_cannot_be_used_are_refused_in_one_line(
    tmp_path: Path, wrong: Callable[[Path], dict[str, object]], expected: str
) -> None:
    settings = wrong(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        RagBackend().check(settings)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=expected):
        async with library(**settings):
            pass


@pytest.mark.promise("rag:query:free")
async def test_every_text_can_be_searched_for() -> None:
    async with library() as isles:
        for query in (
            'x" AND (',
            "title:ossel",
            "+a -b",
            "*",
            "~",
            "\0",
            "the",
            "[a TO b]",
            "東京",
            "a" * 9_999,
        ):
            assert (await isles.call("search", query=query)).ok
        assert (await isles.ids('title:"ossel" AND -("canal"'))[0] in ("ossel", "ossel-canal")
        assert await isles.ids("the")


@pytest.mark.promise("rag:query:free")
@given(st.text(max_size=200))
def test_terms_are_made_of_every_text(query: str) -> None:
    terms = terms_of(query)
    assert len(set(terms.single)) == len(terms.single)
    assert {word for pair in terms.pairs for word in pair} <= set(terms.single) or len(terms.single) == 64


async def test_an_empty_query_is_a_wrong_argument() -> None:
    async with library() as isles:
        result = await isles.call("search", query="")
        assert result.error is not None
        assert result.error.kind == "bad_arguments"
