"""Episodes: their states, keys, limits, retries and journal."""

from pathlib import Path

import anyio
import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from opentelemetry.trace import SpanKind

from agentflow.gateway import (
    AgentSettings,
    BegunEpisode,
    EpisodeBranch,
    EpisodeLimits,
    EpisodeOutcome,
    EpisodeRegistry,
    EpisodeState,
    GatewayCall,
    GatewayError,
    GatewaySettings,
)
from agentflow.gateway._episodes import ClientIdentity, ClientRole
from agentflow.models import ModelSettings, TextPart
from agentflow.testing import VirtualClock
from agentflow.trace import Task
from tests.agentflow.gateway._registry import OWNER, WORKER, EchoModel, ask, offers, registry_at, served, task
from tests.agentflow.telemetry._collected import attributes, collected, trace_of


async def begun(
    registry: EpisodeRegistry, own: Task | None = None, agents: tuple[str, ...] = ()
) -> BegunEpisode:
    """Begin an episode."""
    found = await registry.begin(WORKER, task=own, agents=agents)
    assert found is not None
    return found


async def pass_time(registry: EpisodeRegistry, clock: VirtualClock, seconds: float) -> None:
    """Move the clock and look for expired episodes."""
    clock.advance(seconds)
    await registry.expire()


def owner_of(episode: BegunEpisode) -> ClientIdentity:
    """Return the client that began an episode."""
    return ClientIdentity(ClientRole.WORKER, episode.client)


async def say(registry: EpisodeRegistry, episode: BegunEpisode, text: str, retry: str = "") -> str:
    """Make a call with the key of an episode; return the answer's text."""
    live, agent = registry.find(episode.keys[""])
    answers = await live.complete(agent, ask(text), retry)
    live.delivered([answer.id for answer in answers])
    return answers[0].text


def code_of(error: pytest.ExceptionInfo[GatewayError]) -> tuple[int, str]:
    """Return the status and the code of a refusal."""
    return error.value.status, error.value.code


@pytest.mark.promise("tracing:gateway")
async def test_the_calls_of_an_attempt_are_spans_of_one_trace(tmp_path: Path) -> None:
    with collected() as found:
        async with registry_at(tmp_path) as registry:
            await registry.slots.offer(offers())
            first, second = await begun(registry), await begun(registry)
            for episode, text in ((first, "hello"), (first, "again"), (second, "hello")):
                await say(registry, episode, text)
    assert {(span.name, span.kind) for span in found.all} == {("chat policy", SpanKind.CLIENT)}
    one, two, other = found.all
    assert trace_of(one) == trace_of(two) != trace_of(other)
    given = attributes(one)
    assert given["gen_ai.conversation.id"] == f"{first.episode}/{first.attempt}"
    assert given["gen_ai.response.finish_reasons"] == ("stop",)
    assert given["gen_ai.provider.name"] == "openai"
    assert "hello" not in one.to_json()


@pytest.mark.promise("gateway:exact:matching")
async def test_the_conversation_of_a_response_is_read_from_the_journal(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers())
        live, agent = registry.find((await begun(registry)).keys[""])
        first, second = await live.complete(agent, ask("one", answers=2), "")
        history = await live.conversation(agent, second.id)
        assert history is not None
        call = GatewayCall(dialect="responses", messages=(*history, *ask("two").messages))
        (third,) = await live.complete(agent, call, "")
        whole = await live.conversation(agent, third.id)
        assert whole is not None
        assert await live.conversation(agent, "c9") is None
    texts = [part.text for message in whole for part in message.parts if isinstance(part, TextPart)]
    assert texts == ["one", "to one", "two", "to two"]
    assert [message.mark for message in whole] == ["", second.id, "", third.id]
    assert first.id not in {message.mark for message in whole}


