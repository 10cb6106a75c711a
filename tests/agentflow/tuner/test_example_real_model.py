"""The example with a real model: its tasks and rewards, and two steps of SmolLM2 on the engine that the suite serves."""

import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct
from openai import AsyncOpenAI

from agentflow.errors import ConfigurationError
from agentflow.learner.trackers import METRICS, read_figures
from agentflow.serving import ModelServer
from agentflow.settings import load_settings
from examples.library.clients import ServedPolicy
from examples.real_model.run import HERE, RealModelPlan, read_tasks, run_task, table_of
from examples.real_model.run import RealModelFigures as Figures
from examples.real_model.tasks import KINDS, make_tasks, messages_of, reward_of
from tests._real_model import real_model
from tests._vllm import as_it_was

every_kind = pytest.mark.parametrize("kind", list(KINDS))


@pytest.mark.promise("examples:real_model")
@every_kind
def test_held_out_prompts_have_no_question_of_the_training(kind: str) -> None:
    trained = {task.question for task in make_tasks(kind, "train", 400, 0)}
    held_out = [task.question for task in make_tasks(kind, "held_out", 200, 0)]
    assert not trained & {*held_out}
    if kind == "reverse":
        words = {word for question in trained for word in question.split()}
        assert not words & {word for question in held_out for word in question.split()}


@pytest.mark.promise("examples:real_model")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "read"])
def test_only_the_exact_answer_is_rewarded(kind: str) -> None:
    for task in make_tasks(kind, "train", 20, 1):
        [right] = task.references
        assert reward_of(f" {right}\n", task) == 1.0
        assert [reward_of(wrong, task) for wrong in ("", f"{right}.", f"Sure! {right}", "{", "null")] == [
            0.0
        ] * 5
        roles = [message["role"] for message in messages_of(task)]
        assert roles[-1] == "user"
        assert all(one != other for one, other in pairwise(roles))


@pytest.mark.promise("examples:real_model")
def test_an_answer_that_was_read_is_rewarded_by_its_words() -> None:
    for task in make_tasks("read", "held_out", 40, 1):
        [right] = task.references
        assert set(right.replace(" and ", " ").split()) <= set(re.findall(r"\w+", task.question))
        assert [reward_of(answer, task) for answer in (right, "nothing", "")] == [1.0, 0.0, 0.0]
        assert 0 < reward_of(f"perhaps {right}", task) < 1


@pytest.mark.promise("examples:real_model")
def test_a_file_of_other_tasks_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "tasks.jsonl"
    broken.write_text("{}\n", encoding="utf-8")
    for path in (broken, tmp_path / "missing.jsonl"):
        with pytest.raises(ConfigurationError, match=rf"^transfer: {re.escape(str(path))}: .+$"):
            read_tasks(path)


class Sale(Struct, forbid_unknown_fields=True):
    """Answer under a schema."""

    buyer: str
    price: int


@pytest.mark.timeout(900)
@pytest.mark.promise("examples:real_model")
async def test_a_real_model_answers_under_a_schema_and_is_trained_for_two_steps(
    smollm2: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(smollm2):
        policy = ServedPolicy(smollm2)
        [task] = make_tasks("json", "train", 1, 0)
        schema = {"name": "sale", "schema": msgspec.json.schema(Sale)["$defs"]["Sale"], "strict": True}
        async with AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key) as client:
            completion = await client.chat.completions.create(
                model=policy.model,
                messages=messages_of(task, shots=0),  # pyright: ignore[reportArgumentType] - plain messages
                response_format={"type": "json_schema", "json_schema": schema},  # pyright: ignore[reportArgumentType]
                max_completion_tokens=48,
                temperature=0.0,
            )
        assert msgspec.json.decode(completion.choices[0].message.content or "", type=Sale).buyer

        overrides = [
            "steps=2",
            "held_out=8",
            "tune.schedule.tasks_per_step=2",
            "tune.schedule.episodes_per_task=4",
            "threads=1",
            'demonstrations={"json": 8}',
        ]
        plan = load_settings(RealModelPlan, HERE / "settings.yaml", overrides)
        figures = await run_task("json", smollm2, real_model(), plan, tmp_path, seed=3)
    assert (figures.task, figures.steps) == ("json", 2)
    assert figures.fine_tuned is not None
    lines = read_figures(tmp_path / "json" / METRICS)
    updates = [line for line in lines if line.get("publish/verified_share") is not None]
    assert updates, "at least one step changed the weights"
    for line in updates:
        assert line["publish/verified_share"] == 1.0
        assert line["publish/restarted"] == 0.0
        rms = line["engine/rms"]
        assert rms is not None
        assert rms < 1e-3
    shown = table_of(Figures(model="smollm2", seed=3, engine_start_seconds=0.0, tasks=[figures]))
    assert "| json |" in shown
