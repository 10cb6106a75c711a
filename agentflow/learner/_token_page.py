"""Tokens of a training's episodes: text by token, mask, log-probabilities, versions, advantages and forks."""

import html
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import Struct, structs
from pydantic import ValidationError

from agentflow._folder_files import read_file
from agentflow._terminal import printable
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError, LossFailure
from agentflow.extras import missing_extra
from agentflow.gateway import RecordedCall, RecordedEpisode, recorded_episode, token_tree, trained_tokens
from agentflow.learner._checkpoints import CallScores, RolloutStore
from agentflow.learner._groups import Batch, Sample, optimizer_parts
from agentflow.learner.losses import LossSettings, advantages_of
from agentflow.learner.losses._step import call_advantages, equal_groups, is_trained
from agentflow.settings import explain_line, read_run_settings
from agentflow.trace import (
    CallFork,
    Decode,
    Piece,
    TokenCall,
    Tokens,
    TokenTree,
    TreeFigures,
    Voice,
    html_page,
    html_spans,
)

_SETTINGS: Final = "settings.yaml"
_STEP: Final = re.compile(r"step_(\d+)\.jsonl\.gz")
_AGENT: Final = re.compile(r"@\d+#(.*)$", re.DOTALL)
"""End of a group's name that has an agent."""
_NO_TEXT: Final = "ids are shown instead of text"


