"""Rollouts of a tuning run: its gateway, its reward, and the workflow that plays its episodes."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Final, NamedTuple

import aiohttp
import anyio
from anyio.lowlevel import checkpoint
from pydantic import SecretStr

from agentflow.actors import Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.gateway import EpisodeOutcome, EpisodeState, Gateway, GatewayClient, GatewaySettings
from agentflow.learner import (
    EVIDENCE,
    JUDGE,
    POLICY,
    EpisodeResult,
    EvidenceSettings,
    Group,
    PolicyRollout,
    RolloutContext,
    TaskDraw,
    TaskOrder,
    TrainConfig,
    debug_counts,
    external_failure,
    models_at_engine,
    open_episode_runner,
    open_sandbox_pool,
    report_step,
)
from agentflow.models import Accounts, Model, ModelEndpoints, ModelSettings, make_model
from agentflow.rollouts import Assignment
from agentflow.runs import open_models
from agentflow.scoring import evidence_score
from agentflow.tasks import scored_verdict
from agentflow.trace import Episode, Task
from agentflow.tuner._config import TuneConfig
from agentflow.tuner._gateway_rollout import GatewayRollout
from agentflow.tuner._workflow import POLL_SECONDS, PolicyEndpoint, Solve, WorkflowPlayers
from agentflow.tuner.judges import EpisodeJudge, JudgeSpec, make_judge, takes_sandbox

_NO_KEY: Final = SecretStr("each episode has its own")


@asynccontextmanager
async def open_team_workflow(
    config: TrainConfig,
    assignment: Assignment,
    models: Mapping[str, ModelSettings],
    base_url: str,
    accounts: Accounts | None = None,
) -> AsyncGenerator[Solve]:
    """Open the team of the settings, its models and its sandboxes; yield the workflow that plays it.

    Each trained role is an agent of the gateway. The other roles call their models directly.

    :param models: model of each role.
    :param base_url: address of the gateway, up to `/v1`.
    :param accounts: usage of the roles that are not trained; `None`: own ones, by the settings.
    :raises ConfigurationError: if a setting can't be used.
    """
    trained = config.episodes.trained_roles
    at_gateway: dict[str, object] = {
        "name": POLICY,
        "base_url": base_url,
        "api_key": _NO_KEY,
        "tokens": False,
    }
    placed = {
        role: model.model_copy(update=at_gateway) if role in trained else model
        for role, model in models.items()
    }
    endpoints = ModelEndpoints()
    async with open_episode_runner(config, assignment, placed, accounts=accounts) as runner:

        async def solve(task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
            async with AsyncExitStack() as stack:
                episode_models: dict[str, Model] = {}
                for role in trained:
                    key = SecretStr(policy.agent(role).api_key)
                    settings = placed[role].model_copy(update={"name": policy.model, "api_key": key})
                    episode_models[role] = await stack.enter_async_context(
                        make_model(settings, Accounts(), endpoints=endpoints)
                    )
                episode = await runner.play(task, policy.episode, models=episode_models)
            if (failure := external_failure(episode)) is not None:
                raise RunStopped(StopCause.MODEL, failure.message)
            return _team_outcome(episode, config.tasks.evidence)

        yield solve


def _team_outcome(episode: Episode, evidence_settings: EvidenceSettings | None) -> EpisodeOutcome:
    """Return an episode of the team as an outcome; without a verdict, the judge gives the reward."""
    figures = {
        "turns": float(len(episode.turns)),
        "tool_calls": float(sum(turn.action is not None for turn in episode.turns)),
        "tool_errors": float(sum(turn.failed for turn in episode.turns)),
        "answered": float(episode.failure is None),
    }
    evidence = (
        evidence_score(episode)
        if evidence_settings is None
        else evidence_score(episode, evidence_settings.beta)
    )
    if evidence is not None:
        figures[EVIDENCE] = evidence
    if episode.failure is not None:
        return EpisodeOutcome(answer="", reward=0.0, metrics=figures)
    if episode.verdict is None:
        return EpisodeOutcome(answer=episode.answer, metrics=figures)
    scored = scored_verdict(episode.verdict)
    if scored.failure is not None:
        return EpisodeOutcome(answer=episode.answer, failure=scored.failure.message, metrics=figures)
    return EpisodeOutcome(answer=episode.answer, reward=scored.score, metrics=figures)


_MAX_CHARS: Final = 200
_LEAVE_SECONDS: Final = 10.0
_POLL_PAUSE: Final = 0.5
_DEBUG_SECONDS: Final = 7 * 24 * 3600.0
"""Limits of an episode with breakpoints."""


class WorkflowRollouts:
    """Opens the gateway of a run, and plays its episodes with a workflow. Implements `RolloutFactory`."""

    def __init__(
        self,
        config: TuneConfig,
        solve: Solve | str | None,
        reward: JudgeSpec = None,
        *,
        own_tasks: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Configure it.

        :param solve: the agent, or `team` for our own; `None`: only clients of a swarm play.
        :param reward: reward of episodes; `None`: the metric of the tasks.
        :param own_tasks: clients bring tasks of their own.
        :param say: receives the address of the gateway.
        """
        self._own_tasks = own_tasks
        self._say = say
        self._config = config
        self._solve = solve
        self._reward = reward

    def models(self, config: object) -> Mapping[str, ModelSettings]:
        """Return the policy and the models of agents that are not trained."""
        del config
        return self._config.wanted_models()

    @asynccontextmanager
    async def open(self, context: RolloutContext) -> AsyncGenerator[PolicyRollout]:
        """Start the gateway, and play what is offered."""
        config = self._config
        settings, seconds = config.gateway_settings(context.models), config.episodes.episode_seconds
        async with self._opened(settings, context, seconds) as opened, AsyncExitStack() as stack:
            if opened.players is not None:
                await stack.enter_async_context(opened.players.running())
            if self._say is not None:
                self._say(f"clients: {opened.url}; their token is in {config.output / 'swarm.json'}")
            yield opened.rollout
            await opened.client.finish()
            if opened.players is None:
                await _let_clients_leave(opened.client)

    async def debug(
        self, config: object, assignment: Assignment, say: Callable[[str], None]
    ) -> dict[str, float]:
        """Play one episode after the other and print each; return the figures of the last step.

        Episodes have no time limit, so breakpoints work in the workflow and in rewards.
        """
        del config
        tune_config = self._config
        if self._solve is None:
            raise ConfigurationError(
                "backbone: debug plays episodes in this process; start swarm serve with another one"
            )
        if not tune_config.engine.base_url:
            raise ConfigurationError(
                "engine.base_url: backbone=debug starts no engine; name a running server"
            )
        models = await models_at_engine(tune_config, tune_config.wanted_models())
        exact = await renders_tokens(models[POLICY])
        settings = tune_config.gateway_settings(models, tokens=exact)
        limits = settings.limits.model_copy(
            update={"attempts": 1, "idle_seconds": _DEBUG_SECONDS, "total_seconds": _DEBUG_SECONDS}
        )
        rules = tune_config.episodes
        context = RolloutContext(
            config=tune_config,
            assignment=assignment,
            models=models,
            engine_ready=checkpoint,
            on_result=lambda result: None,
            accounts=Accounts(max_tokens=rules.max_total_tokens, max_cost=rules.max_cost),
        )
        figures: dict[str, float] = {}
        tasks, size = debug_counts(tune_config)
        order = TaskOrder(assignment.tasks, seed=tune_config.seed, epochs=tune_config.schedule.epochs)
        async with self._opened(settings.model_copy(update={"limits": limits}), context, inf) as opened:
            for step in range(1, (tune_config.schedule.steps or 1) + 1):
                groups = [await _debug_group(opened, draw, size, say) for draw in order.take(tasks)]
                if not groups:
                    break
                samples = [sample for group in groups for sample in group.samples]
                figures = report_step(step, samples, tune_config.loss, say)
        return figures

    @asynccontextmanager
    async def _opened(
        self, settings: GatewaySettings, context: RolloutContext, seconds: float
    ) -> AsyncGenerator["_OpenedGateway"]:
        """Open the judge, the gateway and the players.

        :param seconds: time limit of an episode.
        """
        async with AsyncExitStack() as stack:
            judge = await self._open_judge(stack, context)
            gateway = await stack.enter_async_context(Gateway(settings))
            client = await stack.enter_async_context(GatewayClient(gateway.url, gateway.token))
            rollout = GatewayRollout(
                client,
                judge,
                temperature=settings.temperature,
                seed=self._config.seed,
                version=context.version,
                own_tasks=self._own_tasks,
                evidence=self._config.tasks.evidence,
                width=self._config.branch_width,
                engine_ready=context.engine_ready,
                on_result=context.on_result,
            )
            await stack.enter_async_context(rollout.running())
            solve, rules, players = self._solve, self._config.episodes, None
            if isinstance(solve, str):
                team_models = self._config.team_models(context.models)
                team = open_team_workflow(
                    self._config, context.assignment, team_models, f"{gateway.url}/v1", context.accounts
                )
                solve = await stack.enter_async_context(team)
            if solve is not None:
                sandbox = None
                if takes_sandbox(solve) or judge.needs_sandbox:
                    supervisor = Supervisor(name="sandboxes", intensity=3, period=60)
                    await stack.enter_async_context(supervisor)
                    pool = (await open_sandbox_pool(supervisor, rules)).sandboxes
                    sandbox = pool.fresh
                players = WorkflowPlayers(
                    client,
                    solve,
                    judge=judge,
                    sandbox=sandbox,
                    at_once=rules.workers,
                    seconds=seconds,
                    max_states=rules.max_sandboxes,
                )
            yield _OpenedGateway(gateway.url, client, rollout, players)

    async def _open_judge(self, stack: AsyncExitStack, context: RolloutContext) -> EpisodeJudge:
        """Return the judge of the run, with its model if there is one."""
        assignment = context.assignment
        spec = assignment.metric if self._reward is None else self._reward
        options = assignment.options if self._reward is None else None
        model = None
        if JUDGE in context.models:
            supervisor = await stack.enter_async_context(Supervisor(name="judge", intensity=3, period=60))
            model = (await open_models(supervisor, {JUDGE: context.models[JUDGE]}, context.accounts))[JUDGE]
        judge = make_judge(spec, options=options, model=model)
        if not self._own_tasks:
            await judge.prepare(assignment.tasks)
        return judge


