"""Groups of episodes that clients of a gateway play, and their samples: the exact calls of trained agents, with rewards."""

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from math import isfinite
from statistics import fmean
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from msgspec import UNSET, structs

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.gateway import (
    EndedEpisode,
    EpisodeBranch,
    EpisodeMode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeState,
    GatewayClient,
    GatewayError,
    PromptOrigin,
    RecordedCall,
    rewards_of,
    trained_tokens,
)
from agentflow.learner import (
    ANSWER_SCORE,
    EVIDENCE,
    Batch,
    EpisodeResult,
    EvidenceSettings,
    FailureCause,
    Group,
    Sample,
    TaskDraw,
    sample_of_calls,
)
from agentflow.scoring import Scored, ScoreGuard
from agentflow.telemetry import get_logger
from agentflow.trace import Failure, Task, digest
from agentflow.tuner._workflow import ONLY_AGENT, TIME_PREFIX
from agentflow.tuner.judges import EpisodeJudge, Judged

logger = get_logger(__name__)

SEPARATOR: Final = "#"
"""Between an episode or group and the name of an agent."""
_CONTINUED: Final = frozenset({PromptOrigin.OPENING, PromptOrigin.APPENDED})
_OWN = "own/"
_TAKEN = 409
_MODEL_TRIES = 3
_NO_ANSWER = "the model gave no answer"
"""Part of the gateway's error for a lost engine; SDKs repeat it in theirs."""
WAIT_SECONDS = 20.0
"""Longest wait of one request for ended episodes."""


