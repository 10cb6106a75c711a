"""Prompts of model calls are read from the journal as the models got them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.inspection import CallSummary, RunReader, ShownMessage
from agentflow.models import (
    Accounts,
    Call,
    ImagePart,
    Message,
    ModelSettings,
    ModelWrapper,
    TextPart,
    ToolCall,
    ToolReply,
    ask_model,
    make_model,
)
from agentflow.models._model import OfflineModel
from agentflow.runs._resources import PromptStore, PromptStoringModel
from agentflow.trace import Blob, Plan, Reply
from tests.agentflow.cli._programs import running
from tests.agentflow.inspection._journals import OnlyRun, claimed
from tests.agentflow.rollouts import _rollouts as rollouts
from tests.agentflow.synthesis import _runs as syntheses
from tests.system._supervised import endpoint

Asked = Counter[tuple[str, str]]
"""Number of calls by role and prompt."""


def texts(messages: Sequence[Message] | Sequence[ShownMessage]) -> str:
    """Return a prompt as one text."""
    return repr(
        [
            (message.role, message.text if isinstance(message, ShownMessage) else _text(message))
            for message in messages
        ]
    )


def _text(message: Message) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return what the offline engine was asked."""
    found: Asked = Counter()
    real = OfflineModel.complete

    async def complete(model: OfflineModel, call: Call[Any]) -> Any:  # noqa: ANN401 - as declared
        found[call.role, texts(call.messages)] += 1
        return await real(model, call)

    monkeypatch.setattr(OfflineModel, "complete", complete)
    return found


def shown(reader: RunReader) -> Asked:
    """Return the calls that a reader shows with their prompts."""
    found: Asked = Counter()
    for seed in reader.seeds():
        nodes = [reader.node(seed.id, spot) for spot in reader.skeleton(seed.id).spots]
        calls: dict[str, CallSummary] = {}
        for call in (*(call for node in nodes for call in node.calls), *reader.calls(seed.id)):
            calls[call.key] = call
        for key, call in calls.items():
            detail = reader.call(seed.id, key)
            assert detail.prompt, detail.missing
            found[call.role, texts(detail.prompt)] += 1
    return found


@pytest.mark.promise("inspection:prompts")
async def test_every_call_of_a_synthesis_has_the_prompt_that_its_model_read(
    tmp_path: Path, asked: Asked, only_run: OnlyRun
) -> None:
    config = syntheses.config_for(tmp_path / "out", number_of_seed=2, max_depth=3, verifier="model")
    await syntheses.run_to_the_end(config)
    assert {role for role, _ in asked} == {"planner", "verifier", "generator", "reader", "learner"}
    assert shown(only_run(tmp_path / "out")) == asked


@pytest.mark.promise("inspection:prompts")
async def test_every_call_of_a_rollout_has_the_prompt_that_its_model_read(
    tmp_path: Path, asked: Asked, only_run: OnlyRun
) -> None:
    await rollouts.run_to_the_end(rollouts.config_for(tmp_path / "out"), rollouts.some_tasks(2))
    assert {role for role, _ in asked} == {"analyst", "planner", "executor", "verifier", "generator"}
    assert shown(only_run(tmp_path / "out")) == asked


@pytest.mark.promise("inspection:prompts")
async def test_prompts_are_not_stored_where_the_settings_do_not_want_them(
    tmp_path: Path, only_run: OnlyRun
) -> None:
    config = rollouts.config_for(tmp_path / "out", save_prompts=False)
    await rollouts.run_to_the_end(config, rollouts.some_tasks(1))
    reader = only_run(tmp_path / "out")
    (seed,) = reader.seeds()
    (call, *_) = reader.node(seed.id, "0").calls
    detail = reader.call(seed.id, call.key)
    assert (detail.prompt, detail.missing) == ((), "it was not stored; see the setting save_prompts")