class _OpenedGateway(NamedTuple):
    """The gateway of a run, with its rollout."""

    url: str
    client: GatewayClient
    rollout: GatewayRollout
    players: WorkflowPlayers | None
    """Players in this process; `None`: only clients of a swarm play."""


async def _let_clients_leave(client: GatewayClient) -> None:
    """Keep the gateway for a moment, so that clients are told that the run is over."""
    with anyio.move_on_after(_LEAVE_SECONDS):
        open_episodes = 1
        while open_episodes:
            await anyio.sleep(_POLL_PAUSE)
            open_episodes = (await client.status()).states.get(EpisodeState.OPEN, 0)


async def _debug_group(
    opened: _OpenedGateway, draw: TaskDraw, size: int, say: Callable[[str], None]
) -> Group:
    """Play the episodes of a draw one after the other and print each."""
    assert opened.players is not None
    say(f"task {draw.task.id}: {_short(draw.task.question)}")
    results: list[EpisodeResult | None] = [None] * size
    groups: list[Group] = []

    async def group() -> None:
        groups.append(await opened.rollout.group(draw, size, results))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(group)
        for member in range(size):
            while (begun := await opened.client.begin(wait=POLL_SECONDS)) is None:
                pass
            outcome = await opened.players.play(begun)
            say(f"  episode {member + 1}:")
            if outcome is not None and outcome.answer is not None:
                say(f"    answer: {_short(outcome.answer) or '(none)'}")
    for result in filter(None, results):
        if result.failure is not None:
            say(f"  left out: {result.failure.kind}: {_short(result.failure.message)}")
    return groups[0]


async def renders_tokens(model: ModelSettings) -> bool:
    """Return true if an engine renders conversations as tokens, as vLLM does if it was started for training.

    See docs/tuner.md.
    """
    address = f"{model.base_url.rstrip('/')}/chat/completions/render"
    body = {"model": model.name, "messages": [{"role": "user", "content": "?"}]}
    headers = {"Authorization": f"Bearer {model.api_key.get_secret_value()}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(address, json=body) as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