@pytest.mark.promise("tracing:gateway")
@pytest.mark.promise("tracing:resume")
async def test_the_trace_of_an_agent_is_continued_and_a_retried_call_is_emitted_once(tmp_path: Path) -> None:
    parent = f"{7:032x}", f"{9:016x}"
    with collected() as found:
        async with (
            registry_at(tmp_path) as registry,
            served(registry, GatewaySettings()) as url,
            AsyncClient(base_url=url) as client,
        ):
            await registry.slots.offer(offers())
            key = (await begun(registry)).keys[""]

            async def send(text: str, **headers: str) -> int:
                body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
                given = {"authorization": f"Bearer {key}", **headers}
                return (await client.post("/v1/chat/completions", json=body, headers=given)).status_code

            sampled = f"00-{parent[0]}-{parent[1]}-01"
            sent = [
                await send("one", traceparent=sampled),
                await send("one", traceparent=sampled, **{"x-stainless-retry-count": "1"}),
                await send("two", traceparent=f"00-{parent[0]}-{parent[1]}-00"),
                await send("three", traceparent="00-" + "0" * 32 + "-nonsense"),
                await send("four"),
            ]
    assert sent == [200] * 5
    continued, broken, own = found.all
    assert continued.parent is not None
    assert (trace_of(continued), f"{continued.parent.span_id:016x}") == parent
    assert broken.parent is None and own.parent is None
    assert trace_of(broken) == trace_of(own) != parent[0]


