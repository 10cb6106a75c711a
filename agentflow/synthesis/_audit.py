"""Audit of questions from anywhere: they pass the checks of a synthesis over given documents.

Questions that need the same documents are checked together. Each group of them is a seed, whose tree reads these documents with real tool
calls; its pairs are the questions that pass.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, partial
from math import log
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.errors import ConfigurationError
from agentflow.journal import NewSeed, Run
from agentflow.questions import (
    Draft,
    DraftFault,
    DraftKind,
    DraftStep,
    GateVote,
    ShownDocument,
    documents_from,
    quoted,
)
from agentflow.runs import AtomicFiles, Resume
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._questions import DraftSource
from agentflow.synthesis._seed_result import Pair, RejectedDraft, SeedResult
from agentflow.synthesis.pipeline import SynthesisRun, TreeWorker, results_of
from agentflow.team import Team
from agentflow.text import contains_phrase, is_content_word, words
from agentflow.trace import Plan, PlanRequest, Proposal, Reply, Tree
from agentflow.values import ValueKind, infer_value, kind_of
from mcp_servers.rag import CorpusDocument

AUDIT: Final = "audit.jsonl"
"""File of the verdicts."""
_TOGETHER: Final = 12
"""Maximum number of questions that are checked together."""
_FOUND: Final = 4
"""Number of documents that are looked up for a question that names none."""
_AROUND: Final = 2
"""Number of further documents that are shown with those of a question."""
_WINDOW: Final = 4_000
"""Characters of a document that are shown, if it is longer than a prompt allows."""
_OPENING: Final = 400
"""Characters of its beginning, which says what it is and of when."""
_BESIDE: Final = 300
"""Characters beside a quote."""


class AuditedStep(Struct, frozen=True):
    """Step from the documents to the answer."""

    statement: str = ""
    """Conclusion of the step."""
    document: str = ""
    """Document that states it."""
    quote: str = ""
    """Verbatim part of that document."""
    value: str = ""
    """Value with which later steps compute."""
    computes: str = ""
    """Expression over the values of other steps."""


class AuditedQuestion(Struct, frozen=True, kw_only=True):
    """Line of the file of questions; only `question` and `answer` are needed."""

    question: str
    """The question."""
    answer: str
    """The answer."""
    id: str = ""
    """Id; by default `question_` and the number of the line."""
    documents: tuple[str, ...] = ()
    """Ids or titles of the documents that it needs; none: readers find them."""
    steps: tuple[AuditedStep, ...] = ()
    """Reasoning, with quotes."""
    unit: str = ""
    """Unit of a number."""
    kind: DraftKind = DraftKind.BRIDGE
    """Kind of the question."""
    answer_type: ValueKind | None = None
    """Type of the answer; by default, what it looks like."""


class AuditVerdict(Struct, frozen=True, kw_only=True):
    """Line of `audit.jsonl`."""

    id: str
    """Id of the question."""
    question: str
    """The question."""
    answer: str
    """The given answer."""
    passed: bool
    """No check found a fault."""
    check: str = ""
    """First check that found one."""
    findings: tuple[DraftFault, ...] = ()
    """All faults, with the evidence."""
    documents: tuple[str, ...] = ()
    """Documents that it needs."""
    votes: tuple[GateVote, ...] = ()
    """Samples of models."""
    naturalness: float = 0.0
    """Likelihood that an expert would ask it, from 1 to 5; 0: not asked."""
    known: float | None = None
    """Share of answers from memory that are right; `None`: not asked."""
    disputed: bool = False
    """A model is certain of another answer."""


class _AuditGroup(Struct, frozen=True):
    """Questions that are checked together, and the calls that read their documents."""

    questions: list[AuditedQuestion]
    reads: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def load_questions(file: Path) -> list[AuditedQuestion]:
    """Return the questions of a JSONL file.

    See docs/synthesis.md.

    :raises ConfigurationError: one line with file and line, if one can't be used.
    """
    decoder = msgspec.json.Decoder(AuditedQuestion)
    questions: dict[str, AuditedQuestion] = {}
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(f"{file}: can't be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            question = decoder.decode(line)
        except DECODE_ERRORS as error:
            raise ConfigurationError(
                f'{file}:{number}: {decode_reason(error)}. A line is a JSON object: {{"question": …, "answer": …}}'
            ) from None
        if not question.question.strip() or not question.answer.strip():
            raise ConfigurationError(f"{file}:{number}: it has no question or no answer")
        question = replace(question, id=question.id or f"question_{number}")
        if question.id in questions:
            raise ConfigurationError(f"{file}:{number}: the id {question.id} is taken")
        questions[question.id] = question
    if not questions:
        raise ConfigurationError(f"{file}: it has no questions")
    return list(questions.values())


def audit_settings(documents: Path, output: str = "audit_results") -> dict[str, str]:
    """Return settings of a synthesis that reads documents and writes no questions, as texts.

    See docs/synthesis.md.
    """
    return {
        "output_dir": output,
        "resource_types": "[rag]",
        "resource_init_configs": msgspec.json.encode({"rag": {"index_path": str(documents)}}).decode(),
        "available_tools": "[rag_search, rag_get]",
        "tasks": "questions",
        "verifier": "off",
        "max_depth": "200",
        "branching_factor": "1",
        "depth_threshold": "0",
        "action_similarity": "2",
        "max_planner_calls": "1",
        "recovery_share": "0",
        "min_depth": "1",
        "max_selected_traj": "1",
        "max_questions": "10000",
        "max_groups": "1",
        "max_documents": "200",
        "min_reasoning_steps": "0",
        "repair": "false",
        "quotas": "{kind: 1, answer: 1}",
        "run_name": "audit",
    }


class AuditRun(SynthesisRun):
    """Audit of questions over documents. The files of its output directory are those of a synthesis, and `audit.jsonl`."""

    unit = "group"

    def __init__(
        self,
        config: SynthesisConfig,
        questions: Sequence[AuditedQuestion],
        documents: Sequence[CorpusDocument],
        *,
        resume: Resume = "auto",
        retry_failed: bool = False,
    ) -> None:
        """Describe it.

        :param config: settings, from `audit_settings`.
        :raises ConfigurationError: one line, if a question names an unknown document.
        """
        super().__init__(config, resume=resume, retry_failed=retry_failed)
        self.verdicts: list[AuditVerdict] = []
        """The verdicts in the order of the questions, once the run has ended."""
        self._groups = group_questions(questions, documents, characters=config.max_evidence_chars, most=14)

    async def audit(self) -> list[AuditVerdict]:
        """Check all questions, write the files, and return the verdicts.

        :raises ConfigurationError: if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early; running it again resumes.
        """
        seeds = [
            NewSeed(
                f"Audit of {len(group.questions)} questions",
                {"reads": group.reads, "questions": msgspec.to_builtins(group.questions)},
            )
            for group in self._groups
        ]
        await self.run(seeds)
        return self.verdicts

    def _note(self, line: str) -> None:
        # The values of a seed are for the audit itself, not for tools.
        if "reads" not in line:
            super()._note(line)

    async def _write_files(self, run: Run) -> None:
        await super()._write_files(run)
        self.verdicts = [
            verdict async for seed, result in results_of(run) for verdict in _verdicts(seed.kwargs, result)
        ]
        async with AtomicFiles.replace(self.directory.folder, [AUDIT]) as files:
            await files.write({AUDIT: [msgspec.json.encode(verdict) for verdict in self.verdicts]})

    @property
    def _worker_type(self) -> "type[_AuditWorker]":
        return _AuditWorker

    def _planner(self, team: Team) -> "_ReadingPlanner":
        return _ReadingPlanner()


class _ReadingPlanner:
    """Planner that makes the calls that its seed lists, one after the other."""

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        reads = request.kwargs["reads"]
        index = len(request.path)
        if index >= len(reads):
            return Reply(Plan(()))
        return Reply(Plan((Proposal("Read the document.", "rag_get", reads[index]),)))


class _AuditWorker(TreeWorker):
    """Reads the documents of a group, and checks its questions."""

    def drafts(self, tree: Tree) -> DraftSource:
        questions = msgspec.convert(tree.seed.kwargs["questions"], list[AuditedQuestion])
        return partial(drafts_of, questions)


def group_questions(
    questions: Sequence[AuditedQuestion],
    documents: Sequence[CorpusDocument],
    *,
    characters: int,
    most: int,
) -> list[_AuditGroup]:
    """Return groups of questions whose documents fit into a prompt, each with the calls that read these.

    :param characters: length of the documents of a group.
    :param most: number of documents of a group.
    :raises ConfigurationError: one line, if a question names an unknown document.
    """
    corpus = _Corpus(documents, questions)
    groups: list[tuple[list[AuditedQuestion], dict[str, None]]] = []
    for question in questions:
        wanted = corpus.wanted[question.id]
        fitting = next(
            (
                group
                for group in groups
                if len(group[0]) < _TOGETHER
                and len(joined := {*group[1], *wanted}) <= most
                and corpus.size(joined, [*group[0], question]) <= characters
            ),
            None,
        )
        if fitting is None:
            groups.append(([question], dict.fromkeys(wanted)))
        else:
            fitting[0].append(question)
            fitting[1].update(dict.fromkeys(wanted))
    return [
        _AuditGroup(
            members,
            [read for name in sorted(names) for read in corpus.reads(name, members, names, characters)],
        )
        for members, names in groups
    ]


class _Corpus:
    """Documents by their names, and by the words that they share with questions."""

    def __init__(self, documents: Sequence[CorpusDocument], questions: Sequence[AuditedQuestion]) -> None:
        self._documents = {document.id: document for document in documents}
        self._names = {document.title: document.id for document in documents} | {
            Path(document.id).stem: document.id for document in documents
        }
        self._terms = {document.id: _terms(f"{document.title} {document.text}") for document in documents}
        spread = Counter(term for terms in self._terms.values() for term in terms)
        self._weights = {term: log(1 + len(documents) / count) for term, count in spread.items()}
        self.wanted = {question.id: self._wanted(question) for question in questions}
        """Documents to show for each question."""
        self._quoted = {
            (name, question.id): [
                (max(0, start - _BESIDE), end + _BESIDE)
                for step in question.steps
                for start, end in quoted(document.text, step.quote)
            ]
            for name, document in self._documents.items()
            for question in questions
            if name in self.wanted[question.id]
        }

    def _wanted(self, question: AuditedQuestion) -> list[str]:
        needed = self.named(question) or self.similar(question, _FOUND)
        around = [name for name in self.similar(question, len(needed) + _AROUND) if name not in needed]
        return [*needed, *around[:_AROUND]]

    def named(self, question: AuditedQuestion) -> list[str]:
        """Return the documents that a question names."""
        names = dict.fromkeys(
            [*question.documents, *(step.document for step in question.steps if step.document)]
        )
        return list(dict.fromkeys(self._id(name, question) for name in names))

    def similar(self, question: AuditedQuestion, count: int) -> list[str]:
        """Return the documents that share most with a question and its answer."""
        wanted = _terms(f"{question.question} {question.answer}")
        scores = {
            name: sum(self._weights[term] for term in terms & wanted) for name, terms in self._terms.items()
        }
        return sorted(scores, key=lambda name: (-scores[name], name))[:count]

    def size(self, names: Iterable[str], questions: Sequence[AuditedQuestion]) -> int:
        """Return the length of documents, as they are shown for questions."""
        return sum(
            min(len(self._documents[name].text), max(_WINDOW, _length(self._spans(name, questions))))
            for name in names
        )

    def reads(
        self, name: str, questions: Sequence[AuditedQuestion], names: Mapping[str, None], characters: int
    ) -> Iterator[dict[str, Any]]:
        """Yield the calls that read a document: as a whole, or the passages that questions need."""
        text = self._documents[name].text
        whole = sum(len(self._documents[shown_name].text) for shown_name in names) <= characters
        if whole or len(text) <= _WINDOW:
            yield {"id": name, "length": max(len(text), 1)}
            return
        spans = self._spans(name, questions)
        room = _WINDOW - _length(spans)
        [document] = documents_from([(name, "", text)])
        for passage in sorted(document.passages, key=lambda passage: -_relevance(passage.text, questions)):
            first, last = passage.pieces[0], passage.pieces[-1]
            start, end = first.source, last.source + last.end - last.start
            if end - start <= room and not any(first <= start and end <= last for first, last in spans):
                spans.append((start, end))
                room -= end - start
        for start, end in _joined(text, spans):
            # With the blank line after it, the tool does not end at an earlier one.
            yield {"id": name, "start": start, "length": end - start + 2}

    def _spans(self, name: str, questions: Sequence[AuditedQuestion]) -> list[tuple[int, int]]:
        """Return the spans of a document that questions quote, and its opening."""
        text = self._documents[name].text
        quotes = [span for question in questions for span in self._quoted.get((name, question.id), ())]
        return _joined(text, [(0, min(_OPENING, len(text))), *quotes])

    def _id(self, name: str, question: AuditedQuestion) -> str:
        if name in self._documents:
            return name
        if name in self._names:
            return self._names[name]
        near = get_close_matches(name, [*self._documents, *self._names], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"{question.id}: the document {name} is unknown{hint}")


@lru_cache(maxsize=1024)
def _terms(text: str) -> frozenset[str]:
    return frozenset(filter(is_content_word, words(text)))


def _joined(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans as whole paragraphs in their order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        first = text.rfind("\n\n", 0, start + 1)
        last = text.find("\n\n", end)
        first, last = (0 if first < 0 else first + 2), (len(text) if last < 0 else last)
        if joined and first <= joined[-1][1] + 2:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _length(spans: Sequence[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


def _relevance(text: str, questions: Sequence[AuditedQuestion]) -> float:
    """Return the relevance of a passage for questions: their answers first, then common words."""
    terms = _terms(text)
    return sum(
        5 * contains_phrase(text, question.answer) + len(terms & _terms(question.question))
        for question in questions
    )


def drafts_of(questions: Sequence[AuditedQuestion], documents: Sequence[ShownDocument]) -> list[Draft]:
    """Return questions as drafts about documents."""
    numbers = {document.id: document.number for document in documents}
    numbers |= {copy: document.number for document in documents for copy in document.copies}
    numbers |= {document.title: document.number for document in documents if document.title}
    numbers |= {Path(document.id).stem: document.number for document in documents}
    texts = {document.number: document.text for document in documents}
    drafts: list[Draft] = []
    for question in questions:
        named = [*question.documents, *(step.document for step in question.steps if step.document)]
        needed = dict.fromkeys(numbers[name] for name in named if name in numbers)
        # Those that state the answer stand last.
        ordered = sorted(needed, key=lambda number: contains_phrase(texts[number], question.answer))
        value = infer_value(question.answer)
        drafts.append(
            Draft(
                kind=question.kind,
                asker="",
                question=question.question,
                answer=question.answer,
                answer_type=question.answer_type or kind_of(value),
                unit=question.unit,
                documents=tuple(ordered),
                steps=tuple(
                    DraftStep(
                        statement=step.statement or step.quote,
                        quote=step.quote,
                        value=step.value,
                        computes=step.computes,
                    )
                    for step in question.steps
                ),
            )
        )
    return drafts


def _verdicts(kwargs: Mapping[str, Any], result: SeedResult) -> Iterator[AuditVerdict]:
    """Yield the verdicts on the questions of a group."""
    questions = msgspec.convert(kwargs["questions"], list[AuditedQuestion])
    passed = {pair.proposal: pair for pair in (*result.pairs, *(triaged.pair for triaged in result.triaged))}
    fallen = {draft.number: draft for draft in result.rejected}
    for number, question in enumerate(questions, 1):
        pair, draft = passed.get(number), fallen.get(number)
        yield _verdict(question, pair, draft, result.failure)


def _verdict(
    question: AuditedQuestion, pair: Pair | None, draft: RejectedDraft | None, failure: str
) -> AuditVerdict:
    verdict = AuditVerdict(
        id=question.id, question=question.question, answer=question.answer, passed=pair is not None
    )
    if pair is not None:
        return replace(
            verdict,
            documents=tuple(document.id for document in pair.documents),
            votes=pair.votes,
            naturalness=pair.naturalness,
            known=pair.known,
            disputed=pair.disputed,
        )
    if draft is None:
        return replace(verdict, check="unfinished", findings=())
    return replace(verdict, check=draft.findings[0].check, findings=draft.findings, votes=draft.votes)
