"""Writing question-answer pairs about selected paths: drafts, checks and retries."""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from msgspec import Struct

from agentflow.actors import together
from agentflow.facts import texts_agree
from agentflow.journal import Page
from agentflow.synthesis._checks import Check, CheckedDraft, Finding, Quoted, check, words_of
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._roles import QuestionGenerator
from agentflow.synthesis._seed_result import (
    CitedSpan,
    Pair,
    ReasoningStep,
    RejectedDraft,
    SeedResult,
    Trajectory,
)
from agentflow.synthesis._selection import EvidencePath, Score, select
from agentflow.trajectory import (
    Answer,
    AnswerRequest,
    Draft,
    Failure,
    Look,
    LookRequest,
    Node,
    Region,
    Rejection,
    Reply,
    Step,
    Tree,
    Usage,
    WriteRequest,
)

T = TypeVar("T")

_ROLE = "generator"


async def write_questions(
    tree: Tree, config: SynthesisConfig, generator: QuestionGenerator, page: Page
) -> SeedResult:
    """Select paths of a tree and write a question about each; calls recorded on the page are not repeated.

    See docs/synthesis.md for an example.

    :raises RunStopped: if the run can't continue; the page has the results so far.
    :raises ConfigurationError: if a user's strategy can't be used.
    """
    selection = select(tree, config)
    writers = [_QuestionWriter(tree, path, config, generator, page) for path, _ in selection.chosen]
    pairs = await together(writer.write for writer in writers)
    return SeedResult(
        tree=tree,
        trajectories=tuple(_trajectory(tree, path, score) for path, score in selection.chosen),
        left_out=selection.left_out,
        pairs=tuple(pair for pair in pairs if pair is not None),
        rejected=tuple(draft for writer in writers for draft in writer.rejected),
        usage={_ROLE: sum((writer.usage for writer in writers), Usage())} if writers else {},
        model_failures=_failures(page),
    )