@pytest.mark.promise("gateway:episodes:states")
async def test_an_episode_is_offered_begun_ended_scored_and_used_by_one_step(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        desk = registry.slots
        assert await registry.begin(WORKER) is None
        await desk.offer(offers())
        episode = await begun(registry)
        assert (episode.episode, episode.attempt, episode.task.id) == ("1/0", 1, "1")
        assert await say(registry, episode, "hello") == "to hello"
        receipt = await registry.end(owner_of(episode), "1/0", 1, EpisodeOutcome(answer="2"))
        assert (receipt.calls, receipt.tokens, receipt.forks) == (1, 2, {"opening": 1})
        (ended,) = await desk.ended()
        assert (ended.state, ended.outcome.answer) == (EpisodeState.SEALED, "2")
        await desk.score("1/0", 1, EpisodeOutcome(answer="2", reward=-1.5))
        (ended,) = await desk.ended()
        assert (ended.state, ended.outcome.reward) == (EpisodeState.SCORED, -1.5)
        await desk.use(["1/0"], 3)
        await desk.use(["1/0"], 3)
        with pytest.raises(GatewayError, match="used by step 3"):
            await desk.use(["1/0"], 4)
        with pytest.raises(GatewayError, match="'1/0' is used already"):
            await desk.offer(offers())
        assert await desk.ended() == []
        assert registry.status().states == {"offered": 1, "used": 1}


@pytest.mark.promise("gateway:episodes:receipts")
async def test_the_same_end_gets_the_same_receipt_and_another_end_is_refused(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        client, good = owner_of(episode), EpisodeOutcome(reward=1.0)
        receipt = await registry.end(client, "1/0", 1, good, "e")
        assert await registry.end(client, "1/0", 1, good, "e") == receipt
        for end_id, outcome in (("other", good), ("e", EpisodeOutcome(reward=0.0))):
            with pytest.raises(GatewayError) as refused:
                await registry.end(client, "1/0", 1, outcome, end_id)
            assert code_of(refused) == (409, "ended_otherwise")
    async with registry_at(tmp_path) as registry:
        assert await registry.end(client, "1/0", 1, good, "e") == receipt


@pytest.mark.promise("gateway:episodes:keys")
async def test_each_attempt_and_each_agent_has_its_own_key_and_an_old_one_answers_gone(
    tmp_path: Path,
) -> None:
    settings = GatewaySettings(
        agents={
            "wolf": AgentSettings(trained=True),
            "villager": AgentSettings(model=ModelSettings(name="frozen", base_url="http://127.0.0.1:1/v1")),
        }
    )
    async with registry_at(tmp_path, settings) as registry:
        await registry.slots.offer(offers(size=1))
        first = await begun(registry)
        assert {registry.find(key)[1] for key in first.keys.values()} == {"wolf", "villager"}
        wolf, villager = (registry.find(first.keys[agent])[0] for agent in ("wolf", "villager"))
        assert (wolf.models("wolf"), villager.models("villager")) == (
            ("policy", "frozen"),
            ("frozen", "policy"),
        )
        wolf.delivered([answer.id for answer in await wolf.complete("wolf", ask("a"), "")])
        villager.delivered([answer.id for answer in await villager.complete("villager", ask("b"), "")])
        assert [(call.agent, call.trained) for call in await registry.calls(OWNER, "1/0", 1)] == [
            ("wolf", True),
            ("villager", False),
        ]
        await registry.abort(owner_of(first), "1/0", 1)
        second = await begun(registry, agents=("wolf",))
        assert (second.attempt, set(second.keys)) == (2, {"wolf"})
        forged = second.keys["wolf"][:-1] + ("A" if second.keys["wolf"][-1] != "A" else "B")
        other_page = second.keys["wolf"].replace("af_2_", "af_1_")
        for key, code in (
            (first.keys["wolf"], "episode_ended"),
            (forged, "unknown_key"),
            (other_page, "unknown_key"),
            ("", "unknown_key"),
            ("af_9_" + "x" * 43, "unknown_key"),
            ("af_2_" + "é" * 43, "unknown_key"),
        ):
            with pytest.raises(GatewayError) as refused:
                registry.find(key)
            assert refused.value.code == code
        with pytest.raises(GatewayError, match="there is no 'fox'; there is 'wolf', 'villager'"):
            await registry.begin(WORKER, agents=("fox",))
    assert not any(key.encode() in (tmp_path / "episodes.db").read_bytes() for key in second.keys.values())


@pytest.mark.promise("gateway:episodes:owners")
async def test_only_the_client_that_began_an_episode_ends_it(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=2))
        mine, other = await begun(registry), await begun(registry)
        for who in (owner_of(other), WORKER):
            for act in (
                lambda who=who: registry.end(who, mine.episode, 1, EpisodeOutcome(reward=1)),
                lambda who=who: registry.abort(who, mine.episode, 1),
                lambda who=who: registry.alive(who, mine.episode, 1),
                lambda who=who: registry.put_reward(who, mine.episode, 1, 1.0),
                lambda who=who: registry.calls(who, mine.episode, 1),
            ):
                with pytest.raises(GatewayError) as refused:
                    await act()
                assert code_of(refused) == (403, "other_client")
        await registry.end(owner_of(mine), mine.episode, 1, EpisodeOutcome(answer="x"))
        with pytest.raises(GatewayError, match="another client"):
            await registry.put_reward(owner_of(other), mine.episode, 1, 1.0)
        await registry.put_reward(owner_of(mine), mine.episode, 1, 2.5)
        (ended,) = await registry.slots.ended()
        assert (ended.state, ended.outcome.reward) == (EpisodeState.SCORED, 2.5)
        await registry.slots.use([mine.episode], 1)
        with pytest.raises(GatewayError, match="is used; its reward can't be set"):
            await registry.put_reward(owner_of(mine), mine.episode, 1, 9.0)


@pytest.mark.promise("gateway:episodes:expiry")
async def test_a_client_that_stays_away_loses_its_episode_to_the_next_attempt(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with registry_at(tmp_path, clock=clock) as registry:
        await registry.slots.offer(offers(size=1))
        first = await begun(registry)
        await pass_time(registry, clock, 599)
        await say(registry, first, "still here")
        await pass_time(registry, clock, 599)
        registry.find(first.keys[""])
        await pass_time(registry, clock, 2)
        with pytest.raises(GatewayError) as refused:
            registry.find(first.keys[""])
        assert code_of(refused) == (410, "episode_ended")
        with pytest.raises(GatewayError, match="no call for 600 s"):
            await registry.end(owner_of(first), "1/0", 1, EpisodeOutcome(reward=1))
        second = await begun(registry)
        assert second.attempt == 2
        for _ in range(8):
            await registry.alive(owner_of(second), "1/0", 2)
            await pass_time(registry, clock, 500)
        with pytest.raises(GatewayError, match="open for 3600 s"):
            await registry.alive(owner_of(second), "1/0", 2)
        assert [call.messages for call in await registry.calls(OWNER, "1/0", 2)] == []


@pytest.mark.promise("gateway:episodes:attempts")
async def test_a_place_whose_attempts_all_fail_is_reported_and_can_be_offered_again(tmp_path: Path) -> None:
    async with registry_at(tmp_path, GatewaySettings(limits=EpisodeLimits(attempts=2))) as registry:
        await registry.slots.offer(offers(size=1))
        for attempt in (1, 2):
            episode = await begun(registry)
            await registry.abort(owner_of(episode), "1/0", attempt, "the tool broke")
        assert await registry.begin(WORKER) is None
        (ended,) = await registry.slots.ended()
        assert (ended.state, ended.outcome.failure) == (EpisodeState.ABORTED, "the tool broke")
        with pytest.raises(GatewayError, match="is aborted; only ended ones"):
            await registry.slots.use(["1/0"], 1)
        await registry.slots.offer(offers(size=1))
        assert await registry.slots.ended() == []
        assert (await begun(registry)).attempt == 3


@pytest.mark.promise("gateway:episodes:seal")
async def test_the_end_cancels_running_calls_and_leaves_out_answers_that_nobody_got(tmp_path: Path) -> None:
    model = EchoModel()
    async with registry_at(tmp_path, model=model) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        live, _ = registry.find(episode.keys[""])
        await say(registry, episode, "got")
        with anyio.CancelScope() as left:
            model.gate = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(live.complete, "", ask("client left"), "d:0")
                await anyio.wait_all_tasks_blocked()
                left.cancel()
        model.gate.set()
        await anyio.wait_all_tasks_blocked()
        model.gate = anyio.Event()
        refused: list[GatewayError] = []

        async def wait_for_answer() -> None:
            try:
                await live.complete("", ask("running"), "")
            except GatewayError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_answer)
            await anyio.wait_all_tasks_blocked()
            receipt = await registry.end(owner_of(episode), "1/0", 1, EpisodeOutcome(reward=1))
            assert (receipt.calls, receipt.tokens, receipt.cancelled) == (2, 2, 1)
        assert [error.status for error in refused] == [410]
        calls = await registry.calls(OWNER, "1/0", 1)
        assert [(call.delivered, call.answer.parts) for call in calls] == [
            (True, (TextPart("to got"),)),
            (False, (TextPart("to client left"),)),
        ]
        with pytest.raises(GatewayError, match="has ended"):
            await live.complete("", ask("late"), "")


@pytest.mark.promise("gateway:episodes:retries")
async def test_a_retry_joins_the_running_call_or_gets_its_answer_and_equal_calls_stay_apart(
    tmp_path: Path,
) -> None:
    model = EchoModel()
    async with registry_at(tmp_path, model=model) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        live, _ = registry.find(episode.keys[""])
        model.gate = anyio.Event()
        ids: list[str] = []

        async def call(retry: str) -> None:
            answers = await live.complete("", ask("a"), retry)
            ids.extend(answer.id for answer in answers)
            live.delivered([answer.id for answer in answers])

        with anyio.CancelScope() as left:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, "d:0")
                await anyio.wait_all_tasks_blocked()
                left.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "d:1")
            tasks.start_soon(call, "d:0")
            await anyio.wait_all_tasks_blocked()
            model.gate.set()
        await call("d:2")
        assert sorted(ids) == ["c1", "c2", "c2"]
        model.fails = GatewayError(502, "no answer")
        with pytest.raises(GatewayError):
            await call("e:0")
        model.fails = None
        await call("e:1")
        assert len(model.seen) == 4
        receipt = await registry.end(owner_of(episode), "1/0", 1, EpisodeOutcome(reward=1))
        assert (receipt.calls, receipt.tokens) == (3, 6)


