"""Data-analysis tasks: a program first, then its question; the answer is a typed value that depends on the data."""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.journal import Page
from agentflow.sandbox import Sandbox
from agentflow.tasks._contract import (
    GOLD,
    NO_OP,
    DerivedTasks,
    RejectedTask,
    TaskAttempt,
    TaskFinding,
    TaskPredicate,
    TaskProblem,
    TaskRelation,
    TaskSetup,
    VerifiableTask,
    task_id,
)
from agentflow.tasks._data_programs import COPIES, DataFolder, DataPrograms, ProgramRun
from agentflow.tasks._derivation import (
    CandidateSolution,
    DerivationSettings,
    Earlier,
    IndependentVote,
    TaskCalls,
    TaskRoles,
    TaskWriter,
    closed_book_guesses,
    failure_reason,
    instruction_problem,
    rejected,
    vote,
)
from agentflow.tasks._printed_values import MAX_DECIMALS, same_output, too_precise, value_of
from agentflow.tasks._verifiers import ProgramVerifier
from agentflow.trace import (
    Action,
    IndependentSolutionRequest,
    InstructionRequest,
    Reply,
    TaskInstruction,
    Tree,
    Verdict,
    digest,
)
from agentflow.values import (
    Value,
    answer_agrees,
    show_value,
    values_agree,
)

Json: TypeAlias = Any
"""A JSON value."""

KIND: Final = "data_analysis"
"""Name of the kind."""
TOOL: Final = "data_run"
"""Tool that the tasks are about."""
_TOOLS: Final = frozenset({TOOL, "code_run"})
"""Tools that run Python programs."""

_LANGUAGE: Final = "Python"
_MAX_TABLES: Final = 30
_MAX_EXPLORED: Final = 4
_MAX_MISTAKES: Final = 4
_SWAPS: Final = (
    ("other_extreme", r"\bmax\b", "min"),
    ("other_extreme", r"\bmin\b", "max"),
    ("other_extreme", r"\bidxmax\b", "idxmin"),
    ("other_extreme", r"\bnlargest\b", "nsmallest"),
    ("flipped_order", r"ascending\s*=\s*False", "ascending=True"),
    ("flipped_order", r"reverse\s*=\s*True", "reverse=False"),
    ("other_aggregate", r"\.mean\(\)", ".median()"),
    ("other_aggregate", r"\.sum\(\)", ".mean()"),
    ("other_aggregate", r"\bsum\((?=\w+\))", "len("),
    ("flipped_comparison", r"(?<![<>=!-])>=?(?!=)", "<"),
    ("flipped_comparison", r"(?<![<>=!])<=?(?!=)", ">"),
    ("bound_included", r"(?<![<>=!-])>(?!=)", ">="),
    ("bound_included", r"(?<![<>=!])<(?!=)", "<="),
    ("negated", r"==", "!="),
)


class DataAnalysis(ProgramVerifier):
    """Tasks whose answer a program computes from data files. See docs/tasks.md."""

    def __init__(self, programs: DataPrograms, roles: TaskRoles, settings: DerivationSettings) -> None:
        """Describe the kind; `open_data_analysis` makes one."""
        super().__init__(programs)
        self._roles = roles
        self._settings = settings

    async def derive(self, tree: Tree, page: Page) -> DerivedTasks:
        """Derive tasks from the programs of a tree, then from programs that the generator proposes."""
        calls = TaskCalls(page, KIND)
        try:
            folder = await calls.once("folder", DataFolder, self._programs.folder)
            writer = _DataAnalysisWriter(tree, folder, calls, self._programs, self._roles, self._settings)
            await writer.work()
        except ToolFailure as failure:
            problem = TaskFinding(TaskProblem.UNVERIFIABLE, failure.message)
            return DerivedTasks(rejected=(rejected(KIND, problem, solution=""),), usage=calls.usage)
        return DerivedTasks(tasks=tuple(writer.tasks), rejected=tuple(writer.rejected), usage=calls.usage)


@asynccontextmanager
async def open_data_analysis(
    sandbox: Sandbox, roles: TaskRoles, settings: DerivationSettings, folder: str = ""
) -> AsyncGenerator[DataAnalysis]:
    """Open the kind, and close its session at the end.

    See docs/tasks.md for an example.

    :param sandbox: sandbox with the `data` backend and a data directory.
    :param folder: path of the directory in a session; empty for that of the backend.
    :raises ConfigurationError: one line, if the directory can't be inspected.
    """
    programs = DataPrograms(sandbox, folder)
    try:
        try:
            await programs.folder()
        except ToolFailure as failure:
            why = failure.message.rstrip(".")
            raise ConfigurationError(f"tasks: data_analysis: {why}; or set tasks=questions") from None
        yield DataAnalysis(programs, roles, settings)
    finally:
        await programs.close()