class CallTokens(Struct, frozen=True, kw_only=True):
    """A model call of an episode, without its tokens."""

    id: str
    """Number in the episode, from 1."""
    reason: str
    """Relation to the calls before it; see `ForkReason`."""
    parent: str
    """Call that it continues; empty: none."""
    origin: str
    """Origin of its prompt; see `PromptOrigin`. Empty: it was not made through a gateway, or its record is gone."""
    left: str
    """Call whose answer is changed or missing in its prompt; empty: none."""
    shared: int
    """Number of its first tokens that an earlier call had read or sampled."""
    prompt: int
    """Number of tokens of the prompt."""
    sampled: int
    """Number of sampled tokens."""
    trained: bool
    """Its sampled tokens are in the loss."""
    advantage: float | None
    """Advantage of its tokens; `None`: they are not trained."""
    logprob: float
    """Mean log-probability of its sampled tokens."""
    version: str
    """Oldest version of the weights that sampled it; empty if unknown."""
    finish: str
    """Finish reason."""

    @property
    def note(self) -> str:
        """Place where it leaves earlier calls, and whether it is trained."""
        parts = [f"continues {self.parent}"] if self.parent else []
        parts += [f"without the answer of {self.left}"] if self.left else []
        parts += [f"after {self.shared} shared tokens"] if self.shared and not self.parent else []
        parts += [f"prompt: {self.origin}"] if self.origin else []
        parts += [] if self.trained else ["not trained"]
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class EpisodeTokens:
    """The trained calls of one agent in an episode, as the loss uses them."""

    step: int
    """Step that used it."""
    sample: Sample
    """The calls with their reward."""
    advantage: float | None
    """Advantage of its reward; `None`: the loss leaves its group out."""
    call_advantages: tuple[float, ...]
    """Advantage of each call: its credit, and that of the turn rewards from the call on."""
    loss: LossSettings
    """Settings of the loss."""
    gateway: Path | None = None
    """Folder of the gateway that recorded it; `None`: none."""
    scores: Mapping[int, CallScores] = field(default_factory=dict[int, CallScores])
    """Inputs of the loss by call, from 0; empty if they were not stored."""

    @property
    def agent(self) -> str:
        """Name of the agent; empty if there is only one."""
        return agent_of(self.sample)

    @property
    def heading(self) -> str:
        """Name, step, reward and advantage."""
        agent = f", agent {self.agent}" if self.agent else ""
        advantage = (
            "left out: its group has equal rewards"
            if self.advantage is None
            else f"advantage {self.advantage:+.3f}"
        )
        return f"{self.sample.id}{agent}, step {self.step}: reward {self.sample.reward:g}, {advantage}"

    def summary(self, decode: Decode | None = None) -> str:
        """Return its statistics as a sentence."""
        figures = self.figures(decode)
        forks = ", ".join(f"{count} {reason}" for reason, count in figures.forks.items())
        return (
            f"{figures.calls} calls ({forks}) in {figures.rows} rows of {figures.merged} tokens; "
            f"{figures.unique} are stored once, {figures.sampled} were sampled, {self.trained_tokens()} are trained"
        )

    @cached_property
    def tree(self) -> TokenTree:
        """Token tree of the calls.

        :raises ConfigurationError: if a call can't be used.
        """
        voice = Voice(agent=self.agent, episode=self.sample.id)
        try:
            return TokenTree(
                TokenCall(id=str(number), voice=voice, tokens=tokens)
                for number, tokens in enumerate(self.sample.calls, 1)
            )
        except ValueError as error:
            raise ConfigurationError(f"step {self.step}, episode {self.sample.id}: {error}") from None

    @cached_property
    def record(self) -> RecordedEpisode | None:
        """Episode as the gateway recorded it, with the calls of all agents; `None`: not known.

        :raises ConfigurationError: if the gateway's journal can't be read.
        """
        if self.gateway is None:
            return None
        id = self.sample.id.removesuffix(f"#{self.agent}") if self.agent else self.sample.id
        record = recorded_episode(self.gateway, id)
        if record is None:
            return None
        # A later attempt at the same episode has other calls.
        calls = tuple(tokens for _, tokens in trained_tokens(record.calls).get(self.agent, []))
        return record if calls == self.sample.calls else None

    @property
    def recorded(self) -> Sequence[RecordedCall]:
        """Calls of all agents in this episode as the gateway recorded them; empty: not known."""
        return () if self.record is None else self.record.calls

    def is_trained(self, call: Tokens) -> bool:
        """Return true if the call's tokens are in the loss."""
        return self.advantage is not None and is_trained(call, self.loss)

    def figures(self, decode: Decode | None = None) -> TreeFigures:
        """Return statistics of the token tree; without `decode`, drift counts as rewritten."""
        return self.tree.figures(decode=decode)

    def trained_tokens(self) -> int:
        """Return the number of tokens in the loss."""
        return sum(len(call.sampled) for call in self.sample.calls if self.is_trained(call))

    def calls(self, decode: Decode | None = None) -> list[CallTokens]:
        """Return the calls, each with the reason for its place in the tree."""
        own = [call for call in self.recorded if call.trained and call.delivered and call.agent == self.agent]
        origins = [call.origin.value for call in own] or [""] * len(self.sample.calls)
        return [
            self._call(number, fork, origin)
            for number, (fork, origin) in enumerate(zip(self.tree.forks(decode), origins, strict=True))
        ]

    def advantage_of(self, number: int) -> float | None:
        """Return the advantage of the tokens of a call, numbered from 0; `None`: they are not trained."""
        return self.call_advantages[number] if self.is_trained(self.sample.calls[number]) else None

    def _call(self, number: int, fork: CallFork, origin: str) -> CallTokens:
        call = self.sample.calls[number]
        count = len(call.sampled)
        return CallTokens(
            id=fork.call,
            reason=fork.reason.value,
            parent=fork.parent,
            origin=origin,
            left=fork.left,
            shared=fork.shared,
            prompt=len(call.prompt),
            sampled=count,
            trained=self.is_trained(call),
            advantage=self.advantage_of(number),
            logprob=sum(call.logprobs) / count if count else 0.0,
            version=call.version,
            finish=call.finish,
        )

    def rows(self) -> list[tuple[str, list[Piece]]]:
        """Return each row of the tree, as a title and pieces; every sampled token is trained in one of them.

        Tokens that another row trains are context. Those of other agents are told apart if the gateway's record is known.
        """
        tree, ids = self.tree, [str(number + 1) for number in range(len(self.sample.calls))]
        if self.recorded:
            tree = token_tree(self.recorded, episode=self.sample.id)
            ids = [id for id, _ in trained_tokens(self.recorded)[self.agent]]
        numbers = {id: number for number, id in enumerate(ids)}
        rows: list[tuple[str, list[Piece]]] = []
        for call, row in tree.rows(lambda voice: voice.agent == self.agent).items():
            trained = [piece.call for piece in row if piece.kind == "trained"]
            title = (
                f"row of {sum(len(piece.ids) for piece in row)} tokens that trains "
                f"{'call' if len(trained) == 1 else 'calls'} {', '.join(str(numbers[id] + 1) for id in trained)}"
            )
            rows.append((title, list(self._pieces(tree.pieces(call), trained, numbers))))
        return rows

    def _pieces(
        self, pieces: Iterable[Piece], trained: Collection[str], numbers: Mapping[str, int]
    ) -> Iterator[Piece]:
        for piece in pieces:
            if not piece.is_sampled or piece.call not in trained:
                name = str(numbers[piece.call] + 1) if piece.call in numbers else piece.call
                kind = "context" if piece.is_sampled else piece.kind
                yield structs.replace(piece, kind=kind, call=name, logprobs=())
                continue
            number = numbers[piece.call]
            call = self.sample.calls[number]
            advantage = self.advantage_of(number)
            scored = self._trainer_logprobs(number)
            for version, start, stop in call.versions or ((call.version, 0, len(piece.ids)),):
                yield Piece(
                    kind="left_out" if advantage is None else "trained",
                    call=str(number + 1),
                    ids=piece.ids[start:stop],
                    logprobs=piece.logprobs[start:stop],
                    version=version,
                    advantage=advantage,
                    trainer_logprobs=scored[start:stop],
                )

    def _trainer_logprobs(self, number: int) -> tuple[float, ...]:
        """Return the trainer's log-probability of each sampled token of a call; empty if they are not known."""
        scores, sampled = self.scores.get(number), self.sample.calls[number].sampled
        # Nothing predicts the first token of a call without a prompt.
        if scores is None or len(scores.log_probs) != len(sampled):
            return ()
        return tuple(scores.log_probs.tolist())


