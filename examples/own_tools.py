"""Custom function and stateful custom backend: `python examples/own_tools.py`."""

from collections.abc import Mapping
from typing import Annotated

import anyio
from pydantic import Field

from agentflow import Backend, Sandbox, register_api_tool
from agentflow.sandbox import Session, tool


@register_api_tool("text:count")
def count_words(text: str) -> int:
    """Count the words of a text.

    :param text: the text
    """
    return len(text.split())


class Notes(list[str]):
    """The notes of one session."""


class NotesBackend(Backend):
    """Notes of a session. A fork gets a copy."""

    name = "notes"
    description = "Keeps short notes for this session."

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Begin with the setting `first`, if there is one."""
        session.put(Notes([str(settings["first"])] if "first" in settings else []))

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the notes."""
        forked.put(Notes(session.get(Notes)))

    @tool(destructive=False)
    async def add(
        self, session: Session, note: Annotated[str, Field(description="What to note.")]
    ) -> list[str]:
        """Note something. Use it for what you will need later."""
        notes = session.get(Notes)
        notes.append(note)
        return notes


async def main() -> None:
    """Use both, together with a shell."""
    async with Sandbox(backends=["bash", NotesBackend()]) as sandbox:
        shell = await sandbox.execute("bash:run", {"command": "echo one two three"})
        words = await sandbox.execute("text:count", {"text": shell.data["stdout"]})
        print("words:", words.data["result"])
        await sandbox.create_session("notes", {"first": "begin"})
        await sandbox.execute("notes:add", {"note": "a"})
        async with await sandbox.fork() as fork:
            print("fork:", (await fork.execute("notes:add", {"note": "b"})).data["result"])
        print("here:", (await sandbox.execute("notes:add", {"note": "c"})).data["result"])
        print("\n".join(tool.prompt() for tool in await sandbox.tools(["notes", "text"])))


if __name__ == "__main__":
    anyio.run(main)
