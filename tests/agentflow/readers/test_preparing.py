"""Tasks are filtered and augmented, with counts by reason; nothing is paid for twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.learner import Batch, Group, Sample
from agentflow.learner._checkpoints import RolloutStore
from agentflow.readers import FilterSpec, PreparedTasks, aprepare_tasks, prepare_tasks
from agentflow.trace import Task
from tests.agentflow.readers._endpoint import scripted_endpoint


def task(id: str, question: str, answer: str = "", **metadata: object) -> Task:
    references = (answer,) if answer else ()
    return Task(index=0, id=id, question=question, references=references, metadata=dict(metadata))


SHIPS = "How many ships did the harbour of Port Vannick receive in the year 1841, before the fire?"
SIMILAR = [
    task("a", SHIPS, "12"),
    task("b", SHIPS.lower(), "12"),
    task("c", SHIPS.replace("before the fire", "before the great fire"), "12"),
    task("d", SHIPS.replace("1841", "1842"), "15"),
    task("e", "Who wrote the letter?", "Ada"),
]


@pytest.mark.promise("readers:near_duplicates")
def test_near_duplicates_are_left_out_and_counted() -> None:
    prepared = prepare_tasks(SIMILAR, filters=["near_duplicates"])
    assert [each.id for each in prepared.tasks] == ["a", "d", "e"]
    assert [each.index for each in prepared.tasks] == [0, 1, 2]
    assert (prepared.read, prepared.left_out) == (5, {"near_duplicates: near-duplicate": 2})
    strict = prepare_tasks(SIMILAR, filters=[{"near_duplicates": 1.0}])
    assert [each.id for each in strict.tasks] == ["a", "c", "d", "e"]


@pytest.mark.promise("readers:pass_rate")
def test_a_window_of_stored_pass_rates_is_applied(tmp_path: Path) -> None:
    scores = {"easy": [1, 1], "fair": [1, 0], "hard": [0, 0]}
    lines = [
        json.dumps(
            {
                "task_id": id,
                "sample": number,
                "question": f"{id}?",
                "answer": "x",
                "references": ["x"],
                "score": float(score),
            }
        )
        for id, own in scores.items()
        for number, score in enumerate(own)
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(lines))
    tasks = [task(id, f"{id}?", "x") for id in (*scores, "new")]
    prepared = prepare_tasks(
        tasks, filters=[{"pass_rate": {"low": 0.2, "high": 0.8, "results": str(tmp_path)}}]
    )
    assert [(each.id, each.metadata["pass_rate"]) for each in prepared.tasks] == [("fair", 0.5)]
    assert prepared.left_out == {
        "pass_rate: pass rate unknown": 1,
        "pass_rate: too easy": 1,
        "pass_rate: too hard": 1,
    }
    same = prepare_tasks(f"traces:{tmp_path}", filters=[{"pass_rate": [0.2, 0.8]}])
    assert [each.id for each in same.tasks] == ["fair"]


@pytest.mark.promise("readers:pass_rate")
def test_pass_rates_of_a_training_are_those_of_its_stored_episodes(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "rollouts")
    rewards = {"easy@0": [1.0, 1.0], "fair@1": [1.0, 0.0], "fair@2": [1.0, 1.0]}
    for step, (name, own) in enumerate(rewards.items(), 1):
        samples = tuple(Sample(task=name, id=str(n), reward=reward, calls=()) for n, reward in enumerate(own))
        store.write(
            Batch(step=step, version=0, taken=step, groups=(Group(number=step, name=name, samples=samples),))
        )
    tasks = [task("easy", "easy?"), task("fair", "fair?"), task("new", "new?")]
    window = {"pass_rate": {"high": 0.8, "results": str(tmp_path)}}
    prepared = prepare_tasks(tasks, filters=[window])
    assert [(each.id, each.metadata["pass_rate"]) for each in prepared.tasks] == [("fair", 0.75)]
    assert prepared.left_out == {"pass_rate: pass rate unknown": 1, "pass_rate: too easy": 1}
    store.path(2).write_bytes(store.path(2).read_bytes()[:-9])
    with pytest.raises(ConfigurationError, match=r"step_000002\.jsonl\.gz: can't be read"):
        prepare_tasks(tasks, filters=[window])
    with pytest.raises(ConfigurationError, match="none: no such file"):
        prepare_tasks(tasks, filters=[{"pass_rate": {"results": str(tmp_path / "none")}}])


@pytest.mark.promise("readers:pass_rate")
def test_pass_rates_of_a_training_that_rewards_evidence_are_those_of_its_answers(tmp_path: Path) -> None:
    samples = tuple(
        Sample(task="a@0", id=str(number), reward=1.3, calls=(), details={"answer_score": score})
        for number, score in enumerate((1.0, 0.5))
    )
    groups = (Group(number=0, name="a@0", samples=samples),)
    RolloutStore(tmp_path / "rollouts").write(Batch(step=1, version=0, taken=1, groups=groups))
    window = {"pass_rate": {"low": 0.0, "high": 1.0, "results": str(tmp_path)}}
    [prepared] = prepare_tasks([task("a", "A?")], filters=[window]).tasks
    assert prepared.metadata["pass_rate"] == 0.5


@pytest.mark.promise("readers:function_filters")
async def test_functions_decide_and_give_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_filters.py").write_text(
        "def short(task, most=100):\n    return len(task.question) <= most or 'too long'\n"
        "async def sourced(task):\n    return 'source' in task.metadata\n"
        "def broken(task):\n    raise KeyError('level')\n"
        "def silent(task):\n    pass\n"
    )
    tasks = [task("a", "Who?", source="x"), task("b", "Who was it, then?"), task("c", "When?")]

    def keep(each: Task) -> bool:
        return True

    filters: list[FilterSpec] = [{"own_filters.py:short": {"most": 8}}, "own_filters.py:sourced", keep]
    prepared = await aprepare_tasks(tasks, filters=filters)
    assert [each.id for each in prepared.tasks] == ["a"]
    assert prepared.left_out == {"own_filters.py:short: too long": 1, "own_filters.py:sourced": 1}
    for wrong, problem in [
        ("own_filters.py:broken", "task a: raised KeyError"),
        ("own_filters.py:silent", "task a: returned None; return True, False, or a reason"),
        ("near_duplicate", "did you mean near_duplicates"),
        ({"near_duplicates": {"similarty": 1}}, "similarty"),
        ({"pass_rate": {"low": 0.9, "high": 0.1}}, "low is above high"),
        ({"pass_rate": {"attempts": 2}}, r"model: there is none; set model\.model_name"),
        ({}, "write one name"),
    ]:
        with pytest.raises(ConfigurationError, match=problem):
            await aprepare_tasks(tasks, filters=[wrong])


@pytest.mark.promise("readers:limit")
def test_a_limit_counts_tasks_after_the_filters(tmp_path: Path) -> None:
    rows = "".join(
        json.dumps({"id": f"t{number}", "question": f"Number {number % 3}?"}) + "\n" for number in range(9)
    )
    path = tmp_path / "rows.jsonl"
    path.write_text(rows)
    settings: dict[str, Any] = {"source": str(path), "filters": ["near_duplicates"], "limit": 2}
    assert [each.id for each in prepare_tasks(settings).tasks] == ["t0", "t1"]
    assert prepare_tasks(str(path), limit=2).read == 2


class Solver:
    """Model that adds: right on its first sample, wrong on later ones; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, system: str, asked: str, body: dict[str, Any]) -> str | None:
        self.calls += 1
        if "fail" in asked:
            return None
        numbers = [int(word.strip("?.")) for word in asked.split() if word.strip("?.").isdigit()]
        wrong = body.get("seed", 0) > 0
        return f"<answer>{sum(numbers) + wrong}</answer>"