@pytest.mark.promise("inspection:prompts")
def test_every_recorded_call_of_a_killed_run_has_its_prompt(tmp_path: Path, only_run: OnlyRun) -> None:
    small = ("max_depth=3", "number_of_seed=2", f"output_dir={tmp_path / 'out'}")
    with (
        endpoint(hold_after=12) as at,
        running("agentflow.supervisor", *at.words, *small, cwd=tmp_path) as process,
    ):
        at.wait_for(calls=13)
        process.kill()
        process.wait()
    assert shown(only_run(tmp_path / "out")).total() >= 3


IMAGE = b"\x89PNG of a harbour"
LONG = "Look around. " * 1000
TALK = (
    Message("system", (TextPart(LONG),)),
    Message("user", (TextPart("What is it?"), ImagePart(IMAGE))),
    Message("assistant", (ToolCall("c1", "vm_screenshot", {"wait": 1}),)),
    Message("user", (ToolReply("c1", "vm_screenshot", (TextPart("done"), ImagePart(IMAGE))),)),
)


class FailingModel(ModelWrapper):
    """Model that refuses every call."""

    async def complete(self, call: Call[Any]) -> Any:  # noqa: ANN401 - as declared
        raise ModelFailure(ModelFailureKind.REFUSED, f"no: {len(call.messages)}")


@pytest.mark.promise("inspection:prompts")
async def test_a_failed_call_keeps_its_prompt_with_images_and_results_of_tools(
    url: str, only_run: OnlyRun
) -> None:
    async with claimed(url) as (_, run, (seed,)):
        page = await run.open_page(seed)
        offline = make_model(ModelSettings(name="offline"), Accounts())
        model = PromptStoringModel(FailingModel(offline), PromptStore(run))
        reply = await ask_model(model, Call(role="planner", messages=TALK, reply=Plan))
        assert reply.failure is not None
        await page.note("plan/root/0", reply)
        again = await ask_model(model, Call(role="planner", messages=TALK[:2], reply=Plan))
        await page.note("plan/root/1", again)
        await page.note("plan/root/2", Reply[Plan](prompt="0" * 64))
        await page.settle()
    reader = only_run(url.removeprefix("sqlite:///") if url.startswith("sqlite") else url)
    prompt = reader.call("a", "plan/root/0").prompt
    image = Blob.of(IMAGE, "image/png")
    assert [(each.role, each.text, each.images) for each in prompt] == [
        ("system", LONG, ()),
        ("user", "What is it?", (image,)),
        ("assistant", 'vm_screenshot {"wait":1}', ()),
        ("user", "result of c1\n\ndone", (image,)),
    ]
    assert reader.blob(image.hash) == (IMAGE, "image/png")
    assert reader.call("a", "plan/root/1").prompt == prompt[:2]
    assert reader.call("a", "plan/root/2").missing == "the journal has not all of it"
    with pytest.raises(KeyError):
        reader.call("a", "plan/root/3")


@pytest.mark.promise("inspection:prompts")
async def test_a_message_is_stored_once_however_many_prompts_begin_with_it(
    url: str, only_run: OnlyRun
) -> None:
    async with claimed(url) as (_, run, (seed,)):
        page = await run.open_page(seed)
        store = PromptStore(run)
        hashes = [store.add(TALK[:end]) for end in (1, 2, 3, 4, 4)]
        await page.note("plan/root/0", Reply[Plan](prompt=hashes[-1]))
        # Another process does not know what is stored.
        assert PromptStore(run).add(TALK) == hashes[-1]
        await page.note("plan/root/1", Reply[Plan](prompt=hashes[1]))
        await page.settle()
    assert len(set(hashes)) == len(TALK)
    reader = only_run(url.removeprefix("sqlite:///") if url.startswith("sqlite") else url)
    assert len(reader.call("a", "plan/root/0").prompt) == len(TALK)
    assert reader.call("a", "plan/root/1").prompt == reader.call("a", "plan/root/0").prompt[:2]