class _QuestionWriter:
    """Writes the question about one path."""

    def __init__(
        self,
        tree: Tree,
        path: EvidencePath,
        config: SynthesisConfig,
        generator: QuestionGenerator,
        page: Page,
    ) -> None:
        self.rejected: list[RejectedDraft] = []
        """Rejected drafts, in the order in which they were written."""
        self.usage = Usage()
        """Model usage."""
        self._tree = tree
        self._path = path
        self._config = config
        self._generator = generator
        self._page = page
        self._evidence = tuple(_step(node) for node in path.evidence)
        self._rejections: list[Rejection] = []

    async def write(self) -> Pair | None:
        """Write up to `max_drafts` drafts until one is accepted."""
        for number in range(1, self._config.max_drafts + 1):
            if (pair := await self._try(number)) is not None:
                return pair
        return None

    async def _try(self, number: int) -> Pair | None:
        write = partial(self._generator.write, self._request())
        draft = await self._ask(f"write/{self._path.id}/{number}", Reply[Draft], write)
        if draft is None:
            return None
        checked = check(
            draft,
            self._evidence,
            least_steps=self._config.min_reasoning_steps,
            most_words=self._config.max_question_words,
        )
        if checked.findings or checked.grounding is None:
            self._reject(draft, number, checked.findings)
            return None
        if unseen := await self._unseen(checked, number):
            self._reject(draft, number, unseen)
            return None
        known = await self._known(draft, number) if self._config.check_answerability else None
        if known:
            easy = f"a model answers it without having seen anything: {draft.answer.strip()}"
            self._reject(draft, number, (Finding(Check.TOO_EASY, easy),))
            return None
        return Pair(
            question=draft.question.strip(),
            answer=draft.answer.strip(),
            trajectory_id=self._path.id,
            reasoning_steps=self._reasoning(draft, checked),
            engine=self._config.model_for(_ROLE).name,
            tries=number,
            grounding=checked.grounding,
            answerable=known,
        )

    def _request(self) -> WriteRequest:
        return WriteRequest(
            seed=self._tree.seed.content,
            seed_description=self._config.seed_description,
            tips=self._config.synthesis_tips,
            examples=self._config.examples,
            evidence=self._evidence,
            rejected=tuple(self._rejections),
            kwargs=self._tree.seed.kwargs,
        )

    async def _unseen(self, checked: CheckedDraft, number: int) -> tuple[Finding, ...]:
        """Return a finding for each picture claim that a model does not confirm."""
        cited = [(quote, quote.region) for quote in checked.quotes if quote.region is not None]
        looks = await together(
            partial(self._look, quote, region, f"{number}/{at}") for at, (quote, region) in enumerate(cited)
        )
        return tuple(
            Finding(
                Check.PICTURES,
                f"picture {region.picture} of observation {quote.observation + 1} does not show there: {quote.said[:80]}",
            )
            for (quote, region), shows in zip(cited, looks, strict=True)
            if not shows
        )

    async def _look(self, quote: Quoted, region: Region, at: str) -> bool:
        """Ask a model whether the region shows the claim; a failed call counts as no."""
        picture = self._evidence[quote.observation].images[region.picture - 1]
        request = LookRequest(picture=picture, region=region, quote=quote.said)
        look = await self._ask(
            f"look/{self._path.id}/{at}", Reply[Look], partial(self._generator.look, request)
        )
        return look is not None and look.shows

    async def _known(self, draft: Draft, number: int) -> bool | None:
        """Ask the model the question without the path; `None` if the call fails."""
        guess = partial(self._generator.answer, AnswerRequest(question=draft.question.strip()))
        answer = await self._ask(f"answer/{self._path.id}/{number}", Reply[Answer], guess)
        return None if answer is None else texts_agree(draft.answer, answer.answer)

    async def _ask(self, key: str, kind: type[Reply[T]], call: Callable[[], Awaitable[Reply[T]]]) -> T | None:
        """Make a model call once and count its usage; `None` if it fails."""
        reply = await self._page.once(key, kind, call)
        self.usage += reply.usage
        return reply.value

    def _reject(self, draft: Draft, number: int, findings: tuple[Finding, ...]) -> None:
        self._rejections.append(Rejection(draft, tuple(finding.reason for finding in findings)))
        self.rejected.append(
            RejectedDraft(
                trajectory_id=self._path.id,
                number=number,
                question=draft.question,
                answer=draft.answer,
                findings=findings,
            )
        )

    def _reasoning(self, draft: Draft, checked: CheckedDraft) -> tuple[ReasoningStep, ...]:
        citations: list[list[CitedSpan]] = [[] for _ in draft.steps]
        for quote in checked.quotes:
            node = self._path.evidence[quote.observation]
            image = "" if quote.region is None else node.observation.blobs[quote.region.picture - 1].hash
            words = words_of(quote, self._evidence)
            citations[quote.step].append(
                CitedSpan(node.id, words, quote.start, quote.end, image, quote.region)
            )
        steps = zip(draft.steps, citations, strict=True)
        return tuple(ReasoningStep(step.step.strip(), tuple(cited)) for step, cited in steps)


class _Failed(Struct, frozen=True):
    """Failure of a reply of any type."""

    failure: Failure | None = None


def _failures(page: Page) -> dict[str, int]:
    """Count the failed model calls recorded on the page, by kind."""
    kinds: Counter[str] = Counter()
    for key in tuple(page.keys()):
        if key.partition("/")[0] in {"plan", "node", "write", "look", "answer"}:
            reply = page.recall(key, _Failed)
            if reply is not None and reply.failure is not None:
                kinds[reply.failure.kind] += 1
    return dict(sorted(kinds.items()))


def _step(node: Node) -> Step:
    assert node.action is not None  # evidence comes from actions
    return Step(node.intent, node.action, node.observation.text, node.verdict, images=node.observation.blobs)


def _trajectory(tree: Tree, path: EvidencePath, score: Score) -> Trajectory:
    return Trajectory(id=path.id, nodes=(tree.nodes[0].id, *(node.id for node in path.nodes)), score=score)