@pytest.mark.promise("readers:measured_pass_rate")
async def test_attempts_of_a_model_are_made_once(tmp_path: Path) -> None:
    tasks = [
        task("a", "What is 2 plus 2 ?", "4"),
        task("b", "What is 2 plus 3 ?", "100"),
        task("c", "fail 1", "1"),
        task("d", "1 plus 1 ?"),
    ]
    solver = Solver()
    async with scripted_endpoint(solver) as url:
        settings: dict[str, Any] = {
            "filters": [{"pass_rate": {"low": 0.2, "high": 0.8, "attempts": 2}}],
            "model": {"model_name": "m", "base_url": url, "api_key": "k", "max_attempts": 1},
            "cache": str(tmp_path),
        }
        first = await aprepare_tasks(tasks, **settings)
        assert [(each.id, each.metadata["pass_rate"]) for each in first.tasks] == [("a", 0.5)]
        assert first.left_out == {
            "pass_rate: attempts failed": 1,
            "pass_rate: no reference answer": 1,
            "pass_rate: too hard": 1,
        }
        made = solver.calls
        again = await aprepare_tasks(tasks, **settings)
        assert (again.tasks, again.left_out) == (first.tasks, first.left_out)
        # Only the failed calls are made again.
        assert (first.calls, again.calls, solver.calls - made) == (6, 2, 2)


