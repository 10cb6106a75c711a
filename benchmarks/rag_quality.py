"""Recall of lexical, dense and hybrid search with all-MiniLM-L6-v2, on the bundled corpus and on real release notes.

Run `python benchmarks/rag_quality.py [--check]`: prints a table, and as the last line one JSON object. The figures are
recall@5: the share of a query's documents that are among the first five hits, averaged over the queries. `questions` and
`paraphrases` are those of rag_queries.toml about the bundled corpus; a paraphrase shares no word with its document, which
is checked. `real` are 60 questions over the release notes of PostgreSQL 15 and Python that the tests of synthesis record,
each about two to four of 25 long documents. `index_cpu_s` is the CPU time to open both corpora: for `lexical` with making
the index of words, for `dense` with computing the vectors of all passages, for `hybrid` with both in place.
"""

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.serving import fetch_model
from mcp_servers.rag import read_documents
from mcp_servers.rag._documents import BUNDLED
from mcp_servers.rag._terms import terms_of

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests/agentflow/synthesis/recorded/audit/groups.json"
MODES = ("lexical", "dense", "hybrid")
TOP = 5
FLOORS = {"paraphrases_dense": 0.8, "questions_hybrid": 0.9, "real_hybrid": 0.8}
"""Limits of the figures."""

Queries = Mapping[str, Sequence[str]]


async def read_queries() -> dict[str, Queries]:
    """Return the sets of queries about the bundled corpus, each query with the ids of its documents."""
    queries: dict[str, Queries] = tomllib.loads((ROOT / "benchmarks/rag_queries.toml").read_text())
    documents = {document.id: document for document in await read_documents(BUNDLED)}
    for query, (name,) in queries["paraphrases"].items():
        document = documents[name]
        shared = set(terms_of(query).single) & set(terms_of(f"{document.title} {document.text}").single)
        assert not shared, f"{query!r} shares {shared} with {name}"
    return queries


def write_real(folder: Path) -> Queries:
    """Write the recorded documents, and return the questions about them."""
    groups = json.loads(RECORDED.read_text(encoding="utf-8"))
    passages: dict[str, dict[int, str]] = {}
    titles: dict[str, str] = {}
    for document in (document for group in groups for document in group["documents"]):
        titles[document["id"]] = document["title"]
        texts = {passage["number"]: passage["text"] for passage in document["passages"]}
        passages.setdefault(document["id"], {}).update(texts)
    with (folder / "real.jsonl").open("w", encoding="utf-8") as file:
        for name, texts in passages.items():
            text = "\n\n".join(texts[number] for number in sorted(texts))
            file.write(json.dumps({"id": name, "title": titles[name], "text": text}) + "\n")
    return {draft["question"]: draft["documents"] for group in groups for draft in group["questions"]}


async def search(settings: Mapping[str, object], queries: Mapping[str, Queries]) -> dict[str, float]:
    """Return the recall of each set of queries, and the seconds of CPU until the documents could be searched."""
    chosen = SandboxSettings.model_validate({"backends": {"rag": settings}})
    figures: dict[str, float] = {}
    async with Sandbox(chosen) as sandbox:
        begin = time.process_time()
        await sandbox.warmup("rag")
        figures["index_cpu_s"] = time.process_time() - begin
        for name, each in queries.items():
            shares: list[float] = []
            for query, wanted in each.items():
                result = await sandbox.execute("rag:search", {"query": query, "top_k": TOP})
                assert result.ok, result.error
                found = {hit["id"] for hit in result.data["hits"]}
                shares.append(len(found & set(wanted)) / len(set(wanted)))
            figures[name] = sum(shares) / len(shares)
    return figures


async def measure(model: str, folder: Path) -> dict[str, float]:
    """Search both corpora in each mode."""
    about_isles, about_real = await read_queries(), {"real": write_real(folder)}
    figures: dict[str, float] = {}
    for mode in MODES:
        embedding = None if mode == "lexical" else {"model": model}
        settings = {"mode": mode, "embedding": embedding}
        if mode == "dense":
            # Open a document first, so that the time of loading PyTorch is not counted.
            (folder / "one.jsonl").write_text('{"text": "one"}\n')
            await search({**settings, "index_path": str(folder / "one.jsonl")}, {})
        # Hybrid search finds the vectors of dense search there.
        isles = await search({**settings, "index_dir": str(folder / "isles")}, about_isles)
        real = {"index_path": str(folder / "real.jsonl"), "index_dir": str(folder / "real")}
        notes = await search({**settings, **real}, about_real)
        seconds = {"index_cpu_s": isles["index_cpu_s"] + notes["index_cpu_s"]}
        figures |= {f"{name}_{mode}": value for name, value in {**isles, **notes, **seconds}.items()}
    return figures


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rag-quality-") as folder:
        figures = anyio.run(measure, str(fetch_model("minilm", report=report)), Path(folder))
    print(f"{'':<14}" + "".join(f"{mode:>10}" for mode in MODES))
    for name in ("questions", "paraphrases", "real", "index_cpu_s"):
        print(f"{name:<14}" + "".join(f"{figures[f'{name}_{mode}']:>10.2f}" for mode in MODES))
    missed = [name for name, least in FLOORS.items() if figures[name] < least]
    for name in missed:
        print(f"missed: {name}, at least {FLOORS[name]:g}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    return 1 if missed and options.check else 0


def report(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
