"""Documents become questions with answers by our synthesis, once for the same content and model."""

from pathlib import Path

import pytest

import mcp_servers
from agentflow.errors import ConfigurationError
from agentflow.readers import read_tasks
from agentflow.trace import needed_documents

CORPUS = Path(mcp_servers.__file__).parent / "rag/corpus/documents.jsonl"


@pytest.mark.promise("readers:documents")
def test_documents_become_tasks_once_for_the_same_content(tmp_path: Path) -> None:
    documents, cache = tmp_path / "documents.jsonl", tmp_path / "cache"
    documents.write_bytes(CORPUS.read_bytes())
    options = {"seeds": ["Explore the Grey Petrel."], "synthesis": {"max_depth": 2}}
    tasks = list(read_tasks(f"documents:{documents}", options=options, cache=str(cache)))
    assert tasks and all(task.references and task.metadata["source"] == "documents" for task in tasks)
    assert all(needed_documents(task) for task in tasks)
    journals = {path: path.stat().st_mtime_ns for path in cache.rglob("trees.jsonl")}
    assert list(read_tasks(f"documents:{documents}", options=options, cache=str(cache))) == tasks
    moved = documents.rename(tmp_path / "moved.jsonl")
    assert list(read_tasks(f"documents:{moved}", options=options, cache=str(cache))) == tasks
    assert {path.parent for path in cache.rglob("trees.jsonl")} == {path.parent for path in journals}


@pytest.mark.promise("readers:documents")
def test_documents_without_questions_are_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "note.md").write_text("# Note\n\nNothing.")
    for source, problem in [
        (empty, "there are no documents"),
        (tmp_path / "none", "there are no documents"),
        (bare, "there are no questions: "),
        (f"{bare}?synthesis=" + '{"max_dept": 1}', "synthesis: .*did you mean max_depth"),
        (f"{bare}?seed=x", "there is no option seed; did you mean seeds"),
    ]:
        with pytest.raises(ConfigurationError, match=problem) as caught:
            list(read_tasks(f"documents:{source}", cache=str(tmp_path / "cache")))
        assert "\n" not in str(caught.value)
    explored = len(list((tmp_path / "cache").rglob("trees.jsonl")))
    (bare / "note.md").write_text("# Note\n\nNothing at all.")
    with pytest.raises(ConfigurationError, match="there are no questions"):
        list(read_tasks(f"documents:{bare}", cache=str(tmp_path / "cache")))
    assert len(list((tmp_path / "cache").rglob("trees.jsonl"))) == explored + 1