def agent_of(sample: Sample) -> str:
    """Return the name of a sample's agent; empty if its episode has only one."""
    match = _AGENT.search(sample.task)
    return match[1] if match else ""


class RunTokens:
    """The episodes of a finished or running training, from its stored rollouts."""

    def __init__(self, folder: Path) -> None:
        """Read the settings of a run.

        :param folder: its `output_dir`.
        :raises ConfigurationError: if there are no rollouts, or the settings can't be read.
        """
        self.folder = folder
        """Output directory of the run."""
        self._store = RolloutStore(folder / "rollouts", root=folder)
        matches = (_STEP.fullmatch(path.name) for path in self._store.folder.glob("step_*.jsonl.gz"))
        self.steps: list[int] = sorted(int(match[1]) for match in matches if match)
        """Steps whose rollouts are stored."""
        if not self.steps:
            raise ConfigurationError(
                f"{folder}: has no rollouts/step_*.jsonl.gz; name the output_dir of a training"
            )
        if not (folder / _SETTINGS).exists():
            raise ConfigurationError(
                f"{folder / _SETTINGS}: no such file; the advantages depend on its loss section"
            )
        self._settings = read_run_settings(folder)
        schedule = self._settings.get("schedule")
        steps: object = schedule.get("steps_per_batch") if is_object(schedule) else None
        self._steps_per_batch = steps if isinstance(steps, int) and steps > 0 else 1
        self.loss = self._loss()
        """Settings of the loss."""

    def episodes(self, step: int | None = None) -> Iterator[EpisodeTokens]:
        """Yield the episodes in the order of the steps.

        :param step: only those of this step.
        :raises ConfigurationError: if there is no such step, or a file is damaged.
        """
        if step is not None and step not in self.steps:
            raise ConfigurationError(
                f"{self.folder}: step {step} is not stored; there are {self.steps[0]} to {self.steps[-1]}"
            )
        for number in self.steps if step is None else [step]:
            batch = self._store.read(number)
            if batch is not None:
                yield from self._of_batch(batch)

    def _of_batch(self, batch: Batch) -> Iterator[EpisodeTokens]:
        scores: dict[int, dict[int, CallScores]] = {}
        for (position, call), stored in self._store.read_scores(batch.step).items():
            scores.setdefault(position, {})[call] = stored
        episodes: dict[int, EpisodeTokens] = {}
        # As in the loss: rewards are compared within an optimizer step.
        for positions in optimizer_parts(batch, self._steps_per_batch):
            samples, loss = [batch.samples[position] for position in positions], self.loss
            left_out = {number for group in equal_groups(samples, loss) for number in group}
            advantages = advantages_of(samples, loss).tolist()
            try:
                by_call = call_advantages(samples, loss)
            except LossFailure as error:
                raise ConfigurationError(f"{self._store.path(batch.step)}: {error}") from None
            for number, (position, sample) in enumerate(zip(positions, samples, strict=True)):
                dropped = loss.filter_groups and number in left_out
                episodes[position] = EpisodeTokens(
                    step=batch.step,
                    sample=sample,
                    advantage=None if dropped else advantages[number],
                    call_advantages=tuple(by_call[number].tolist()),
                    loss=loss,
                    gateway=self.folder / "gateway",
                    scores=scores.get(position, {}),
                )
        yield from (episodes[position] for position in sorted(episodes))

    def decoder(self) -> tuple[Decode, str]:
        """Return a function from tokens to text by the policy's tokenizer; without one, to their ids, and the reason."""
        policy = self._settings.get("policy")
        model = str(policy.get("model", "")) if is_object(policy) else ""
        folders = [self.folder / "policy", *([Path(model)] if model else [])]
        file = next((path for folder in folders if (path := folder / "tokenizer.json").is_file()), None)
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return _shown_ids, f"{_NO_TEXT}: {missing_extra('the tokenizer', 'train')}"
        if file is None and model and not Path(model).exists():
            from huggingface_hub import try_to_load_from_cache

            try:
                cached = try_to_load_from_cache(model, "tokenizer.json")
            except ValueError:  # not a name of the hub
                cached = None
            file = Path(cached) if isinstance(cached, str) else None
        if file is None:
            return (
                _shown_ids,
                f"{_NO_TEXT}: the policy {model or '(unknown)'} has no tokenizer.json on this machine",
            )
        try:
            file = file.resolve()
            tokenizer = Tokenizer.from_buffer(read_file(file, file.parent))
        except Exception as error:  # the library raises no other type
            return _shown_ids, f"{_NO_TEXT}: {file} can't be read: {printable(str(error)).splitlines()[0]}"
        return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False), ""

    def _loss(self) -> LossSettings:
        try:
            return LossSettings.model_validate(self._settings.get("loss", {}))
        except ValidationError as error:
            why = explain_line(error, LossSettings)
            raise ConfigurationError(f"{self.folder / _SETTINGS}: loss: {why}") from None


