"""Steps that a trained planner wrote unusably: each costs a turn, and its exact tokens are trained."""

import pytest

from agentflow.learner import TrainConfig
from agentflow.learner._episode_runner import open_episode_runner
from agentflow.learner._groups import sample_of
from agentflow.models import ModelSettings
from agentflow.rollouts import assign
from agentflow.testing import fake_endpoint
from agentflow.trace import Ending
from tests.agentflow.rollouts._rollouts import some_tasks


@pytest.mark.promise("team:solve:lost-turn")
@pytest.mark.parametrize("format", ["json", "labelled"])
async def test_unusable_steps_are_in_the_sample_with_their_tokens(format: str) -> None:
    rules = {"planner_format": format, "max_turns": 3, "available_tools": ["rag_search"]}
    config = TrainConfig.model_validate({"episodes": rules})
    [task] = some_tasks(1)
    async with fake_endpoint() as url:
        # It follows no schema that it isn't sent: its answer is one word.
        planner = ModelSettings(name="fake", base_url=url, tokens=True, max_attempts=1, structured="known")
        models = {role: ModelSettings(name="offline", vision=False) for role in config.episodes.models}
        assignment = assign(config.rules_for("training"), [task])
        async with open_episode_runner(config, assignment, {**models, "planner": planner}) as runner:
            episode = await runner.play(task, "seed")
    assert (episode.ending, len(episode.turns)) == (Ending.TURNS, 3)
    assert all(turn.failure is not None and turn.failure.kind == "garbage" for turn in episode.turns)
    assert episode.answer == "", "nothing was looked up"
    sample = sample_of(episode, group="g", member=0, reward=0.0, trained=["planner"], temperature=1.0)
    assert [call.sampled for call in sample.calls] == [
        exchange.tokens.sampled
        for exchange in episode.exchanges
        if exchange.role == "planner" and exchange.tokens is not None
    ]
    assert len(sample.calls) == 3 and all(call.sampled for call in sample.calls)
