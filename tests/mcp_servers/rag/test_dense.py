"""Searching by vectors, with an endpoint over HTTP and with a real model in this process."""

import shutil
import sys
from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from tests._real_model import embedding_model
from tests.mcp_servers.rag._endpoint import Endpoint, endpoint
from tests.mcp_servers.rag._library import library, write_lines

THINGS = [
    {"id": "a", "title": "One", "text": "The automobile stands still."},
    {"id": "b", "title": "Two", "text": "A kitten sleeps."},
    {"id": "c", "title": "Three", "text": "A vessel sails."},
    {"id": "d", "title": "Four", "text": "A car is parked beside a boat."},
]


def with_endpoint(embedder: Endpoint, **more: object) -> dict[str, object]:
    return {"base_url": embedder.url, "model": "small", "batch": 2, **more}


@pytest.mark.promise("rag:dense")
async def test_documents_are_found_by_meaning(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "things.jsonl", THINGS)
    async with endpoint() as embedder:
        settings = with_endpoint(embedder, api_key="secret")
        async with library(index_path=source, mode="dense", embedding=settings) as things:
            assert await things.ids("feline", top_k=1) == ["b"]
            assert await things.ids("car", top_k=2) == ["a", "d"]
            assert (await things.data("stats"))["dimensions"] == 8
            assert len(await things.ids("anything", top_k=50)) == 4
        assert max(map(len, embedder.requests)) == 2
        assert set(embedder.keys) == {"Bearer secret"}


@pytest.mark.promise("rag:dense")
async def test_hybrid_search_finds_what_each_mode_finds(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "things.jsonl", THINGS)
    async with (
        endpoint() as embedder,
        library(index_path=source, embedding=with_endpoint(embedder)) as things,
    ):
        assert (await things.data("stats"))["mode"] == "hybrid"
        ids = await things.ids("parked automobile", top_k=3)
        assert set(ids[:2]) == {"a", "d"}
        assert await things.ids("parked automobile", top_k=3) == ids


@pytest.mark.promise("rag:dense")
async def test_a_vector_is_asked_for_once_for_each_content(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "things.jsonl", THINGS)
    async with endpoint() as embedder:
        settings = with_endpoint(embedder)
        async with library(index_path=source, embedding=settings) as things:
            await things.ids("cat")
            await things.ids("cat")
        assert sorted(embedder.texts()) == sorted(
            ["cat", *(f"{thing['title']}\n\n{thing['text']}" for thing in THINGS)]
        )
        embedder.requests.clear()
        write_lines(source, [*THINGS[1:], {"id": "e", "title": "Five", "text": "A ship sinks."}])
        async with library(index_path=source, mode="dense", embedding=settings) as things:
            assert await things.ids("vessel", top_k=2) == ["c", "e"]
            assert "a" not in await things.ids("automobile", top_k=9)
        assert embedder.requests[0] == ["Five\n\nA ship sinks."]


@pytest.mark.promise("rag:dense")
async def test_vectors_that_were_half_written_are_asked_for_again(tmp_path: Path) -> None:
    source, folder = write_lines(tmp_path / "things.jsonl", THINGS), tmp_path / "index"
    async with endpoint() as embedder:
        settings = {
            "index_path": source,
            "index_dir": folder,
            "mode": "dense",
            "embedding": with_endpoint(embedder),
        }
        async with library(**settings) as things:
            before = await things.hits("car boat", top_k=4)
        (rows,) = folder.glob("rag.vectors-*.f32")
        rows.write_bytes(rows.read_bytes()[: 2 * 8 * 4 + 5])
        embedder.requests.clear()
        async with library(**settings) as things:
            assert await things.hits("car boat", top_k=4) == before
        assert list(map(len, embedder.requests)) == [2, 1]


@pytest.mark.promise("rag:dense:down")
async def test_an_endpoint_that_fails_is_a_failure_in_one_line(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "things.jsonl", THINGS)
    async with (
        endpoint() as embedder,
        library(index_path=source, embedding=with_endpoint(embedder)) as things,
    ):
        for embedder.status, embedder.body, expected in (
            (500, None, "status 500: no room"),
            (200, "nonsense", "invalid response"),
            (200, '{"data": []}', "0 vectors for 1 texts"),
            (200, '{"data": [{"index": 0, "embedding": [1.0, 2.0]}]}', "2 dimensions, the documents' have 8"),
        ):
            result = await things.call("search", query=f"boat {expected}")
            assert result.error is not None
            assert result.error.kind == "unavailable"
            assert expected in result.error.message
            assert "\n" not in result.error.message