@pytest.mark.promise("gateway:episodes:limits")
@pytest.mark.parametrize(
    ("limits", "texts", "status", "code"),
    [
        (EpisodeLimits(calls=2), ["a", "b", "c"], 403, "calls_limit"),
        (EpisodeLimits(tokens=5), ["a", "b", "c"], 403, "tokens_limit"),
        (EpisodeLimits(recorded_bytes=300), ["a" * 200, "b", "c"], 403, "recorded_bytes_limit"),
    ],
)
async def test_an_episode_has_limits(
    tmp_path: Path, limits: EpisodeLimits, texts: list[str], status: int, code: str
) -> None:
    async with registry_at(tmp_path, GatewaySettings(limits=limits)) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        with pytest.raises(GatewayError) as refused:
            for text in texts:
                await say(registry, episode, text)
        assert code_of(refused) == (status, code)
        assert "end it, or raise limits." in refused.value.message


@pytest.mark.promise("gateway:episodes:limits")
async def test_the_seventeenth_concurrent_call_is_refused_for_a_moment(tmp_path: Path) -> None:
    model = EchoModel()
    async with registry_at(tmp_path, model=model) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        model.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(say, registry, episode, str(number))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(GatewayError) as refused:
                await say(registry, episode, "one more")
            assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
            model.gate.set()
        assert await say(registry, episode, "one more") == "to one more"