class GatewayRollout:
    """Offers the slots of groups, and returns their episodes once clients have played them. Implements `PolicyRollout`."""

    def __init__(
        self,
        gateway: GatewayClient,
        judge: EpisodeJudge,
        *,
        temperature: float,
        seed: int = 0,
        version: int = 0,
        own_tasks: bool = False,
        evidence: EvidenceSettings | None = None,
        width: int = 1,
        engine_ready: Callable[[], Awaitable[None]] = checkpoint,
        on_result: Callable[[EpisodeResult], None] | None = None,
    ) -> None:
        """Configure it.

        :param judge: gives outcomes without a reward their rewards.
        :param temperature: sampling temperature of trained agents.
        :param seed: seed of everything that is sampled.
        :param version: version of the weights that sample now.
        :param own_tasks: a group is the next one that clients have played for a task of their own, whatever is drawn.
        :param evidence: reward for the documents that an episode reads, by its figure `evidence`.
        :param width: number of episodes of a group that part at a decision; 1: they are independent.
        :param engine_ready: waits until the engine answers.
        :param on_result: called with the result of each episode.
        """
        self.version = version
        """Version of the weights that sample now."""
        self._gateway = gateway
        self._judge = judge
        self._temperature = temperature
        self._seed = seed
        self._engine_ready = engine_ready
        self._on_result = on_result
        self._guard = ScoreGuard(judge.name)
        self._engine = anyio.Lock()
        self._waiting: dict[str, anyio.Event] = {}
        self._arrived: dict[str, EndedEpisode] = {}
        self._ids: dict[int, list[str]] = {}
        self._own_tasks = own_tasks
        self._evidence = evidence
        self._width = width
        self._own_groups: dict[str, dict[str, EndedEpisode]] = {}
        self._own_changed = anyio.Event()
        self._validated: list[str] = []
        self._step = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Collect ended episodes inside the block."""
        # An earlier run in this folder may have ended: an offer opens the gateway again, before anybody begins an episode.
        await self._gateway.offer([])
        # A trainer that was killed while weights changed has left calls waiting.
        await self._gateway.go_on()
        await self._gateway.set_version(self.version)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._collect)
            yield
            tasks.cancel_scope.cancel()

    async def group(
        self, draw: TaskDraw, size: int, results: list[EpisodeResult | None] | None = None
    ) -> Group:
        """Offer all slots of a draw and wait for their episodes.

        :raises RunStopped: if the run can't continue.
        """
        filled: list[EpisodeResult | None] = [None] * size if results is None else results
        if self._own_tasks:
            return await self._next_own_group(draw, size, filled)
        ids = self._ids[draw.number] = [f"{draw.number}/{member}" for member in range(size)]
        offers = [
            self._offer(id, draw.group, draw.task, (draw.number, member)) for member, id in enumerate(ids)
        ]
        if self._width > 1:
            branches = tree_of_group(ids, self._width)
            offers = [
                structs.replace(offer, branch=branch) for offer, branch in zip(offers, branches, strict=True)
            ]
        numbers: dict[int, int] = {}
        """Numbers of the ends whose results are in the group."""
        ended = {id: anyio.Event() for id in ids}

        async def collect(member: int) -> None:
            offer = offers[member]
            if offer.origin:
                await ended[offer.origin].wait()
                origin = filled[ids.index(offer.origin)]
                offer = self._continued(offer, origin) if origin is not None else None
                if offer is not None:
                    await self._offer_all([offer])
            if offer is not None:
                filled[member], numbers[member] = await self._result(offer)
            else:
                # Its origin ended before the decision, and stands for it.
                filled[member] = EpisodeResult()
            ended[ids[member]].set()

        with self._expecting(offers):
            await self._offer_all([offer for offer in offers if not offer.origin])
            async with anyio.create_task_group() as tasks:
                for member in range(size):
                    tasks.start_soon(collect, member)
            for member, id in enumerate(ids):
                # A client may have replaced its reward in the meantime.
                if member in numbers and self._arrived[id].number != numbers[member]:
                    filled[member] = await self._result_of(self._arrived[id])
        return self.group_of(draw, filled)

    def group_of(self, draw: TaskDraw, results: Sequence[EpisodeResult | None]) -> Group:
        """Return the group of a draw so far; an episode without a result was cancelled because it took too long."""
        cancelled = Failure(FailureCause.STALE, "it did not end before its weights were too old")
        samples: list[Sample] = []
        failures: list[Failure] = []
        for result in results:
            if result is None or result.failure is not None:
                failures.append(cancelled if result is None or result.failure is None else result.failure)
            else:
                samples += result.samples
        return Group(
            number=draw.number,
            name=draw.group,
            samples=tuple(samples),
            failures=tuple(failures),
            task_class=draw.task_class,
        )

    async def one(
        self,
        task: Task,
        place: Sequence[object],
        *,
        temperature: float | None = None,
        max_turns: int | None = None,
    ) -> EpisodeResult:
        """Run one episode of a validation.

        :param max_turns: not used: the agent decides.
        :raises RunStopped: if the run can't continue.
        """
        del max_turns
        id = "/".join(map(str, [*place, self._step]))
        offer = self._offer(id, id, task, place, mode="validate", temperature=temperature)
        with self._expecting([offer]):
            await self._offer_all([offer])
            result, _ = await self._result(offer)
        self._validated.append(id)
        return result

    async def publish(self, version: int, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish new weights while calls are held."""
        async with self._paused():
            await publish()
            await self._gateway.set_version(version)

    async def use(self, batch: Batch) -> None:
        """Mark the episodes of a batch as used, and drop the others of groups that no later step can use."""
        used = {sample.id.partition(SEPARATOR)[0] for sample in batch.samples}
        done = [number for number in self._ids if number < batch.taken and number not in batch.pending]
        ids = [id for number in sorted(done) for id in self._ids.pop(number)]
        await self._gateway.use([*sorted(used), *self._validated], batch.step)
        if others := [id for id in ids if id not in used]:
            await self._gateway.withdraw(others)
        self._validated.clear()
        self._step = batch.step

    def _continued(self, offer: EpisodeOffer, origin: EpisodeResult) -> EpisodeOffer | None:
        """Return the offer of an episode whose origin has ended; `None`: the origin made too few calls to part from it.

        If the origin was left out, the episode is independent.
        """
        branch = offer.branch
        assert branch, "only branches have an origin"
        if origin.failure is not None:
            return structs.replace(offer, branch=structs.replace(branch, origin=""))
        # An origin that another episode stands for has no sample.
        sample = next(iter(origin.samples), None)
        if sample is None or len(sample.calls) <= branch.calls:
            return None
        ended, version = self._arrived[branch.origin], int(sample.details["version"])
        begun = structs.replace(branch, attempt=ended.attempt, version=version, tree=_tree(ended.offer))
        return structs.replace(offer, branch=begun)

    def _offer(
        self,
        id: str,
        group: str,
        task: Task,
        path: Sequence[object],
        *,
        mode: EpisodeMode = "train",
        temperature: float | None = None,
    ) -> EpisodeOffer:
        seed = digest([self._seed, *path])
        return EpisodeOffer(id=id, group=group, task=task, mode=mode, seed=seed, temperature=temperature)

    @contextmanager
    def _expecting(self, offers: Iterable[EpisodeOffer]) -> Generator[None]:
        """Keep what arrives for these slots."""
        ids = [offer.id for offer in offers]
        self._waiting.update({id: anyio.Event() for id in ids})
        try:
            yield
        finally:
            for id in ids:
                self._waiting.pop(id, None)
                self._arrived.pop(id, None)

    async def _collect(self) -> None:
        after = 0
        while True:
            for ended in await self._gateway.ended(after, WAIT_SECONDS):
                after = max(after, ended.number)
                if (waiting := self._waiting.get(ended.offer.id)) is not None:
                    self._arrived[ended.offer.id] = ended
                    waiting.set()
                elif ended.offer.id.startswith(_OWN):
                    await self._add_own(ended)

    async def _add_own(self, ended: EndedEpisode) -> None:
        """Keep an episode of a client's own task; a run with tasks drops it."""
        id = ended.offer.id
        if not self._own_tasks or ended.offer.mode != "train":
            logger.warning("episode of a client's own task dropped: this run has tasks", episode=id)
            await self._gateway.withdraw([id])
        elif not any(id in ids for ids in self._ids.values()):
            self._own_groups.setdefault(ended.offer.group, {})[id] = ended
            self._own_changed.set()
            self._own_changed = anyio.Event()

    async def _next_own_group(self, draw: TaskDraw, size: int, filled: list[EpisodeResult | None]) -> Group:
        """Return the next group of a client's own task, once all its episodes have ended."""
        while (
            name := next((name for name, ended in self._own_groups.items() if len(ended) >= size), None)
        ) is None:
            changed = self._own_changed
            await changed.wait()
        episodes = self._own_groups.pop(name)
        self._ids[draw.number] = sorted(episodes)
        for member, id in enumerate(sorted(episodes)):
            result = await self._result_of(episodes[id])
            filled[member] = result
            if self._on_result is not None:
                self._on_result(result)
        return self.group_of(draw, filled)

    async def _offer_all(self, offers: Sequence[EpisodeOffer]) -> None:
        try:
            await self._gateway.offer(offers)
        except GatewayError as error:
            if error.status != _TAKEN:
                raise
            raise ConfigurationError(
                f"output_dir: its folder gateway has the episodes of another run ({error.message}); remove that folder, or "
                "name another output_dir"
            ) from None

    async def _result(self, offer: EpisodeOffer) -> tuple[EpisodeResult, int]:
        """Return the result of a slot once its episode has ended, and its number; a lost engine is waited for."""
        tries = _MODEL_TRIES
        while True:
            await self._waiting[offer.id].wait()
            ended = self._arrived[offer.id]
            result = await self._result_of(ended)
            tries -= 1
            if result.failure is None or result.failure.kind != FailureCause.MODEL or not tries:
                break
            self._waiting[offer.id] = anyio.Event()
            async with self._paused():
                await self._engine_ready()
            await self._offer_all([offer])
        if self._on_result is not None:
            self._on_result(result)
        return result, ended.number

    @asynccontextmanager
    async def _paused(self) -> AsyncGenerator[None]:
        """Let calls wait inside the block."""
        async with self._engine:
            await self._gateway.hold()
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._gateway.go_on()

    async def _result_of(self, ended: EndedEpisode) -> EpisodeResult:
        """Return an ended episode as a result, scored where its client did not."""
        outcome = ended.outcome
        if ended.state in (EpisodeState.ABORTED, EpisodeState.EXPIRED):
            return EpisodeResult(failure=_lost(ended), version=ended.version)
        calls = await self._gateway.calls(ended.offer.id, ended.attempt)
        if ended.state is EpisodeState.SEALED:
            outcome = await self._scored(ended, calls)
            await self._gateway.score(ended.offer.id, ended.attempt, outcome)
        if outcome.failure:
            return EpisodeResult(failure=Failure(FailureCause.REWARD, outcome.failure), version=ended.version)
        offer, version = ended.offer, ended.version
        if (branch := offer.branch) and branch.origin:
            version = min(version, branch.version)
        temperature = self._temperature if offer.temperature is None else offer.temperature
        try:
            samples = episode_samples(
                calls, outcome, group=offer.group, id=offer.id, temperature=temperature, version=version
            )
        except UnusableOutcome as error:
            logger.warning("episode left out", episode=offer.id, task=offer.task.id, problem=str(error))
            return EpisodeResult(failure=Failure(FailureCause.REWARD, str(error)), version=ended.version)
        if branch:
            samples = tuple(_in_tree(sample, offer, branch) for sample in samples)
        evidence = outcome.metrics.get(EVIDENCE)
        score = None
        if self._evidence is not None:
            score = fmean(sample.reward for sample in samples)
            rewarded = evidence if outcome.metrics.get("answered", 1.0) else 0.0
            samples = tuple(_rewarded(sample, self._evidence, rewarded or 0.0) for sample in samples)
        return EpisodeResult(
            reward=fmean(sample.reward for sample in samples),
            version=version,
            success=outcome.success,
            samples=samples,
            details=_shared_details(samples),
            answer_score=score,
            evidence=evidence,
        )

    async def _scored(self, ended: EndedEpisode, calls: Sequence[RecordedCall]) -> EpisodeOutcome:
        offer = ended.offer
        judged = Judged(task=offer.task, outcome=ended.outcome, calls=tuple(calls), episode=offer.id)
        outcome = await self._judge.judge(judged)
        failure = Failure(FailureCause.REWARD, outcome.failure) if outcome.failure else None
        self._guard.check(Scored(0.0, failure=failure), offer.task.id)
        return outcome


