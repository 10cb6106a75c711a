"""Small release notes and calls that show them, for tests of questions."""

from agentflow.questions import Draft, DraftStep, ShownDocument, documents_from
from agentflow.trace import Action, ActionOutcome, Node, Observation, SourceSpan, Text, Verdict
from agentflow.values import ValueKind

FIRST = """\
# Release 4.1

The release was published on 9 February 2023 by Ada Quill.

## Migration

A dump and restore is not required. If you come from a release before 4.0, see the notes of 4.0.

## Changes

The release repairs the following:

- Fix a crash of the planner when a table has more than 57,700 partitions.

- Remove the option keep_alive, which release 4.0 had introduced.
"""
SECOND = """\
# Release 4.0

The release was published on 13 October 2022.

## Changes

- Add the option keep_alive for idle connections.

- Add support of the platform hppa, which needs at least 64 MB of memory.
"""


def notes() -> tuple[ShownDocument, ...]:
    """Return both notes as whole documents."""
    return documents_from([("r41", "Release 4.1 notes", FIRST), ("r40", "Release 4.0 notes", SECOND)])


def passage(documents: tuple[ShownDocument, ...], words: str) -> int:
    """Return the number of the passage with some words, in any case; 0: there is none."""
    passages = (each for document in documents for each in document.passages)
    return next((each.number for each in passages if words.lower() in each.text.lower()), 0)


def draft(documents: tuple[ShownDocument, ...], /, **changes: object) -> Draft:
    """Return a sound draft over both notes, or one with changes."""
    fields: dict[str, object] = {
        "kind": "duration",
        "asker": "A packager who plans how long 4.0 has to be supported.",
        "question": "How many days after release 4.0 was published did release 4.1 follow?",
        "answer": "119",
        "answer_type": ValueKind.NUMBER,
        "unit": "days",
        "documents": (1, 2),
        "steps": (
            DraftStep(
                statement="Release 4.0 was published on 13 October 2022.",
                passage=passage(documents, "13 October"),
                quote="The release was published on 13 October 2022.",
                value="13 October 2022",
            ),
            DraftStep(
                statement="Release 4.1 was published on 9 February 2023.",
                passage=passage(documents, "9 February"),
                quote="The release was published on 9 February 2023",
                value="9 February 2023",
            ),
            DraftStep(statement="Between them are 119 days.", computes="days(s1, s2)"),
        ),
    }
    return Draft(**{**fields, **changes})  # type: ignore[arg-type]


def shown(text: str, *sources: SourceSpan, tool: str = "rag_search", **arguments: object) -> Node:
    """Return a node whose observation is this text."""
    return Node(
        id=f"node-{abs(hash((tool, str(arguments), text))) % 10**6}",
        parent="root",
        depth=1,
        position=0,
        intent="",
        action=Action(tool, dict(arguments)),
        outcome=ActionOutcome(Observation((Text(text),), sources)),
        verdict=Verdict.NEW,
    )