PARAPHRASES = {
    "1": "Please add 2 and 2 together; which number results ?",
    "2": "What is 2 plus 2 ?",
    "3": "Since 4 is right, what do 2 and 2 make ?",
    "4": "Compute the sum of 2 and 3 for me now ?",
}


def write_and_solve(system: str, asked: str, body: dict[str, Any]) -> str | None:
    if "Rewrite a question" in system:
        return json.dumps({"question": PARAPHRASES[asked.rpartition("version ")[2].strip(".")]})
    numbers = [int(word.strip("?.;,")) for word in asked.split() if word.strip("?.;,").isdigit()]
    return f"<answer>{sum(numbers)}</answer>"


async def augmented(url: str, cache: Path, **augment: Any) -> PreparedTasks:  # noqa: ANN401 - settings
    return await aprepare_tasks(
        [task("a", "What is 2 plus 2 ?", "4", pass_rate=0.5, source="sums")],
        augment={"variants": 4, "solvers": 2, **augment},
        model={"model_name": "m", "base_url": url, "api_key": "k", "max_attempts": 1},
        cache=str(cache),
    )


@pytest.mark.promise("readers:augmentation")
async def test_variants_are_kept_only_if_all_checks_pass(tmp_path: Path) -> None:
    async with scripted_endpoint(write_and_solve) as url:
        prepared = await augmented(url, tmp_path)
    original, variant = prepared.tasks
    assert (variant.id, variant.question, variant.references) == (
        "a~1",
        PARAPHRASES["1"],
        original.references,
    )
    assert variant.metadata == {"source": "sums", "variant_of": "a"}
    assert prepared.rejected == {
        "another answer derived": 1,
        "answer in the question": 1,
        "near-duplicate": 1,
    }
    assert prepared.variants == 1


@pytest.mark.promise("readers:augmentation_resumes")
async def test_a_crash_repeats_no_call(tmp_path: Path) -> None:
    asked: list[str] = []

    def count(system: str, question: str, body: dict[str, Any]) -> str | None:
        asked.append(question)
        return write_and_solve(system, question, body)

    async with scripted_endpoint(count) as url:
        whole = await augmented(url, tmp_path)
        lines = (tmp_path / "replies.jsonl").read_bytes().splitlines(keepends=True)
        assert len(lines) == len(asked) == whole.calls
        # Killed while it wrote its last answer.
        (tmp_path / "replies.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:-5])
        asked.clear()
        resumed = await augmented(url, tmp_path)
        assert (resumed.tasks, resumed.rejected, len(asked)) == (whole.tasks, whole.rejected, 1)
        await augmented(url, tmp_path)
        assert len(asked) == 1
        # A damaged answer is asked for again.
        first, *others = (tmp_path / "replies.jsonl").read_bytes().splitlines(keepends=True)
        damaged = json.dumps({**json.loads(first), "value": {"other": 1}}).encode() + b"\n\xff\xfe\n"
        (tmp_path / "replies.jsonl").write_bytes(damaged + b"".join(others))
        await augmented(url, tmp_path)
        assert len(asked) == 2
        (tmp_path / "file").write_text("")
        with pytest.raises(
            RunStopped, match=r"replies\.jsonl can't be written: .*; the same command continues"
        ):
            await augmented(url, tmp_path / "file" / "below")


def write_variant(system: str, asked: str, body: dict[str, Any]) -> str | None:
    if "Write a new question" in system:
        return json.dumps({"working": "5 + 6", "question": "What is 5 plus 6 in total ?", "answer": "11"})
    numbers = [int(word) for word in asked.split() if word.isdigit()]
    return f"<answer>{sum(numbers)}</answer>"


@pytest.mark.promise("readers:augmentation")
async def test_a_new_question_has_an_answer_that_solvers_derive(tmp_path: Path) -> None:
    async with scripted_endpoint(write_variant) as url:
        prepared = await augmented(url, tmp_path, kind="variant")
    assert [(each.question, each.references) for each in prepared.tasks[1:]] == [
        ("What is 5 plus 6 in total ?", ("11",))
    ]
    assert prepared.rejected == {"near-duplicate": 3}
    with pytest.raises(ConfigurationError, match="task a has no reference answer"):
        async with scripted_endpoint(write_variant) as url:
            await aprepare_tasks(
                [task("a", "Why?")],
                augment={},
                model={"model_name": "m", "base_url": url, "api_key": "k"},
                cache=str(tmp_path),
            )