def tree_of_group(ids: Sequence[str], width: int) -> list[EpisodeBranch]:
    """Return the branch of each episode of a group, as `EveryDecision` divides the group among its decisions.

    See docs/tuner.md.

    :param width: number of episodes that part at a decision.
    """
    branches: dict[int, EpisodeBranch] = {}

    def add(origin: str, path: tuple[int, ...], share: int) -> None:
        """Add the episode that first takes a path, and those that part from it; together they are so many."""
        member = len(branches)
        branch = branches[member] = EpisodeBranch(origin=origin, calls=len(path) - 1)
        parting: list[tuple[tuple[int, ...], int]] = []
        while share > 1:
            first, *others = _shares(share, width)
            parting += [((*path, number), other) for number, other in enumerate(others, 1)]
            path, share = (*path, 0), first
        splits = tuple((len(other) - 1, count) for other, count in parting)
        branches[member] = structs.replace(branch, path=path, splits=splits)
        for other, count in parting:
            add(ids[member], other, count)

    for number, count in enumerate(_shares(len(ids), width)):
        add("", (number,), count)
    return [branches[member] for member in range(len(ids))]


def _shares(share: int, width: int) -> list[int]:
    """Return the numbers of episodes that the continuations of a decision stand for."""
    count = min(share, width)
    return [len(range(position, share, count)) for position in range(count)]