def _shown_ids(ids: Sequence[int]) -> str:
    """Return ids as text, for runs without a tokenizer."""
    return "".join(f"{id} " for id in ids)


def episodes_page(episodes: Sequence[EpisodeTokens], decode: Decode, *, title: str) -> str:
    """Return a standalone page of episodes: for each its figures, its calls, and its rows by token.

    See docs/tokens.md.

    :param decode: converts tokens to text; that of `RunTokens.decoder`.
    """
    return html_page("".join(_section(episode, decode) for episode in episodes), title=title)


def _section(episode: EpisodeTokens, decode: Decode) -> str:
    names = ("call", "relation", "", "version", "sampled", "advantage", "mean log-probability")
    rows = [
        (
            *(call.id, call.reason, call.note, call.version, str(call.sampled)),
            *("" if call.advantage is None else f"{call.advantage:+.3f}", f"{call.logprob:.3f}"),
        )
        for call in episode.calls(decode)
    ]
    parts = [
        f"<h2>{_safe(episode.heading)}</h2><p>{_safe(episode.summary(decode))}</p><table>",
        "<tr>" + "".join(f"<th>{_safe(name)}</th>" for name in names) + "</tr>",
        *("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows),
        "</table>",
        *(
            f"<h3>{_safe(name)}</h3><pre>{html_spans(pieces, decode)}</pre>"
            for name, pieces in episode.rows()
        ),
    ]
    return "".join(parts)


def _safe(text: str) -> str:
    return html.escape(printable(text))