@pytest.mark.promise("gateway:episodes:hold")
async def test_calls_wait_while_weights_change(tmp_path: Path) -> None:
    model = EchoModel()
    async with registry_at(tmp_path, model=model) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        registry.pause()
        await registry.set_version(7)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say, registry, episode, "a")
            await anyio.wait_all_tasks_blocked()
            assert (model.seen, registry.status().held) == ([], True)
            registry.resume()
        assert model.seen == ["a"]
        assert episode.version == 0
        assert registry.status().version == 7


@pytest.mark.promise("gateway:episodes:own_tasks")
async def test_clients_bring_tasks_with_unique_ids(tmp_path: Path) -> None:
    async with registry_at(tmp_path, GatewaySettings(group_size=2)) as registry:
        one = await begun(registry, task("mine"))
        two = await begun(registry, task("mine"))
        assert (one.episode, two.episode) == ("own/mine/0", "own/mine/1")
        assert await registry.begin(WORKER, task=task("mine")) is None
        assert await registry.begin(WORKER) is None
        with pytest.raises(GatewayError) as refused:
            await registry.begin(WORKER, task=task("mine", "another question"))
        assert code_of(refused) == (409, "other_task")
        for episode in (one, two):
            await registry.end(owner_of(episode), episode.episode, 1, EpisodeOutcome(reward=0.5))
        ended = await registry.slots.ended()
        assert {(one.offer.group, one.offer.task.question) for one in ended} == {("own/mine", "1 + 1?")}
        for _ in range(2):
            with pytest.raises(GatewayError) as refused:
                await registry.begin(WORKER, task=task("mine"))
            assert code_of(refused) == (409, "complete")
            await registry.slots.use(["own/mine/0", "own/mine/1"], 1)
        with pytest.raises(GatewayError, match="names tasks of clients"):
            await registry.slots.offer(offers("own/x"))


@pytest.mark.promise("gateway:episodes:journal")
async def test_after_a_restart_ended_episodes_come_back_and_open_ones_expire(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=4))
        episodes = [await begun(registry) for _ in range(3)]
        for episode in episodes:
            await say(registry, episode, episode.episode)
        for episode in episodes[:2]:
            await registry.end(owner_of(episode), episode.episode, 1, EpisodeOutcome(reward=1))
        await registry.slots.use(["1/0"], 1)
        await registry.set_version(3)
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=4)[1:])
        (ended,) = await registry.slots.ended()
        assert (ended.offer.id, ended.number, registry.status().version) == ("1/1", 3, 3)
        assert [call.delivered for call in await registry.calls(OWNER, "1/1", 1)] == [True]
        for key in (episodes[0].keys[""], episodes[2].keys[""]):
            with pytest.raises(GatewayError, match="has ended"):
                registry.find(key)
        with pytest.raises(GatewayError, match="the gateway was restarted"):
            await registry.end(owner_of(episodes[2]), "1/2", 1, EpisodeOutcome(reward=1))
        again = [await begun(registry), await begun(registry)]
        assert {(episode.episode, episode.attempt) for episode in again} == {("1/2", 2), ("1/3", 1)}
        assert len({*again[0].keys.values(), *again[1].keys.values(), *episodes[2].keys.values()}) == 3
        with pytest.raises(GatewayError, match="used by step 1"):
            await registry.slots.use(["1/0"], 2)


