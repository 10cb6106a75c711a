"""Language model as a judge, and the cache of its verdicts."""

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from msgspec import Struct

from agentflow._decoding import decode_json
from agentflow._private_files import open_private
from agentflow.actors import together
from agentflow.errors import ConfigurationError, ErrorKind
from agentflow.models import Call, Message, Model, Sampling, TextPart, ask_model
from agentflow.scoring._answers import short_answer
from agentflow.scoring._scored import Scored
from agentflow.scoring._text_rules import exact_match
from agentflow.text import PromptFiles, without_reasoning
from agentflow.trace import Failure, Reply, Task, Usage, digest

_PROMPTS: Final = PromptFiles(Path(__file__).parent / "prompts")
_MARK: Final = re.compile(r"<(?=/?(?:answer|question|references|evidence)\b)", re.IGNORECASE)
_MAX_VERDICTS: Final = 100_000


class Opinion(Struct, frozen=True):
    """Reply of a judge."""

    analysis: str
    correct: bool


def schema_of(**fields: str) -> dict[str, Any]:
    """Return a closed schema of fields with their types."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


_MAX_SHOWN: Final = 20_000
"""Number of characters of an answer shown to a judge; the middle of a longer one is omitted."""
_SCHEMA: Final = schema_of(analysis="string", correct="boolean")


class Judge:
    """Metric that asks a model whether an answer is right, unless a rule decides.

    The judge sees the question, the references, and the task's evidence if there is any. Equal cases are judged once. A failed
    judgement says nothing about the answer: it is a `failure`, not a wrong answer.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        *,
        votes: int = 1,
        temperature: float | None = None,
        rule: Callable[[str, Sequence[str]], float] | None = exact_match,
        evidence: bool = False,
        cache: str = "",
    ) -> None:
        """:param votes: number of opinions; the majority decides.
        :param temperature: sampling temperature; by default 0 for one vote, and the model's own for several.
        :param rule: rule whose full marks are final; `None` asks the model every time.
        :param evidence: show the judge the task's `evidence`.
        :param cache: file that keeps verdicts; empty keeps them in memory.
        :raises ConfigurationError: one line.
        """
        if votes < 1 or votes % 2 == 0:
            raise ConfigurationError(f"metric {name}: votes is {votes}; an odd number has a majority")
        self.name = name
        """Its name."""
        self._model = model
        self._votes = votes
        self._temperature = 0.0 if temperature is None and votes == 1 else temperature
        self._rule = rule
        self._evidence = evidence
        self._verdicts = Verdicts(Path(cache) if cache else None)
        self.by_rule = 0
        """Number of predictions decided by the rule."""
        self.asked = 0
        """Number of predictions decided by the model."""

    @property
    def from_cache(self) -> int:
        """Number of predictions with a cached verdict."""
        return self._verdicts.found

    async def score(self, prediction: str, task: Task) -> Scored:
        """Return 1 if the answer is right, 0 if not; a failure if the judge can't decide."""
        prediction = without_reasoning(prediction)
        if self._rule is not None and self._rule(short_answer(prediction), task.references) == 1.0:
            self.by_rule += 1
            return Scored(1.0, "a rule finds it right")
        if not prediction.strip():
            return Scored(0.0, "there is no answer")
        messages = judge_messages(
            "judge_verdict",
            question=task.question,
            evidence=str(task.metadata.get("evidence") or "") if self._evidence else "",
            references="\n".join(task.references),
            answer=_shortened(prediction),
        )
        version = _PROMPTS.versions["judge_verdict"]
        about = [version, self._model.name, self._votes, self._temperature, messages]
        return await self._verdicts.once(digest(about, 16), lambda: self._vote(messages))

    async def _vote(self, messages: tuple[Message, ...]) -> Scored:
        self.asked += 1

        async def vote(number: int) -> Reply[Opinion]:
            sampling = Sampling(temperature=self._temperature, seed=number if self._votes > 1 else None)
            call = Call(role="judge", messages=messages, reply=Opinion, schema=_SCHEMA, sampling=sampling)
            return await ask_model(self._model, call)

        return _majority(await together([partial(vote, number) for number in range(self._votes)]))