class _DataAnalysisWriter(TaskWriter):
    """Makes the tasks of one tree."""

    def __init__(
        self,
        tree: Tree,
        folder: DataFolder,
        calls: TaskCalls,
        programs: DataPrograms,
        roles: TaskRoles,
        settings: DerivationSettings,
    ) -> None:
        super().__init__(KIND, tree, calls, settings)
        self._folder = folder
        self._programs = programs
        self._roles = roles
        self._sources: set[str] = set()
        self._results: list[tuple[ProgramRun, ...]] = []

    async def work(self) -> None:
        """Try programs of the tree that work on their own, then proposed ones, until there are enough tasks."""
        for candidate in list(self._explored())[:_MAX_EXPLORED]:
            if self.missing > 0:
                await self._try(candidate)
        if self.missing <= 0:
            return
        proposed = await self.propose(
            self._roles.generator,
            language=_LANGUAGE,
            tables=self._folder.tables[:_MAX_TABLES],
            known=sorted(self._sources),
        )
        for source in proposed:
            if self.missing > 0:
                await self._try(CandidateSolution(source))

    def _explored(self) -> Iterator[CandidateSolution]:
        """Yield the programs of the tree that print something and read the data themselves."""
        for node in self.tree.nodes:
            if node.action is None or node.action.tool not in _TOOLS or node.verdict is not Verdict.NEW:
                continue
            source = str(node.action.arguments.get("code", ""))
            if "print(" in source and self._folder.folder in source:
                yield CandidateSolution(source, node.id)

    async def _try(self, candidate: CandidateSolution) -> None:
        self._sources.add(candidate.text)
        key = digest(candidate.text)
        runs = await self.calls.once(
            f"{key}/gold", tuple[ProgramRun, ...], partial(self._run, candidate.text, COPIES)
        )
        if problem := self._problem(runs):
            self.reject(problem, solution=candidate.text)
        elif await self.instruct(key, partial(self._instruct, candidate, runs)):
            self._results.append(runs)

    async def _run(self, source: str, copies: int) -> tuple[ProgramRun, ...]:
        return await self._programs.run(source, self._folder.folder, copies)

    def _problem(self, runs: Sequence[ProgramRun]) -> TaskFinding | None:
        """Return the reason that a program is worth no question."""
        base, *copies = runs
        if base.error:
            return TaskFinding(TaskProblem.NO_GOLD, base.error)
        value = value_of(base.output)
        if value is None:
            reason = (
                f"the program prints no single value, name or short list: {base.output[:80] or 'nothing'}"
            )
            return TaskFinding(TaskProblem.EMPTY_RESULT, reason)
        if too_precise(value):
            reason = f"the result has more than {MAX_DECIMALS} decimals; round it: {base.output[:80]}"
            return TaskFinding(TaskProblem.NO_GOLD, reason)
        if all(copy.error or same_output(base, copy) for copy in copies):
            return TaskFinding(TaskProblem.CONSTANT, "the result does not change with the data")
        if any(all(map(same_output, runs, other)) for other in self._results):
            return TaskFinding(TaskProblem.DUPLICATE, "another task of this tree has the same results")
        return None

    async def _instruct(
        self,
        candidate: CandidateSolution,
        runs: tuple[ProgramRun, ...],
        earlier: Earlier,
        key: str,
    ) -> VerifiableTask | RejectedTask:
        """Have the question written from a program, and answered again without it and without the data."""
        reply = await self.calls.ask(
            f"{key}/instruct",
            Reply[TaskInstruction],
            partial(self._roles.generator.instruct, self._instruction(candidate, runs[0], earlier)),
        )
        if reply.value is None:
            return rejected(KIND, TaskProblem.MODEL_FAILED, failure_reason(reply), solution=candidate.text)
        question = reply.value.instruction.strip()
        expected = value_of(runs[0].output, ordered=reply.value.ordered)
        assert expected is not None, "a program without a value is no candidate"
        problem = instruction_problem(question, candidate.text, [show_value(expected)])
        if problem is None:
            agreement = await self._agreement(question, runs, key, ordered=reply.value.ordered)
            if not agreement.accepted:
                problem = TaskFinding(TaskProblem.AMBIGUOUS, agreement.reason)
            else:
                guesses = await closed_book_guesses(self.calls, self._roles.reader, question, key)
                if any(answer_agrees(expected, guess, question=question) for guess in guesses):
                    problem = TaskFinding(TaskProblem.CLOSED_BOOK, "a model answers it without the data")
                else:
                    wrong = await self._wrong(candidate, runs, guesses, expected, f"{key}/wrong")
                    return self._task(candidate, question, expected, wrong, agreement)
        return rejected(KIND, problem, solution=candidate.text, instruction=question or "(empty)")

    def _instruction(
        self, candidate: CandidateSolution, base: ProgramRun, earlier: Earlier
    ) -> InstructionRequest:
        return InstructionRequest(
            kind=KIND,
            language=_LANGUAGE,
            seed=self.tree.seed.content,
            tips=self.settings.tips,
            examples=self.settings.examples,
            tables=self._folder.tables[:_MAX_TABLES],
            solution=candidate.text,
            result=base.output,
            rejected=earlier,
        )

    async def _agreement(
        self, question: str, runs: tuple[ProgramRun, ...], key: str, *, ordered: bool
    ) -> IndependentVote:
        """Have the question answered by programs of others, over the data and its copies."""
        request = IndependentSolutionRequest(
            kind=KIND, language=_LANGUAGE, instruction=question, tables=self._folder.tables[:_MAX_TABLES]
        )

        async def differs(source: str) -> str:
            for number, (expected, printed) in enumerate(
                zip(runs, await self._run(source, COPIES), strict=True)
            ):
                if expected.error:
                    continue
                where = "the data" if number == 0 else f"perturbed copy {number}"
                if printed.error:
                    return f"an independent program fails on {where}: {printed.error}"
                if not same_output(expected, printed, ordered=ordered):
                    return (
                        f"an independent program prints something else on {where}: "
                        f"{printed.output[:80]} instead of {expected.output[:80]}"
                    )
            return ""

        return await vote(
            self.calls, self._roles.generator, request, differs, samples=self.settings.samples, key=key
        )

    async def _wrong(
        self,
        candidate: CandidateSolution,
        runs: Sequence[ProgramRun],
        guesses: Sequence[str],
        expected: Value,
        key: str,
    ) -> tuple[TaskAttempt, ...]:
        """Return attempts that must fail: no program, other data, guesses, and typical mistakes."""
        nothing = Action(TOOL, {"code": "pass"})
        wrong = {"": TaskAttempt(name=NO_OP, actions=(nothing,))}
        answers = [(f"other_data/{number}", run.output) for number, run in enumerate(runs[1:], 1)]
        answers += [(f"closed_book/{number}", guess) for number, guess in enumerate(guesses, 1)]
        answers += await self.calls.once(key, list[tuple[str, str]], partial(self._mistakes, candidate.text))
        for name, answer in answers:
            value = value_of(answer)
            if value is not None and not values_agree(value, expected):
                wrong.setdefault(answer, TaskAttempt(name=name, answer=answer))
        return tuple(wrong.values())

    async def _mistakes(self, source: str) -> list[tuple[str, str]]:
        """Return what programs with a typical mistake print."""
        outputs: dict[str, str] = {}
        for name, pattern, instead in _SWAPS:
            changed = re.sub(pattern, instead, source)
            if changed != source and name not in outputs and len(outputs) < _MAX_MISTAKES:
                (ran,) = await self._run(changed, 0)
                if ran.output:
                    outputs[name] = ran.output
        return list(outputs.items())

    def _task(
        self,
        candidate: CandidateSolution,
        question: str,
        expected: Value,
        wrong: tuple[TaskAttempt, ...],
        agreement: IndependentVote,
    ) -> VerifiableTask:
        setup = TaskSetup(tools=("data_inspect", "data_read", TOOL))
        gold = TaskAttempt(name=GOLD, actions=(Action(TOOL, {"code": candidate.text}),))
        return VerifiableTask(
            id=task_id(self.tree.id, KIND, gold, setup),
            kind=KIND,
            instruction=f"{question}\n\nThe data files are in {self._folder.folder}. Answer with the value alone.",
            setup=setup,
            gold=gold,
            verifier=(
                TaskPredicate(
                    says="the answer is the value that the program computes",
                    relation=TaskRelation.AGREES,
                    expected=msgspec.to_builtins(expected),
                ),
            ),
            wrong=wrong,
            tree_id=self.tree.id,
            source_id=self.tree.seed.id,
            sources=(candidate.node,) if candidate.node else (),
            metadata={
                "question": question,
                "answer": show_value(expected),
                "folder": self._folder.folder,
                "agreed": agreement.agreed,
                "samples": agreement.samples,
            },
        )