def _tree(offer: EpisodeOffer) -> int:
    """Return the number of the tree of an ended episode: one of its own if it does not repeat what it should have."""
    branch = offer.branch
    if not branch:
        return 0
    return int(offer.id.rpartition("/")[2]) if branch.calls and not branch.origin else branch.tree


def _in_tree(sample: Sample, offer: EpisodeOffer, branch: EpisodeBranch) -> Sample:
    """Return a sample with the nodes of its calls, and the number of episodes that it stands for."""
    path = (*branch.path, *(0,) * len(sample.calls))
    tree, count = str(_tree(offer)), len(sample.calls)
    nodes = tuple("-".join([tree, *map(str, path[:depth])]) for depth in range(1, count + 1))
    own = sample.calls[branch.calls if branch.origin else 0 :]
    # So that the means of steps are of what was sampled, and shared calls count once.
    details = {**sample.details, "sampled_tokens": float(sum(len(call.sampled) for call in own))}
    ended_for = sum(share for calls, share in branch.splits if calls >= count)
    return structs.replace(sample, nodes=nodes or UNSET, multiplicity=1 + ended_for, details=details)


def _rewarded(sample: Sample, settings: EvidenceSettings, evidence: float) -> Sample:
    """Return a sample with the reward for the documents that its episode read."""
    details = {**sample.details, ANSWER_SCORE: sample.reward}
    return structs.replace(sample, reward=settings.reward(sample.reward, evidence), details=details)


