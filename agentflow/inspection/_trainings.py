"""Training and tuning runs: their stored rollouts, figures and, of any agent, the record of the gateway."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from agentflow._folder_files import read_lines
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.gateway import RecordedCall, recorded_image
from agentflow.inspection._reader import MAX_TEXT, RunReader, excerpt, mime_of, short, shown_message
from agentflow.inspection._recorded import agent_record, content_key, unused_episodes
from agentflow.inspection._trees import child_of, parent_of, sort_node_paths
from agentflow.inspection._types import (
    CallDetail,
    CallSummary,
    NodeDetail,
    NodePart,
    NodeSummary,
    RunChanges,
    RunHit,
    RunKind,
    RunSummary,
    SeedAnswer,
    SeedCounts,
    SeedRecord,
    SeedResults,
    SeedSummary,
    SeedTokens,
    ShownMessage,
    StepFigures,
    TreeSkeleton,
    WorkState,
    empty_tree,
    numbered_calls,
)
from agentflow.learner import ANSWER_SCORE
from agentflow.learner.trackers import METRICS, read_figures
from agentflow.runs import is_output_active
from agentflow.settings import read_run_settings
from agentflow.trace import Decode, Tokens, Usage, token_texts

if TYPE_CHECKING:
    from agentflow.learner import EpisodeTokens, RunTokens

GATEWAY: Final = "gateway"
"""Folder of the gateway in that of a tuning."""
ROLLOUTS: Final = "rollouts"
"""Folder of the stored rollouts of steps."""
_DRAW: Final = re.compile(r"@\d+(#.*)?$", re.DOTALL)
"""End of a group's name: the number of its draw, and its agent."""
_FAILED: Final = "episodes/failed_"
_REMEMBERED_STEPS: Final = 2


