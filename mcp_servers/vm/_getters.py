"""Getters of an evaluation. A failed getter is an error, never a value."""

import re
import shlex

from agentflow.errors import ErrorKind, NotOffered, ToolFailure
from mcp_servers.core._session import Session
from mcp_servers.vm import _evaluation_schema as schema
from mcp_servers.vm import _sandboxed
from mcp_servers.vm._session_machine import SessionMachine
from mcp_servers.vm._steps import check, words

LARGEST = 32 * 1024 * 1024
"""Maximum size of a file in bytes."""

Found = str | bytes | object
"""Text, the bytes of a file or a picture, or a given value."""


async def look(getter: schema.Getter, acting: SessionMachine, session: Session) -> Found:
    """Return the value of a getter.

    :raises ToolFailure: if it cannot be determined.
    """
    try:
        return await _look(getter, acting, session)
    except FileNotFoundError:
        path = getattr(getter, "path", "")
        raise ToolFailure(ErrorKind.NOT_FOUND, f"{getter.type}: there is no {path!r}") from None
    except (NotOffered, OSError) as error:
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"{getter.type}: {error}") from None


async def _look(getter: schema.Getter, acting: SessionMachine, session: Session) -> Found:
    match getter:
        case schema.Rule():
            return getter.rules
        case schema.FileContent():
            return _bounded(await acting.machine.read(getter.path), getter.path)
        case schema.WorkspaceFile():
            return _bounded(await (await session.instance()).read(getter.path), getter.path)
        case schema.ScreenRegion():
            return await _region(getter, acting, session)
        case schema.AccessibilityNode():
            return _nodes(await acting.machine.accessibility(), getter)
        case schema.WindowTitle() | schema.WindowList():
            return await _windows(getter, acting)
        case schema.MachineDirectoryListing():
            return await _output(["ls", "-1A", "--", getter.path], acting)
        case schema.ProcessState():
            return await _process(getter.name, acting)
        case schema.CommandOutput():
            return await _output(getter.command, acting)


def _bounded(data: bytes, path: str) -> bytes:
    if len(data) > LARGEST:
        raise ToolFailure(ErrorKind.FILE_TOO_LARGE, f"{path!r} has {len(data)} bytes, more than {LARGEST}")
    return data


async def _output(command: schema.Command, acting: SessionMachine) -> str:
    done = await acting.machine.exec(words(command), timeout=acting.settings.evaluate_seconds)
    check(done, command)
    return done.stdout.decode("utf-8", "replace")


async def _process(name: str, acting: SessionMachine) -> str:
    # Not every system has pgrep, and /proc may hide processes of other users.
    line = f'for f in /proc/[0-9]*/comm; do read -r n < "$f" 2>/dev/null && [ "$n" = {shlex.quote(name[:15])} ] && echo yes; done; :'
    return "running" if "yes" in await _output(line, acting) else "not running"


async def _windows(getter: schema.WindowTitle | schema.WindowList, acting: SessionMachine) -> str:
    there = await acting.machine.windows()
    if isinstance(getter, schema.WindowList):
        return "\n".join(window.title for window in there)
    if getter.application is None:
        return next((window.title for window in there if window.focused), "")
    wanted = getter.application.lower()
    return next((window.title for window in reversed(there) if window.application.lower() == wanted), "")


def _nodes(tree: str, getter: schema.AccessibilityNode) -> str:
    if getter.role is None and getter.name is None:
        return tree
    role = re.escape(getter.role) if getter.role is not None else r"\S+"
    name = re.escape(f'"{getter.name}"') if getter.name is not None else r'"'
    wanted = re.compile(rf"\s*{role} {name}")
    return "\n".join(line.strip() for line in tree.splitlines() if wanted.match(line))


async def _region(getter: schema.ScreenRegion, acting: SessionMachine, session: Session) -> bytes:
    screen = await acting.machine.screenshot()
    right = getter.x + (getter.width or screen.width - getter.x)
    lower = getter.y + (getter.height or screen.height - getter.y)
    if not (getter.x < right <= screen.width and getter.y < lower <= screen.height):
        size = f"{screen.width}x{screen.height}"
        message = f"{getter.type}: the region up to ({right}, {lower}) is not on the screen of {size}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if (getter.x, getter.y, right, lower) == (0, 0, screen.width, screen.height):
        return screen.png
    return await _sandboxed.cropped(session, screen.png, (getter.x, getter.y, right, lower))