@pytest.mark.promise("rag:dense:down")
async def test_a_failing_or_changed_endpoint_is_reported_at_the_start(tmp_path: Path) -> None:
    source, folder = write_lines(tmp_path / "things.jsonl", THINGS), tmp_path / "index"
    async with endpoint() as embedder:
        settings = with_endpoint(embedder)
        async with library(index_path=source, index_dir=folder, embedding=settings):
            pass
        embedder.dimensions = 5
        write_lines(source, [*THINGS, {"text": "More."}])
        with pytest.raises(ConfigurationError, match="now have 5 dimensions instead of 8"):
            async with library(index_path=source, index_dir=folder, embedding=settings):
                pass
    with pytest.raises(ConfigurationError, match="the embedding endpoint http://127"):
        async with library(index_path=source, index_dir=folder, embedding=settings):
            pass


@pytest.mark.promise("rag:settings")
async def test_without_numpy_dense_search_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    source = write_lines(tmp_path / "things.jsonl", THINGS)
    async with endpoint() as embedder:
        with pytest.raises(ConfigurationError, match=r"needs the extra data: .*agentflow extras add data"):
            async with library(index_path=source, embedding=with_endpoint(embedder)):
                pass


@pytest.mark.promise("rag:passages")
async def test_a_long_document_is_found_by_any_of_its_passages(tmp_path: Path) -> None:
    long = {"id": "long", "title": "Log", "text": "A kitten sleeps. " * 200 + "The automobile stands still."}
    source = write_lines(tmp_path / "things.jsonl", [*THINGS[1:3], long])
    async with endpoint() as embedder:
        settings = {"index_path": source, "mode": "dense", "embedding": with_endpoint(embedder)}
        async with library(**settings) as things:
            assert await things.ids("car", top_k=1) == ["long"]
            assert await things.ids("feline", top_k=3) == ["b", "long", "c"]
        assert max(map(len, embedder.texts())) <= len("Log\n\n") + 1000
        # Equal passages share a vector: of the long document there are two.
        assert len(embedder.texts()) == 2 + 2 + 2
        embedder.requests.clear()
        async with library(**settings) as things:
            assert await things.ids("car", top_k=1) == ["long"]
        assert embedder.texts() == ["car"]


@pytest.mark.timeout(600)  # The first caller downloads the model.
@pytest.mark.promise("rag:local")
async def test_a_real_model_finds_what_no_word_of_the_query_is_in(tmp_path: Path) -> None:
    model = str(embedding_model())
    source = write_lines(tmp_path / "things.jsonl", THINGS)
    settings = {"index_path": source, "index_dir": tmp_path / "index"}
    queries = {"a young pet is resting": "b", "it crosses the sea": "c", "nobody drives": "a"}
    async with library(**settings, mode="lexical") as things:
        assert [await things.ids(query) for query in queries] == [[], [], []]
    async with library(**settings, embedding={"model": model}) as things:
        stats = await things.data("stats")
        assert (stats["mode"], stats["embedding_model"], stats["dimensions"]) == ("hybrid", model, 384)
        assert [(await things.ids(query))[0] for query in queries] == list(queries.values())
        hits = await things.hits("automobile", top_k=1)
        assert hits[0]["id"] == "a"


@pytest.mark.promise("rag:local")
async def test_a_model_that_is_missing_or_damaged_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, damaged = write_lines(tmp_path / "things.jsonl", THINGS), tmp_path / "damaged"
    shutil.copytree(embedding_model(), damaged)
    (damaged / "model.safetensors").write_bytes(b"\0" * 100)
    another = shutil.copytree(damaged, tmp_path / "another", ignore=shutil.ignore_patterns("1_Pooling"))
    for settings, reason in (
        ({"mode": "dense"}, r"minilm is no embedding model; run agentflow models fetch minilm$"),
        ({"embedding": {"model": str(damaged)}}, r"damaged can't be loaded: "),
        ({"embedding": {"model": str(another)}}, r"another can't be loaded: .*1_Pooling"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as refused:
            async with library(index_path=source, **settings):
                pass
        assert "\n" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigurationError, match=r"needs the extra train: .*agentflow extras add train"):
        async with library(index_path=source, mode="dense"):
            pass