class TrainingFolder(RunReader):
    """A training or tuning. Its seeds are the episodes that steps used; their nodes are the trained model calls."""

    def __init__(self, id: str, folder: Path) -> None:
        """:param folder: its `output_dir`."""
        self.id = id
        self.name = folder.name
        self.folder = folder
        """Folder of the run."""
        self.kind = self._kind(settings_of(folder))
        self._gateway = folder / GATEWAY
        # Stored steps never change.
        self._list, self._count = cache(self._list_of), cache(self._count_of)

    def summary(self) -> RunSummary:
        """Return the run without its episodes."""
        settings = read_run_settings(self.folder)
        metrics = self.metrics()
        made = max((line.step for line in metrics), default=0)
        used, cost = _usage(metrics)
        done = (self.folder / "policy").is_dir()
        active = is_output_active(self.folder)
        state = WorkState.RUNNING if active else WorkState.DONE if done else WorkState.STOPPED
        policy = settings.get("policy")
        times = [path.stat().st_mtime for path in self._step_files()]
        return RunSummary(
            id=self.id,
            name=self.name,
            kind=self._kind(settings),
            state=state,
            folder=str(self.folder),
            started=min(times, default=None),
            seeds=SeedCounts(done=sum(map(self._count, self._stored_steps()))),
            usage={"all roles": used} if used.calls else {},
            cost=cost if used.calls else None,
            failures=_failures(metrics),
            steps=made,
            models={"policy": str(policy["model"])} if is_object(policy) and "model" in policy else {},
            settings=dict(settings),
        )

    def _kind(self, settings: Mapping[str, Any]) -> RunKind:
        is_tuning = "solve" in settings or (self.folder / GATEWAY).is_dir()
        return RunKind.TUNING if is_tuning else RunKind.TRAINING

    @property
    def key(self) -> str:
        """Digest of the stored rollouts and recorded episodes: the same content gives the same key."""
        return content_key(self.folder, self._step_files(), self._gateway)

    def records(self) -> Iterator[SeedRecord]:
        """Yield the episodes of all steps, then those that a gateway recorded and no step used."""
        used = set[str]()
        # A tuning in its first step has none.
        stored = self._stored_steps() or self.kind is RunKind.TRAINING
        for episode in _tokens(self.folder).episodes() if stored else ():
            sample, recorded = episode.sample, episode.record
            record = SeedRecord(
                tree=empty_tree(sample.id, _DRAW.sub("", sample.task), ""), draw=sample.task, is_episode=True
            )
            if recorded is not None:
                used.add(recorded.offer.id)
                record = agent_record(recorded, episode.agent)
            advantages = {str(n): episode.advantage_of(n - 1) for n in range(1, len(sample.calls) + 1)}
            facts = {"step": episode.step, "agent": episode.agent, "turn_rewards": sample.turn_rewards}
            yield replace(
                record,
                calls=numbered_calls(sample.calls, episode.agent),
                advantages={call: value for call, value in advantages.items() if value is not None},
                reward=sample.reward,
                answer_score=sample.details.get(ANSWER_SCORE),
                leaf=_leaf_of(sample.id),
                facts={**record.facts, **facts},
            )
        yield from unused_episodes(self._gateway, used)

    def metrics(self) -> list[StepFigures]:
        """Return the figures of all steps."""
        try:
            lines = read_figures(self.folder / METRICS)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(f"{self.folder / METRICS}: can't be read: {error.strerror}") from None
        return [
            StepFigures(
                step=int(line.get("step") or 0), figures={k: v for k, v in line.items() if k != "step"}
            )
            for line in lines
        ]

    def seeds(
        self, after: str = "", limit: int = 200, text: str = "", state: WorkState | None = None
    ) -> list[SeedSummary]:
        """Return episodes in the order of the steps that used them."""
        if state not in (None, WorkState.DONE):
            return []
        matches: list[SeedSummary] = []
        begin = self._step_of(after) if after else 0
        skip = bool(after)
        for step in self._stored_steps():
            if step < begin:
                continue
            for episode in self._list(step):
                if skip:
                    skip = episode.id != after
                elif text.casefold() in f"{episode.id} {episode.text}".casefold():
                    matches.append(episode)
                    if len(matches) == limit:
                        return matches
        return matches

    def seed(self, seed: str) -> SeedSummary:
        """Return one episode."""
        for episode in self._list(self._step_of(seed)):
            if episode.id == seed:
                return episode
        raise KeyError(seed)

    def skeleton(self, seed: str) -> TreeSkeleton:
        """Return the calls of an episode: a call is below the one that it continues."""
        node_paths = list(self._numbers(self._episode(seed)))
        sort_node_paths(node_paths)
        return TreeSkeleton(
            seed=seed, state=WorkState.DONE, spots=("", *node_paths), marks="n" * (len(node_paths) + 1)
        )

    def nodes(self, seed: str, node_paths: Sequence[str]) -> list[NodeSummary]:
        """Return calls as rows."""
        episode = self._episode(seed)
        numbers = self._numbers(episode)
        children = Counter(map(parent_of, numbers))
        rows: list[NodeSummary] = []
        for node_path in node_paths:
            if not node_path:
                rows.append(NodeSummary(spot="", line=short(episode.heading), children=children[node_path]))
            elif node_path in numbers:
                line = short(self._answer(episode.sample.calls[numbers[node_path]])[:2_000])
                rows.append(NodeSummary(spot=node_path, tool="call", line=line, children=children[node_path]))
        return rows

    def children(self, seed: str, node_path: str) -> list[NodeSummary]:
        """Return the calls that continue a call."""
        node_paths = self._numbers(self._episode(seed))
        if node_path and node_path not in node_paths:
            raise KeyError(node_path)
        return self.nodes(seed, [child for child in node_paths if parent_of(child) == node_path])

    def node(self, seed: str, node_path: str) -> NodeDetail:
        """Return a call with its text."""
        episode = self._episode(seed)
        numbers = self._numbers(episode)
        children = len(self.children(seed, node_path))
        if not node_path:
            parts = (_part(episode.heading), _part(episode.summary()))
            return NodeDetail(spot="", id=episode.sample.id, parts=parts, children=children)
        number = numbers[node_path]
        tokens = episode.sample.calls[number]
        about = episode.calls()[number]
        call = CallSummary(
            key=about.id,
            role=episode.agent or "policy",
            text=self._answer(tokens),
            usage=Usage(1, about.prompt, about.sampled),
            sampled=about.sampled,
        )
        advantage = "not trained" if about.advantage is None else f"advantage {about.advantage:+.3f}"
        return NodeDetail(
            spot=node_path,
            id=about.id,
            intent=f"{about.reason}: {about.note}" if about.note else about.reason,
            tool="call",
            parts=(_part(call.text),),
            reason=advantage,
            children=children,
            calls=(call,),
        )

    def call(self, seed: str, key: str) -> CallDetail:
        """Return a call with its messages as the gateway recorded them, or with the text of its prompt."""
        episode = self._episode(seed)
        for other in _other_calls(episode):
            if other.id == key:
                return CallDetail(call=_summary(other), prompt=tuple(map(shown_message, other.messages)))
        node_path = next(
            (node_path for node_path, number in self._numbers(episode).items() if str(number + 1) == key),
            None,
        )
        if node_path is None:
            raise KeyError(key)
        call = self.node(seed, node_path).calls[0]
        trained = [other for other in episode.recorded if _is_of_sample(other, episode)]
        number = int(key) - 1
        if number < len(trained):
            return CallDetail(call=call, prompt=tuple(map(shown_message, trained[number].messages)))
        text = self._decoding[0](episode.sample.calls[number].prompt)
        return CallDetail(call=call, prompt=(ShownMessage(role="prompt", text=text[:MAX_TEXT]),))

    def calls(self, seed: str) -> list[CallSummary]:
        """Return the other calls of an episode: those of other agents, and answers that no client received."""
        return [_summary(call) for call in _other_calls(self._episode(seed))]

    def blob(self, digest: str) -> tuple[bytes, str]:
        """Return an image of a conversation that the gateway recorded, and its MIME type."""
        data = recorded_image(self._gateway, digest)
        return data, mime_of(data)

    def results(self, seed: str) -> SeedResults:
        """Return the reward of an episode."""
        sample = self._episode(seed).sample
        answer = SeedAnswer(id=sample.id, question=sample.task, answer="", score=sample.reward)
        return SeedResults(seed=seed, text=sample.task, state=WorkState.DONE, answers=(answer,))

    def tokens(self, seed: str) -> list[SeedTokens]:
        """Return the rows of exact tokens with their advantages."""
        episode = self._episode(seed)
        decode, why = self._decoding
        return [
            SeedTokens(
                title=title,
                agent=episode.agent,
                note=why,
                pieces=tuple(
                    piece
                    if why
                    else replace(piece, texts=tuple(part.text for part in token_texts([piece], decode)))
                    for piece in pieces
                ),
            )
            for title, pieces in episode.rows()
        ]

    def search(self, text: str, limit: int = 100, seed: str | None = None) -> list[RunHit]:
        """Return episodes whose id or task contains the text, and calls of one episode whose text does."""
        if not text.strip():
            return []
        if seed is None:
            episodes = self.seeds(limit=limit, text=text)
            return [
                RunHit(seed=match.id, spot="", place="seed", excerpt=short(match.text)) for match in episodes
            ]
        episode = self._episode(seed)
        hits: list[RunHit] = []
        for node_path, number in self._numbers(episode).items():
            answer = self._answer(episode.sample.calls[number])
            if text.casefold() in answer.casefold():
                hits.append(RunHit(seed=seed, spot=node_path, place="answer", excerpt=excerpt(answer, text)))
        return hits[:limit]

    def changes(self, cursor: str = "", seed: str | None = None) -> RunChanges:
        """Return whether steps were made since a cursor."""
        del seed
        file = self.folder / METRICS
        size = file.stat().st_size if file.is_file() else 0
        state = f"{size}.{len(self._stored_steps())}.{int(is_output_active(self.folder))}"
        moved = bool(cursor) and cursor != state
        return RunChanges(cursor=state, summary=moved, steps=moved)

    def _step_files(self) -> list[Path]:
        return sorted((self.folder / ROLLOUTS).glob("step_*.jsonl.gz"))

    def _stored_steps(self) -> list[int]:
        numbers = [path.name[5:-9] for path in self._step_files()]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _count_of(self, step: int) -> int:
        """Count the episodes of a step, without reading them."""
        path = self.folder / ROLLOUTS / f"step_{step:06d}.jsonl.gz"
        try:
            return sum(line.count(b'"reward":') for line in read_lines(path, self.folder))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None

    def _list_of(self, step: int) -> list[SeedSummary]:
        """Return the episodes of a step."""
        return [
            SeedSummary(
                id=_id(step, episode, number),
                index=number,
                text=short(episode.sample.task),
                state=WorkState.DONE,
                nodes=len(episode.sample.calls),
                score=episode.sample.reward,
                task=episode.sample.task.partition("@")[0],
                step=step,
            )
            for number, episode in enumerate(self._episodes(step))
        ]

    def _episodes(self, step: int) -> "list[EpisodeTokens]":
        try:
            about = (self.folder / ROLLOUTS / f"step_{step:06d}.jsonl.gz").stat()
        except OSError:
            return []
        return _stored_episodes(self.folder, step, about.st_mtime_ns, about.st_size)

    def _step_of(self, seed: str) -> int:
        step = seed.partition(".")[0]
        if not step.isdecimal() or int(step) not in self._stored_steps():
            raise KeyError(seed)
        return int(step)

    def _episode(self, seed: str) -> "EpisodeTokens":
        step = self._step_of(seed)
        for number, episode in enumerate(self._episodes(step)):
            if _id(step, episode, number) == seed:
                return episode
        raise KeyError(seed)

    def _numbers(self, episode: "EpisodeTokens") -> dict[str, int]:
        """Return the number of the call at each node path, from 0."""
        node_paths: list[str] = []
        below = Counter[str]()
        for call in episode.calls():
            parent = node_paths[int(call.parent) - 1] if call.parent else ""
            node_paths.append(child_of(parent, below[parent]))
            below[parent] += 1
        return {node_path: number for number, node_path in enumerate(node_paths)}

    @cached_property
    def _decoding(self) -> tuple[Decode, str]:
        return _tokens(self.folder).decoder()

    def _answer(self, tokens: Tokens) -> str:
        return self._decoding[0](tokens.sampled)[:MAX_TEXT]


