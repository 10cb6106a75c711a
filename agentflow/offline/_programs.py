"""Small programs over what was found: they compute something, and leave a trace in the sandbox."""

import shlex
from collections.abc import Iterator

from agentflow.offline._computed import LABEL
from agentflow.offline._leads import Leads, spans_of

__all__ = ["programs"]


def programs(kind: str, leads: Leads) -> Iterator[tuple[str, str]]:
    """Yield shell, Python or SQL programs, each with its intent."""
    for span in spans_of(leads):
        years = f"{span.later} - {span.earlier}"
        match kind:
            case "shell":
                program = f'echo "{LABEL} $(({years}))"'
            case "python":
                program = f'print("{LABEL}", {years})'
            case _:
                program = f"SELECT '{LABEL} ' || ({years}) AS span"
        yield f"Work out how many years lie between these: {span.said}.", program
    for subject in leads.subjects:
        yield f"Keep a note of {subject} and measure the notes.", _note(kind, subject.replace("\0", ""))


def _note(kind: str, subject: str) -> str:
    match kind:
        case "shell":
            return (
                f"printf '%s\\n' {shlex.quote(subject)} >> notes.txt\n"
                'echo "notes: $(wc -l < notes.txt) lines, checksum $(cksum < notes.txt)"'
            )
        case "python":
            return (
                "import zlib\n"
                f'notes = [*globals().get("notes", []), {subject!r}]\n'
                'print("notes:", len(notes), "entries, checksum", zlib.crc32("\\n".join(notes).encode()))'
            )
        case _:
            quoted = subject.replace("'", "''")
            return f"SELECT '{quoted}' AS subject, length('{quoted}') AS letters"