def _lost(ended: EndedEpisode) -> Failure:
    """Return the reason for leaving out an episode that did not end."""
    why = ended.outcome.failure or "its client gave it up"
    if ended.state is EpisodeState.EXPIRED:
        return Failure(FailureCause.TIME, why)
    if why.startswith(TIME_PREFIX):
        return Failure(FailureCause.TIME, why.removeprefix(TIME_PREFIX))
    return Failure(FailureCause.MODEL if _NO_ANSWER in why else FailureCause.CRASHED, why)


def _shared_details(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the figures of an episode: sums of counts over its agents, other figures once."""
    details = dict(samples[0].details)
    for name in ("calls", "forks", "sampled_tokens"):
        details[name] = sum(sample.details[name] for sample in samples)
    return details


class UnusableOutcome(AgentFlowError):
    """An outcome that can't be trained on; the message is one line."""


def episode_samples(
    calls: Sequence[RecordedCall],
    outcome: EpisodeOutcome,
    *,
    group: str,
    id: str,
    temperature: float,
    version: int = 0,
) -> tuple[Sample, ...]:
    """Return an episode as samples: one for each trained agent that has a reward.

    Agents with names have groups of their own, `GROUP#AGENT`. Only answers that the client received are trained.

    :param version: weights at its beginning.
    :raises UnusableOutcome: if a reward is missing, not finite, or for an unknown call.
    """
    trained = [call for call in calls if call.trained and call.delivered]
    exact = trained_tokens(calls)
    agents = sorted({call.agent for call in trained}) or [ONLY_AGENT]
    rewards = _checked_rewards(outcome, agents)
    _check_turns(outcome.turn_rewards, {call.id for call in calls})
    if any(call.origin is PromptOrigin.IMAGES for call in trained):
        raise UnusableOutcome(
            "a trained agent was sent images, and their exact tokens are not known; give images to an agent that is not "
            "trained, or write them as text"
        )
    if trained and not exact:
        raise UnusableOutcome(
            "the engine reported no tokens; name a vLLM that was started for training, or let the run start one"
        )
    samples: list[Sample] = []
    for agent in agents:
        if agent not in rewards:
            continue
        calls_of_agent = exact.get(agent, [])
        suffix = f"{SEPARATOR}{agent}" if agent else ""
        turns = [outcome.turn_rewards.get(call, 0.0) for call, _ in calls_of_agent]
        samples.append(
            sample_of_calls(
                [tokens for _, tokens in calls_of_agent],
                group=f"{group}{suffix}",
                id=f"{id}{suffix}",
                reward=rewards[agent],
                temperature=temperature,
                version=version,
                turn_rewards=turns if any(turns) else (),
                details=_details([call for call in trained if call.agent == agent], outcome),
            )
        )
    return tuple(samples)


def _checked_rewards(outcome: EpisodeOutcome, agents: Collection[str]) -> dict[str, float]:
    """Return the reward of each agent.

    :raises UnusableOutcome: if there is none, or one is not finite.
    """
    rewards = rewards_of(outcome, dict.fromkeys(agents))
    if not rewards:
        rewarded = (
            f"rewards of {', '.join(sorted(outcome.reward))}"
            if isinstance(outcome.reward, dict)
            else "no reward"
        )
        raise UnusableOutcome(f"the outcome has {rewarded}, and the trained agents are {_names(agents)}")
    for agent, reward in rewards.items():
        if not isfinite(reward):
            raise UnusableOutcome(
                f"the reward{f' of {agent}' if agent else ''} is {reward}; return a finite number"
            )
    return rewards


def _check_turns(turns: Mapping[str, float], calls: Collection[str]) -> None:
    for call, reward in turns.items():
        if call not in calls:
            raise UnusableOutcome(f"turn_rewards: the episode has no call {call}")
        if not isfinite(reward):
            raise UnusableOutcome(f"turn_rewards: that of call {call} is {reward}; return a finite number")


def _details(calls: Sequence[RecordedCall], outcome: EpisodeOutcome) -> dict[str, float]:
    details = {
        "calls": float(len(calls)),
        "forks": float(sum(call.origin not in _CONTINUED for call in calls)),
        "constrained": float(sum(call.constrained for call in calls)),
        **{name: float(value) for name, value in outcome.metrics.items() if isfinite(value)},
    }
    return details if outcome.success is None else {**details, "success": float(outcome.success)}


def _names(agents: Collection[str]) -> str:
    return ", ".join(agent or '"" (the only one)' for agent in agents)