def _tokens(folder: Path) -> "RunTokens":
    try:
        # Here, because it needs numpy, which other runs do not.
        from agentflow.learner import RunTokens
    except ModuleNotFoundError:
        raise ConfigurationError(missing_extra("reading the episodes of a training", "train")) from None
    return RunTokens(folder)


# One memory for all runs: a folder may have thousands, and a step takes up to a gigabyte.
@lru_cache(maxsize=_REMEMBERED_STEPS)
def _stored_episodes(folder: Path, step: int, *_state: int) -> "list[EpisodeTokens]":
    return list(_tokens(folder).episodes(step))


def _failures(metrics: Sequence[StepFigures]) -> dict[str, int]:
    """Return the numbers of episodes that were left out, by reason."""
    counts = Counter[str]()
    for line in metrics:
        for name, value in line.figures.items():
            if name.startswith(_FAILED) and value:
                counts[name.removeprefix(_FAILED)] += int(value)
    return dict(sorted(counts.items()))


def _usage(metrics: Sequence[StepFigures]) -> tuple[Usage, float]:
    """Return the usage of models in all steps, and its cost."""

    def total(name: str) -> float:
        return sum(line.figures.get(f"usage/{name}") or 0.0 for line in metrics)

    tokens = (int(total(name)) for name in ("calls", "prompt_tokens", "completion_tokens"))
    return Usage(*tokens), total("cost")