def _shortened(answer: str) -> str:
    if len(answer) <= _MAX_SHOWN:
        return answer
    left_out = len(answer) - _MAX_SHOWN
    return f"{answer[: _MAX_SHOWN // 2]}\n[{left_out} characters left out]\n{answer[-_MAX_SHOWN // 2 :]}"


def judge_messages(name: str, **values: str) -> tuple[Message, ...]:
    """Return the messages of a prompt. Text to judge is escaped so that it can't close its delimiters."""
    escaped = {field: _MARK.sub("‹", value.strip()) for field, value in values.items()}
    return (
        Message("system", (TextPart(_PROMPTS.fill(name, "system")),)),
        Message("user", (TextPart(_PROMPTS.fill(name, "ask", **escaped)),)),
    )


def _majority(votes: list[Reply[Opinion]]) -> Scored:
    usage = sum((vote.usage for vote in votes), Usage())
    opinions = [vote.value for vote in votes if vote.value is not None]
    if not opinions:
        return Scored(0.0, failure=votes[0].failure, usage=usage)
    counted = Counter(opinion.correct for opinion in opinions)
    if counted[True] == counted[False]:
        undecided = Failure(ErrorKind.FAILED, "as many opinions for it as against it: some votes failed")
        return Scored(0.0, failure=undecided, usage=usage)
    correct = counted[True] > counted[False]
    reason = next(opinion.analysis for opinion in opinions if opinion.correct == correct)
    return Scored(float(correct), reason, usage=usage)


class Verdicts:
    """Verdicts by key, in memory and optionally in a file."""

    def __init__(self, path: Path | None = None) -> None:
        """:param path: JSONL file that keeps the verdicts; created if missing.
        :raises ConfigurationError: one line, if the file can't be used.
        """
        self._path = path
        self._verdict_by_key: dict[str, Scored] = {}
        self._asking: dict[str, anyio.Event] = {}
        self._writing = anyio.Lock()
        self.found = 0
        """Number of cache hits."""
        if path is not None:
            self._read(path)

    async def once(self, key: str, ask: Callable[[], Awaitable[Scored]]) -> Scored:
        """Return the verdict of a key; compute it if it is missing. Failures are not cached."""
        while key in self._asking:
            await self._asking[key].wait()
        if (verdict := self._verdict_by_key.get(key)) is not None:
            self.found += 1
            return verdict
        answered = self._asking[key] = anyio.Event()
        try:
            scored = await ask()
            if scored.failure is None:
                await self._keep(key, scored)
            return scored
        finally:
            del self._asking[key]
            answered.set()

    async def _keep(self, key: str, scored: Scored) -> None:
        # A cached verdict costs nothing.
        self._verdict_by_key[key] = Scored(scored.score, scored.reason)
        if len(self._verdict_by_key) > _MAX_VERDICTS:
            del self._verdict_by_key[next(iter(self._verdict_by_key))]
        if self._path is None:
            return
        line = json.dumps({"key": key, "score": scored.score, "reason": scored.reason}, ensure_ascii=False)
        async with self._writing:
            await to_thread.run_sync(_append, self._path, line + "\n")

    def _read(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        except (OSError, UnicodeDecodeError):
            raise ConfigurationError(
                f"cache: {path} can't be read as a file of verdicts; name another one"
            ) from None
        for line in lines:
            # The last line of a killed process may be broken: that case is judged again.
            with suppress(ValueError, KeyError, TypeError):
                kept: Any = decode_json(line)
                self._verdict_by_key[str(kept["key"])] = Scored(float(kept["score"]), str(kept["reason"]))


def _append(path: Path, line: str) -> None:
    with open_private(path, "a+b") as file:
        # Start on a new line after an unfinished one.
        if file.tell():
            file.seek(-1, 2)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode())
