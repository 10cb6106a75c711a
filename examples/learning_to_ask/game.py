"""Learning to ask: a doctor has three questions to find out two things about a patient's complaint.

The doctor sees the complaint and the possible findings (`complaint: pain possible: chest knee night noon`). A question (`ask where`) is
answered by a finding (`chest`), or by `nothing special` if it is not about the complaint. Then the doctor names both findings:
`diagnosis chest night pain`. Two of the eight questions are about a complaint; which ones is in no prompt.
"""

import re
from random import Random

from agentflow.trace import Task
from examples.library import Ask, Messages, Part, part_of

__all__ = ["COMPLAINTS", "FINDINGS", "QUESTIONS", "findings_of", "make_tasks", "play"]

FINDINGS = {
    "where": ["chest", "knee", "back", "neck", "elbow"],
    "when": ["night", "morning", "noon", "evening", "dawn"],
    "colour": ["red", "brown", "white", "blue", "yellow"],
    "touch": ["dry", "rough", "moist", "hot", "cold"],
    "since": ["hours", "days", "weeks", "months", "years"],
    "after": ["meals", "sport", "sleep", "work", "travel"],
    "family": ["father", "mother", "sister", "brother", "uncle"],
    "drink": ["water", "coffee", "milk", "tea", "juice"],
}
"""Findings of each question."""
COMPLAINTS = {
    "pain": ("where", "when"),
    "cramps": ("where", "after"),
    "rash": ("colour", "touch"),
    "itch": ("colour", "when"),
    "fever": ("since", "drink"),
    "fatigue": ("family", "after"),
    "palsy": ("family", "since"),
    "nausea": ("touch", "drink"),
}
"""The two questions that are about each complaint, in the order of the diagnosis."""
QUESTIONS = 3
"""Number of questions."""
_ASK = re.compile(r"ask (\w+)")


def make_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """Make patients; those of different parts have another complaint or other possible findings."""
    random = Random(f"learning_to_ask {part} {seed}")
    tasks: list[Task] = []
    while len(tasks) < count:
        complaint, questions = random.choice(list(COMPLAINTS.items()))
        possible = [random.sample(FINDINGS[each], 2) for each in questions]
        if part_of(f"{complaint} {sorted(map(sorted, possible))}") != part:
            continue
        found = [random.choice(each) for each in possible]
        shown = " ".join(finding for each in possible for finding in each)
        task = Task(
            index=len(tasks),
            id=f"{part}-{len(tasks)}",
            question=f"complaint: {complaint} possible: {shown}",
            references=(f"diagnosis {' '.join(found)} {complaint}",),
            metadata={"findings": dict(zip(questions, found, strict=True))},
        )
        tasks.append(task)
    return tasks


def findings_of(messages: Messages) -> dict[str, str]:
    """Return what the doctor knows: findings by question."""
    pairs = zip(messages[1::2], messages[2::2], strict=True)
    return {
        said["content"].split()[-1]: told["content"] for said, told in pairs if " " not in told["content"]
    }


async def play(task: Task, ask: Ask) -> float:
    """See one patient; the reward is 1 for the right diagnosis.

    :param ask: asks the doctor.
    """
    findings: dict[str, str] = task.metadata["findings"]
    messages = [{"role": "user", "content": task.question}]
    for _ in range(QUESTIONS + 1):
        answer = await ask(messages)
        asked = _ASK.fullmatch(answer)
        if asked is None:
            return float(answer in task.references)
        told = findings.get(asked[1], "nothing special")
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": told}]
    return 0.0
