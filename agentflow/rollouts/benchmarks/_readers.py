"""Readers of ten benchmarks, in their published formats and in that of the solver's files."""

import re
from string import ascii_uppercase
from typing import Final

from agentflow._typeguards import is_list, is_object
from agentflow.rollouts.benchmarks._benchmark import described
from agentflow.rollouts.benchmarks._rows import BenchmarkRow
from agentflow.scoring import extract_answer
from agentflow.trace import Task, digest

_ID: Final = ("id", "_id", "task_id", "ID", "Record ID", "pid", "idx")
_QUESTION: Final = ("question", "Question", "problem", "Problem", "query")
_ANSWER: Final = ("answer", "Answer", "answers", "golden_answers", "ground_truth")
_ELEMENT: Final = re.compile(r"""\s*'((?:[^'\\]|\\.)*)'\s*(?=,|$)|\s*"((?:[^"\\]|\\.)*)"\s*(?=,|$)""")
_LISTED: Final = re.compile(r"""\[\s*['"].*['"]\s*\]""", re.DOTALL)
_RESULT: Final = re.compile(r"^.*\n#### *(?=\S[^\n]*$)", re.DOTALL)
_LABELLED: Final = re.compile(r"\(?([A-Z])[.):]\s+(\S.*)", re.DOTALL)
_EXPRESSION: Final = re.compile(r"\d[\d\s()+\-*/×÷.=\\a-z{}]*[-+*/×÷]")
_INCORRECT: Final = tuple(f"Incorrect Answer {number}" for number in (1, 2, 3))


def references(row: BenchmarkRow, *names: str) -> tuple[str, ...]:
    """Return reference answers from a text, a number, a list, or a list written as text, as in `"['one', 'two']"`.

    Of a solution that ends with `#### 72`, as in GSM8K, that is the answer. See docs/benchmarks.md.
    """
    return tuple(inner for text in row.texts(*names) for inner in _unlisted(_RESULT.sub("", text)))


def read_open(row: BenchmarkRow) -> Task:
    """Read an open question with a short answer: Bamboogle, 2WikiMultihopQA, HotpotQA."""
    right = references(row, *_ANSWER)
    if not right:
        row.refuse("answer", "is missing; add it")
    kinds = {"type": row.perhaps("type"), "level": row.perhaps("level")}
    return described(row.text(*_QUESTION), right, id=row.perhaps(*_ID), **kinds)


def read_musique(row: BenchmarkRow) -> Task | None:
    """Read a question of MuSiQue with aliases of its answer; unanswerable ones belong to another task."""
    if row.fields.get("answerable") is False:
        return None
    task = read_open(row)
    aliases = references(row, "answer_aliases")
    return described(task.question, (*task.references, *aliases), id=task.id)


def read_gaia(row: BenchmarkRow) -> Task | None:
    """Read a question of GAIA that needs no file; answers of its test split are not published."""
    if row.perhaps("file_name"):
        return None
    right = row.texts("Final answer", *_ANSWER)
    if not right:
        row.refuse("Final answer", "is missing; add it, or ? if it is unknown")
    answers = tuple(answer for answer in right if answer != "?")
    level = row.perhaps("Level", "level")
    if level not in {"", "1", "2", "3"}:
        row.refuse("Level", f"is {level}, not 1, 2 or 3")
    return described(
        row.text(*_QUESTION), answers, id=row.perhaps("task_id", *_ID), level=int(level or 0) or None
    )


def read_aime(row: BenchmarkRow) -> Task:
    """Read a problem whose answer is a whole number from 0 to 999."""
    task = _problem(row)
    right = task.references[0].lstrip("0") or "0"
    if not (right.isdecimal() and len(right) <= 3):
        row.refuse("answer", f"is {task.references[0]}, not a whole number from 0 to 999")
    return described(task.question, (right,), id=task.id)


def read_amc(row: BenchmarkRow) -> Task:
    """Read a problem of AMC, whose answer is a number or a formula."""
    return _problem(row)


def _problem(row: BenchmarkRow) -> Task:
    right = references(row, *_ANSWER)
    if not right:
        # Some files have the answer only in the solution, in a box.
        _, solution = row.find("solution", "Solution")
        right = (extract_answer(solution),) if isinstance(solution, str) and "boxed" in solution else ()
    if not right:
        row.refuse("answer", "is missing; add it")
    return described(row.text(*_QUESTION), right, id=row.perhaps(*_ID))


