"""The first training: its tasks, its scripted planners, its report, and its improvement."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is typed in part only)

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from agentflow.errors import ConfigurationError, ModelFailure
from agentflow.learner.local import Lesson, LocalBackbone, PolicySettings, lessons_of, mean_loss
from agentflow.models import Accounts, Call
from agentflow.models import make_model as make_engine
from agentflow.serving import ModelServer
from agentflow.synthesis import PAIRS, DifficultySettings, SynthesisPipeline, load_config
from agentflow.synthesis.api import asynthesize
from agentflow.team._messages import step_messages
from agentflow.trace import Memory, NextStep, NextStepRequest, QueryAnalysis, ToolCard, Turn
from examples.first_training.family import AMOUNTS, PARTS, make_family
from examples.first_training.flywheel import seeds_of
from examples.first_training.plan import HERE, FineTuning, Strays, TrainingPlan, read_plan
from examples.first_training.play import TaskOutcome, play
from examples.first_training.report import figures_of, table_of
from examples.first_training.teacher import CODE, SEARCH, Guesser, Teacher, TeacherStep
from examples.first_training.training import PlannerResults, first_training
from examples.first_training.tuning import fine_tuned_checkpoints
from examples.library.plan import Shape
from examples.library.report import Curve, draw_curves
from examples.library.tiny import make_model
from tests._vllm import PYTHON, as_it_was, make_environment, settings_of
from tests.behaviour._tree import ROOT

CARDS = (ToolCard(SEARCH, "", {}), ToolCard(CODE, "", {}))


def asked(question: str, memory: Memory | None = None) -> Call[NextStep]:
    request = NextStepRequest(
        question=question,
        tools=CARDS,
        analysis=QueryAnalysis("", "", "", ""),
        memory=memory or Memory(),
        turns_left=3,
    )
    messages = step_messages(request, {}, merged=False, short=True)
    return Call(role="planner", messages=messages, reply=NextStep, request=request)


def backbone_of(folder: Path) -> LocalBackbone:
    return LocalBackbone(PolicySettings(model=str(folder), dtype="float32"))


def lessons(model: Path, shown: Sequence[Sequence[TeacherStep]]) -> list[list[Lesson]]:
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    return [
        lessons_of([*step.messages, {"role": "assistant", "content": step.answer}], tokenizer)
        for (step,) in shown
    ]


def outcome(task: int, *, right: bool, errors: int = 0) -> TaskOutcome:
    return TaskOutcome(task=str(task), kind="chain", right=right, answer="", steps=2, errors=errors)


@pytest.mark.promise("first:family")
@pytest.mark.parametrize("seed", range(3))
def test_parts_share_no_document_and_no_answer(seed: int) -> None:
    clusters = read_plan().clusters
    family = make_family(seed, train=clusters.train, choose=clusters.choose, held_out=clusters.held_out)
    assert len(family.tasks("held_out")) >= 300
    documents = family.documents()
    assert len({text.id for text in documents}) == len({text.text for text in documents}) == len(documents)
    answers = {part: {task.references[0] for task in family.tasks(part)} for part in PARTS}
    names = {
        part: {
            name for one in family.clusters if one.part == part for name in (one.ship, one.town, one.mayor)
        }
        for part in PARTS
    }
    for one, other in (("train", "choose"), ("train", "held_out"), ("choose", "held_out")):
        assert not answers[one] & answers[other]
        assert not names[one] & names[other]
    for task in family.tasks("held_out"):
        assert not [answer for answer in task.references if answer in task.question]


@pytest.mark.promise("first:family")
def test_the_same_seed_gives_the_same_family() -> None:
    assert make_family(1) == make_family(1)
    assert make_family(1) != make_family(2)


@pytest.mark.promise("first:family")
def test_more_clusters_than_names_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"^clusters: 401 in all; there are names for 400 at most$"):
        make_family(0, train=399, choose=1, held_out=1)


@pytest.mark.promise("first:family")
def test_a_renamed_text_contains_no_held_out_name() -> None:
    family = make_family(0)
    text = "\n".join(document.text for document in family.documents())
    told = family.renaming(1)(text)
    assert family.renaming(1)(text) == told != family.renaming(2)(text)
    assert len(told.split()) == len(text.split())
    for one in family.clusters:
        assert (one.ship in told) <= (one.part == "train")
        assert (one.town in told) <= (one.part == "train")
        assert (one.mayor in told) <= (one.part == "train")


@pytest.mark.promise("first:family")
async def test_the_scripted_planner_solves_every_task_with_the_real_team(tmp_path: Path) -> None:
    family = make_family(0, train=1, choose=1, held_out=6)
    corpus = family.write(tmp_path)
    outcomes = await play(Teacher(), family.tasks("held_out"), corpus, at_once=4)
    assert all(one.right for one in outcomes)
    assert sum(one.errors for one in outcomes) == 0
    assert {one.kind: one.steps for one in outcomes} == {"look_up": 1, "chain": 2, "compute": 2}


@pytest.mark.promise("first:synthesis")
async def test_questions_over_two_documents_are_those_that_a_synthesis_makes(tmp_path: Path) -> None:
    family = make_family(0, train=6, choose=1, held_out=1)
    corpus = family.write(tmp_path)
    settings = {
        "output_dir": str(tmp_path / "synthesis"),
        "available_tools": [SEARCH],
        "resource_init_configs": {"rag": {"index_path": str(corpus), "top_k": 1}},
        "max_depth": 2,
        "branching_factor": 1,
        "depth_threshold": 0,
        "min_reasoning_steps": 2,
    }
    config = tmp_path / "synthesis.json"
    config.write_text(json.dumps(settings))
    await asynthesize(config_path=config, seeds=[f"Explore the {one.ship}." for one in family.clusters[:6]])
    lines = (tmp_path / "synthesis/synthesized_qa.jsonl").read_text().splitlines()
    made = {(line["question"], line["answer"]) for line in map(json.loads, lines)}
    chains = [task for task in family.tasks("train") if task.metadata["kind"] == "chain"]
    assert made == {(task.question, task.references[0]) for task in chains}


@pytest.mark.promise("supervisor:flywheel")
async def test_the_documented_rounds_explore_ships_that_the_teacher_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = make_family(train=2, choose=0, held_out=3)
    shown, explored = ([one for one in family.clusters if one.part == part] for part in ("train", "held_out"))
    seeds = seeds_of(family)
    assert [one.ship in seed for one, seed in zip(explored, seeds, strict=True)] == [True] * 3
    assert not any(one.ship in seed for one in shown for seed in seeds)
    family.write(tmp_path)
    monkeypatch.setenv("START", str(tmp_path))
    config = load_config(ROOT / "configs/supervisor/flywheel.yaml", [f"output_dir={tmp_path / 'out'}"])
    assert config.learner is not None
    epochs = read_plan(HERE / "flywheel.yaml").fine_tuning.epochs
    assert config.learner["policy"]["model"] == f"{tmp_path}/policy/{epochs}"
    alone = config.model_copy(update={"learner": None, "difficulty": DifficultySettings(), "control": False})
    await SynthesisPipeline(alone).arun(seeds, progress=False)
    written = [json.loads(line)["question"] for line in (tmp_path / "out" / PAIRS).read_bytes().splitlines()]
    chained = [task.question for task in family.tasks("held_out") if task.metadata["kind"] == "chain"]
    assert set(chained) <= set(written)


@pytest.mark.promise("first:planners")
async def test_a_teacher_errs_reproducibly_and_at_its_configured_rates() -> None:
    questions = [f"Who is the mayor of {cluster.town}?" for cluster in make_family(0).clusters]
    always = Strays(broken=0, unknown=1, idle=0, crossed=0)
    assert {(await Teacher(always).complete(asked(each))).value.tool_name for each in questions} == {
        "web_search",
        "calculator",
    }
    sometimes = Strays(broken=0, unknown=0.5, idle=0, crossed=0)
    said = [(await Teacher(sometimes, 3).complete(asked(each))).text for each in questions]
    assert said == [(await Teacher(sometimes, 3).complete(asked(each))).text for each in questions]
    right = [(await Teacher().complete(asked(each))).text for each in questions]
    share = sum(one == other for one, other in zip(said, right, strict=True)) / len(said)
    assert 0.35 < share < 0.65


@pytest.mark.promise("first:planners")
async def test_the_guessing_planner_keeps_the_format() -> None:
    steps = [
        (await Guesser(seed).complete(asked("Who is the mayor of Deep Quay?"))).value for seed in range(20)
    ]
    assert {step.tool_name for step in steps} == {SEARCH, CODE}
    assert all(step.context.startswith(("query: ", "code: ")) for step in steps)


@pytest.mark.timeout(900)
@pytest.mark.promise("first:taught")
async def test_prompts_equal_the_training_examples_token_by_token(vllm: ModelServer) -> None:
    family = make_family(0, train=1, choose=1, held_out=1)
    teacher, (task, *_) = Teacher(), family.tasks("train")
    step = (await teacher.complete(asked(task.question))).value
    found = Turn(number=1, step=step, action=None, result=family.documents()[0].text)
    call = asked(task.question, Memory(turns=(found,)))
    await teacher.complete(call)
    settings = settings_of(vllm, structured="known", tokens=True, max_tokens=1)
    async with make_engine(settings, Accounts()) as model:
        # One token is no step; what was read and drawn is told nevertheless.
        with pytest.raises(ModelFailure) as cut:
            await model.complete(call)
    async with as_it_was(vllm) as folder:
        (taught,) = lessons(folder, [[teacher.shown[-1]]])
    assert [drawn.prompt for drawn in cut.value.answer_tokens] == [taught[-1].prompt]


@pytest.mark.promise("first:learns")
def test_each_number_is_one_token_for_every_reader_of_the_tokenizer(tmp_path: Path) -> None:
    texts = [document.text for document in make_family(0).documents()]
    model = make_model(tmp_path, texts, Shape(layers=1, heads=1), seed=0, numbers=AMOUNTS)
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    for number in AMOUNTS:
        assert len(tokenizer(f" {number}", add_special_tokens=False)["input_ids"]) == 1
    for text in ("code: 38 * 14", "[1] 385 of 38.", texts[0]):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.promise("first:report")
def test_a_gain_has_a_confidence_interval_over_the_same_tasks() -> None:
    before = PlannerResults(
        planner="fine_tuned", outcomes=[outcome(n, right=n < 50, errors=n % 2) for n in range(100)]
    )
    after = PlannerResults(
        planner="flow", outcomes=[outcome(n, right=n < 80, errors=n < 5) for n in range(100)]
    )
    figures = figures_of({"fine_tuned": before, "flow": after}, 7, 60.0)
    assert figures.gain is not None
    gain, low, high = figures.gain
    assert gain == pytest.approx(0.3)
    assert 0.15 < low < gain < high < 0.45
    assert figures.fewer_errors == pytest.approx(0.9)
    table = table_of([figures, figures])
    assert table.count("seed 7") == 2
    assert "| Flow-GRPO | 80.0% (2.5%) | 80.0% (2.5%) |" in table


@pytest.mark.promise("first:report")
def test_a_variant_is_compared_with_flow_grpo_on_the_same_tasks() -> None:
    judged = {
        name: PlannerResults(planner=name, outcomes=[outcome(n, right=n < right) for n in range(100)])
        for name, right in (("fine_tuned", 50), ("flow", 80), ("siblings", 70))
    }
    figures = figures_of(judged, 7, 60.0, {"flow": 4000, "siblings": 1000})
    gain, low, high = figures.over_flow["siblings"]
    assert gain == pytest.approx(-0.1)
    assert low < gain < high < 0
    table = table_of([figures])
    assert "| siblings | 70.0% (0.0%) |" in table
    assert "| siblings over Flow-GRPO, points | -10.0 (" in table
    assert "| tokens sampled by siblings | 1,000 |" in table


@pytest.mark.promise("first:report")
def test_the_picture_has_a_curve_for_each_training() -> None:
    picture = draw_curves(
        [
            Curve("Flow-GRPO", "#4477aa", [(1.0, 0.5), (2.0, 0.8)]),
            Curve("GRPO", "#ee6677", [(1.0, 0.5), (2.0, 0.6)]),
        ]
    )
    assert picture.count("<polyline") == 2
    assert "Flow-GRPO" in picture


@pytest.mark.promise("first:learns")
async def test_the_teachers_examples_become_likelier_with_each_checkpoint(tmp_path: Path) -> None:
    family = make_family(0, train=12, choose=1, held_out=1)
    teacher = Teacher()
    for task in family.tasks("train"):
        await teacher.complete(asked(task.question))
    shown = [[step] for step in teacher.shown]
    texts = [document.text for document in family.documents()] + [step.answer for step in teacher.shown]
    start = make_model(tmp_path / "model", texts, Shape(layers=1, heads=1, words=400), seed=0)
    plan = TrainingPlan(fine_tuning=FineTuning(epochs=3, kept=3, batch=12, rate=4e-3))
    said: list[str] = []
    made = fine_tuned_checkpoints(start, tmp_path / "tuned", family, shown, plan, 0, said.append)
    losses = [mean_loss(backbone_of(folder), lessons(start, shown)) for folder in (start, *made)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 1
    again = fine_tuned_checkpoints(start, tmp_path / "tuned", family, [], plan, 0, said.append)
    assert again == made


@pytest.mark.parametrize("file", sorted(HERE.glob("*.yaml")), ids=lambda file: file.name)
def test_every_settings_file_of_the_example_is_a_plan(file: Path) -> None:
    flow = read_plan(file).flow
    # The start of the flywheel is trained by the settings of that.
    assert flow == {} if file.name == "flywheel.yaml" else flow["schedule"]["steps"] >= 1


@pytest.mark.promise("first:learns")
@pytest.mark.timeout(1200)
async def test_a_short_training_ends_above_chance(tmp_path: Path) -> None:
    make_environment()
    plan = read_plan(HERE / "short.yaml", [f"python={PYTHON}"])
    judged = await first_training(plan, tmp_path, say=lambda _: None)
    chance = max(judged["constant"].success, judged["guesser"].success)
    assert judged["flow"].success > chance + 0.1
    again = await first_training(plan, tmp_path, say=lambda _: None)
    assert again == judged
