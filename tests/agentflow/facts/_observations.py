"""Observations and reported facts for tests."""

from agentflow.facts import ChunkExtraction, ExtractedFact, ExtractedSet, Extraction, ValueKind, chunks_of
from agentflow.trajectory import Action, Blob, Node, Observation, Text, Verdict

KINDS = {
    "e": ValueKind.ENTITY,
    "n": ValueKind.NUMBER,
    "d": ValueKind.DATE,
    "t": ValueKind.TEXT,
    "b": ValueKind.BOOL,
}


def observed(
    text: str,
    id: str = "node_1",
    *,
    action: Action | None = None,
    verdict: Verdict = Verdict.NEW,
    images: tuple[Blob, ...] = (),
) -> Node:
    """Return a node with this observation."""
    return Node(
        id=id,
        parent="root",
        depth=1,
        position=0,
        intent="look",
        action=action or Action("rag_get", {"id": id}),
        observation=Observation((Text(text), *images)),
        verdict=verdict,
    )


def reported(line: str) -> ExtractedFact:
    """Return the fact of a line `subject | relation | kind value | quote`."""
    subject, relation, value, quote = (part.strip() for part in line.split(" | "))
    return ExtractedFact(subject, relation, value[2:], KINDS[value[0]], quote)


def extracted(node: Node, *lines: str, sets: tuple[ExtractedSet, ...] = ()) -> ChunkExtraction:
    """Return the extraction of the whole text of a node, which must be short."""
    (chunk,) = chunks_of(node.observation.text)
    return ChunkExtraction(node.id, chunk, Extraction(tuple(map(reported, lines)), sets))