def is_training(folder: Path) -> bool:
    """Return true if a folder is that of a training or tuning."""
    return (
        (folder / ROLLOUTS).is_dir()
        or (folder / METRICS).is_file()
        or "schedule" in settings_of(folder)  # in its first step
    )


def _id(step: int, episode: "EpisodeTokens", number: int) -> str:
    return f"{step}.{number}.{episode.sample.id}"


def _leaf_of(sample: str) -> str:
    """Return the node id in the name of a sample; empty: its episode is no path of a tree."""
    last = sample.rpartition("/")[2]
    return last if last.startswith("node_") else ""


def settings_of(folder: Path) -> Mapping[str, Any]:
    """Return the settings that a run wrote into its folder; empty if there are none that can be read."""
    with suppress(ConfigurationError):
        return read_run_settings(folder)
    return {}


def _part(text: str) -> NodePart:
    return NodePart(text=text[:MAX_TEXT], chars=len(text))


def _is_of_sample(call: RecordedCall, episode: "EpisodeTokens") -> bool:
    return call.trained and call.delivered and call.agent == episode.agent


def _other_calls(episode: "EpisodeTokens") -> list[RecordedCall]:
    return [call for call in episode.recorded if not _is_of_sample(call, episode)]


def _summary(call: RecordedCall) -> CallSummary:
    """Describe a recorded call that is not trained."""
    tokens = call.tokens
    used = Usage(1) if tokens is None else Usage(1, len(tokens.prompt), len(tokens.sampled))
    return CallSummary(
        key=call.id,
        role=call.agent or "policy",
        text=shown_message(call.answer).text,
        reasoning=call.reasoning[:MAX_TEXT],
        usage=used,
    )
