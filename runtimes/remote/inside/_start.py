"""Programs that the platform's API runs: start the sandbox server, and pass one request to it.

Standard library only, so that a request takes the start of an interpreter and no more.
"""

import base64
import json
import os
import secrets
import shutil
import socket
import sys
from typing import Any

from runtimes.docker.inside._paths import SHELL_ENTRY
from runtimes.remote.inside._paths import INLINE_BYTES, LIBRARY, NO_SERVER, ROOT, SAVED_FOLDERS, SOCKET, SPOOL

_SHELL = f"{LIBRARY}/runtimes/process/inside"


def ask(argument: str) -> str:
    """Pass a request to the server; return the reply in base64, or `@` and the file with it.

    :param argument: the request in base64, or `@` and the path of a file with it.
    """
    if argument.startswith("@"):
        with open(argument[1:], "rb") as file:
            request = file.read()
        os.unlink(argument[1:])
    else:
        request = base64.b64decode(argument)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(SOCKET)
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            pieces: list[bytes] = []
            while piece := connection.recv(1 << 20):
                pieces.append(piece)
        except OSError:
            return NO_SERVER
    reply = b"".join(pieces)
    if not reply:
        return NO_SERVER
    if len(reply) <= INLINE_BYTES:
        return base64.b64encode(reply).decode("ascii")
    path = f"{SPOOL}/{secrets.token_hex(8)}"
    with open(path, "wb") as file:
        file.write(reply)
    return f"@{path} {len(reply)}"


def drop(path: str) -> str:
    """Remove a file with a reply."""
    if os.path.dirname(path) == SPOOL:
        os.unlink(path)
    return ""


def start(argument: str) -> str:
    """Start the server in the background; return `ready`, or the reason why it did not start, in one line."""
    settings: dict[str, Any] = json.loads(base64.b64decode(argument))
    if os.geteuid() != 0:
        return (
            "error the sandbox's programs must run as root: use an image whose user is root or may use sudo"
        )
    os.makedirs(SPOOL, exist_ok=True)
    os.chmod(ROOT, 0o711)
    os.chmod(SPOOL, 0o700)
    for folder in ("/home/agent", "/tmp", "/dev/shm", "/etc"):
        os.makedirs(folder, exist_ok=True)
    shutil.copy(f"{_SHELL}/_shell_entry.bash", SHELL_ENTRY)
    os.chmod(SHELL_ENTRY, 0o644)
    with open(f"{_SHELL}/_shell.bash", encoding="utf-8") as file:
        settings["init"]["shell_driver"] = file.read()
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(read)
        _become_server(settings, write)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as report:
        return report.read().strip() or "error the sandbox server ended"


def _become_server(settings: dict[str, Any], report: int) -> None:
    """Serve in this process, with the agent's first process as a child."""
    try:
        null, log = os.open("/dev/null", os.O_RDWR), os.open(f"{ROOT}/log", os.O_WRONLY | os.O_CREAT, 0o600)
        for number, fd in enumerate((null, log, log)):
            os.dup2(fd, number)
        os.chdir("/")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            os.close(report)
            ours.close()
            # Before anything that a session must not see.
            from runtimes.docker.inside._container_init import serve_remote

            serve_remote(theirs, SAVED_FOLDERS)
            os._exit(0)
        theirs.close()
        import asyncio

        from runtimes.remote.inside import _sandbox_server

        ready = asyncio.Event()

        async def serve() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_sandbox_server.serve(ours, settings["spec"], settings["init"], ready))
                await ready.wait()
                os.write(report, b"ready")
                os.close(report)

        asyncio.run(serve())
    except BaseException as error:
        # Boundary of a forked process: the reason goes to the caller in one line.
        text = str(getattr(error, "exceptions", (error,))[0])
        os.write(report, f"error {text.splitlines()[0] if text else type(error).__name__}".encode())
    finally:
        os._exit(1)


def main() -> None:
    """Run the program that the command line names."""
    program, argument = sys.argv[1:]
    sys.stdout.write({"ask": ask, "drop": drop, "start": start}[program](argument))