@pytest.mark.promise("gateway:episodes:withdraw")
async def test_a_withdrawn_episode_is_gone_for_its_client(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=3))
        one, two = await begun(registry), await begun(registry)
        await registry.end(owner_of(two), "1/1", 1, EpisodeOutcome(reward=1))
        await registry.slots.withdraw(["1/0", "1/1", "1/2", "unknown"], "stale")
        with pytest.raises(GatewayError, match="has ended"):
            registry.find(one.keys[""])
        with pytest.raises(GatewayError, match="dropped: stale"):
            await registry.end(owner_of(one), "1/0", 1, EpisodeOutcome(reward=1))
        assert await registry.begin(WORKER) is None
        assert await registry.slots.ended() == []
        assert registry.status().states == {"dropped": 3}


@pytest.mark.promise("gateway:episodes:finish")
async def test_the_end_of_the_run_reaches_every_client(tmp_path: Path) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        refused: list[GatewayError] = []

        async def wait_for_offer() -> None:
            try:
                await registry.begin(WORKER, wait=60)
            except GatewayError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_offer)
            await anyio.wait_all_tasks_blocked()
            await registry.finish()
        assert [(error.status, error.code) for error in refused] == [(410, "run_over")]
        with pytest.raises(GatewayError, match="has ended"):
            registry.find(episode.keys[""])
    async with registry_at(tmp_path) as registry:
        with pytest.raises(GatewayError, match="the run is over"):
            await registry.begin(WORKER)
        await registry.finish(False)
        assert (await begun(registry)).attempt == 2


@pytest.mark.promise("gateway:episodes:outcomes")
@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (EpisodeOutcome(reward=float("nan")), "not a finite number"),
        (EpisodeOutcome(reward={"": float("inf")}), "not a finite number"),
        (EpisodeOutcome(reward=1, metrics={"x": float("nan")}), "not a finite number"),
        (EpisodeOutcome(reward={"wolf": 1.0}), "there is no agent 'wolf'"),
        (EpisodeOutcome(reward=1, turn_rewards={"c9": 1.0}), "there is no call 'c9'"),
    ],
)
async def test_an_outcome_that_means_nothing_is_refused_and_the_episode_stays_open(
    tmp_path: Path, outcome: EpisodeOutcome, message: str
) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=1))
        episode = await begun(registry)
        with pytest.raises(GatewayError, match=message) as refused:
            await registry.end(owner_of(episode), "1/0", 1, outcome)
        assert refused.value.status == 400
        assert await say(registry, episode, "a") == "to a"
        receipt = await registry.end(
            owner_of(episode), "1/0", 1, EpisodeOutcome(reward=1, turn_rewards={"c1": 2.0})
        )
        assert receipt.calls == 1


@pytest.mark.promise("tuner:branches")
async def test_after_a_restart_a_branch_repeats_its_origin_and_a_diverged_one_becomes_independent(
    tmp_path: Path,
) -> None:
    first, second = offers()
    model, branch = EchoModel(), EpisodeBranch(origin=first.id, attempt=1, calls=2)
    async with registry_at(tmp_path, model=model) as registry:
        await registry.slots.offer([first])
        origin = await begun(registry)
        for text in ("a", "b", "c"):
            await say(registry, origin, text)
        await registry.end(owner_of(origin), first.id, 1, EpisodeOutcome(reward=1.0))
        await registry.slots.offer([replace(second, branch=branch)])
        assert await say(registry, await begun(registry), "a") == "to a"
    async with registry_at(tmp_path, model=model) as registry:
        again = await begun(registry)
        assert (again.attempt, again.branch) == (2, branch)
        assert [await say(registry, again, text) for text in ("a", "b")] == ["to a", "to b"]
        assert model.seen == ["a", "b", "c"]
        for text in ("other", "c"):
            with pytest.raises(GatewayError, match=f"call 3 is not that of episode {first.id}") as found:
                await say(registry, again, text)
            assert code_of(found) == (409, "diverged")
        with pytest.raises(GatewayError, match="it is played independently") as found:
            await registry.end(owner_of(again), second.id, 2, EpisodeOutcome(reward=1.0))
        assert code_of(found) == (410, "diverged")
        independent = await begun(registry)
        assert independent.branch == replace(branch, origin="")
        await say(registry, independent, "x")
        await registry.end(owner_of(independent), second.id, 3, EpisodeOutcome(reward=1.0))
        assert registry.slots.slots[second.id].failures == 0
        assert model.seen == ["a", "b", "c", "x"]