def read_game(row: BenchmarkRow) -> Task:
    """Read four numbers of the Game of 24 from a field, the question, or a solution."""
    name, puzzle = row.find("Puzzles", "puzzle", "numbers", *_QUESTION)
    if puzzle is None:
        row.refuse("Puzzles", "is missing; write four numbers there, as in 1 4 6 11")
    solutions = tuple(reference for reference in references(row, *_ANSWER) if _EXPRESSION.search(reference))
    texts = " ".join(map(str, puzzle)) if is_list(puzzle) else row.plain(name, puzzle)
    numbers = [int(digits) for digits in re.findall(r"\d{1,6}", texts)]
    if len(numbers) == 5 and 24 in numbers:
        numbers.remove(24)
    if len(numbers) != 4 and solutions:
        numbers = [int(digits) for digits in re.findall(r"\d{1,6}", solutions[0].partition("=")[0])]
    if len(numbers) != 4:
        row.refuse(name, "has no four numbers; write them as in 1 4 6 11")
    return described(" ".join(map(str, numbers)), solutions, id=row.perhaps(*_ID, "Rank"), numbers=numbers)


def read_gpqa(row: BenchmarkRow) -> Task:
    """Read a question with four options, which are shuffled: the published file has the right one first."""
    if "Correct Answer" not in row.fields:
        return _choice(row, row.find("choices", "options")[1], row.text("answer"))
    right, others = row.text("Correct Answer"), [row.text(name) for name in _INCORRECT]
    question, id = row.text("Question"), row.perhaps(*_ID)
    # A fixed pseudo-random order.
    ordered = sorted([right, *others], key=lambda option: digest([question, option]))
    options = dict(zip(ascii_uppercase, ordered, strict=False))
    letter = ascii_uppercase[ordered.index(right)]
    return described(question, (letter,), id=id, options=options, subject=row.perhaps("Subdomain"))


def read_medqa(row: BenchmarkRow) -> Task:
    """Read a multiple-choice question."""
    inner: object = row.fields.get("data")
    if is_object(inner):
        row = BenchmarkRow(row.place, {**row.fields, **inner})
    _, options = row.find("options", "Options", "choices")
    return _choice(row, options, row.text("answer_idx", "Correct Option", "answer"))


def _choice(row: BenchmarkRow, options: object, answer: str) -> Task:
    offered = _options(row, options)
    labelled = _LABELLED.match(answer)
    letter = labelled[1] if labelled else answer.strip("() ")
    if letter.isdecimal() and letter not in offered.values() and int(letter) < len(offered):
        letter = list(offered)[int(letter)]
    if letter not in offered:
        alike = [letter for letter, text in offered.items() if text.casefold() == answer.casefold()]
        if len(alike) != 1:
            row.refuse("answer", f"{answer} is none of the options {', '.join(offered)}")
        letter = alike[0]
    return described(row.text(*_QUESTION), (letter,), id=row.perhaps(*_ID), options=offered)


def _options(row: BenchmarkRow, options: object) -> dict[str, str]:
    """Return options by letter, from an object, a list of texts, or a list of keys with values."""
    if is_object(options):
        offered = {letter: row.plain("options", text) for letter, text in options.items() if text is not None}
    elif is_list(options):
        texts = [_option(row, option) for option in options]
        offered = dict(zip(ascii_uppercase, _unlabelled(texts), strict=False))
    else:
        row.refuse("options", "is missing; write an object of letters with texts, or a list")
    if len(offered) < 2:
        row.refuse("options", "has fewer than two")
    return offered


def _option(row: BenchmarkRow, option: object) -> str:
    return row.plain("options", option.get("value") if is_object(option) else option)


def _unlabelled(texts: list[str]) -> list[str]:
    """Remove the letters if all options have theirs in order."""
    labels = [_LABELLED.fullmatch(text) for text in texts]
    if "".join(label[1] for label in labels if label) == ascii_uppercase[: len(texts)]:
        return [label[2] for label in labels if label]
    return texts


def _unlisted(text: str) -> list[str]:
    if not _LISTED.fullmatch(text):
        return [text]
    elements = [
        re.sub(r"\\(.)", r"\1", quoted or other).strip() for quoted, other in _ELEMENT.findall(text[1:-1])
    ]
    return [element for element in elements if element] or [text]
