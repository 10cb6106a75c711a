"""Machines of the stubs: one set of namespaces each, in which commands are really executed, as root inside."""

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

_WORDS = """bwrap --unshare-pid --unshare-net --unshare-ipc --unshare-uts --die-with-parent --cap-add ALL --info-fd {info}
    --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib --symlink usr/lib64 /lib64
    --proc /proc --dev /dev --dir /root --dir /etc --dir /etc/skel --ro-bind /etc/pam.d /etc/pam.d
    --bind {root}/home /home --bind {root}/tmp /tmp --bind {root}/run /run --bind {root}/app /app --chdir / --clearenv
    --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /root --"""


class Box:
    """One machine."""

    def __init__(self, root: Path, process: asyncio.subprocess.Process, pid: int) -> None:
        self.root = root
        self._process = process
        self._pid = pid

    @classmethod
    async def start(cls) -> "Box":
        """Start a machine."""
        root = Path(tempfile.mkdtemp(prefix="agentflow-box-"))
        for name in ("home", "tmp", "run", "app"):
            (root / name).mkdir(mode=0o755)
        read, write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(word.format(root=root, info=write) for word in _WORDS.split()),
                "sh",
                "-c",
                "echo root:x:0:0::/root:/bin/bash > /etc/passwd; echo root:x:0: > /etc/group; echo root:*:19000:0:99999:7::: > /etc/shadow; echo /bin/bash > /etc/shells; echo ready; exec sleep infinity",
                pass_fds=[write],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
        finally:
            os.close(write)
        with os.fdopen(read, encoding="utf-8") as report:
            report_text = await asyncio.to_thread(report.read)
        assert process.stdout is not None
        await process.stdout.readline()
        return cls(root, process, json.loads(report_text)["child-pid"])

    async def run(
        self,
        argv: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: int = subprocess.DEVNULL,
    ) -> AsyncGenerator[tuple[Literal["stdout", "stderr", "exit"], bytes | int]]:
        """Run a command; yield its output as it arrives, and its exit status.

        :param stdin: descriptor of its standard input.
        """
        process = await asyncio.create_subprocess_exec(
            *f"nsenter --target {self._pid} --pid --net --ipc --uts --mount --root --wd=/ -- env --chdir={cwd} --".split(),
            *argv,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        pieces: asyncio.Queue[tuple[Literal["stdout", "stderr"], bytes]] = asyncio.Queue()

        async def copy(name: Literal["stdout", "stderr"], reader: asyncio.StreamReader) -> None:
            while piece := await reader.read(1 << 16):
                pieces.put_nowait((name, piece))
            pieces.put_nowait((name, b""))

        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(copy("stdout", process.stdout))
                tasks.create_task(copy("stderr", process.stderr))
                running = 2
                while running:
                    name, piece = await pieces.get()
                    if piece:
                        yield name, piece
                    else:
                        running -= 1
            yield "exit", await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    async def finish(
        self, argv: list[str], *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> tuple[int, bytes, bytes]:
        """Run a command to its end; return its status and outputs."""
        out: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        status = -1
        async for name, value in self.run(argv, env=env, cwd=cwd):
            if isinstance(value, int):
                status = value
            else:
                out[name] += value
        return status, out["stdout"], out["stderr"]

    def _path(self, path: str) -> Path:
        path_in_box = self.root / path.lstrip("/")
        if ".." in path_in_box.parts:
            raise FileNotFoundError(path)
        return path_in_box

    async def write(self, path: str, data: bytes) -> None:
        """Write a file of one of its folders."""
        target = self._path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, data)

    async def read(self, path: str) -> bytes:
        """Read a file of one of its folders."""
        return await asyncio.to_thread(self._path(path).read_bytes)

    async def end(self) -> None:
        """Kill all its processes and remove its files."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.to_thread(lambda: subprocess.run(["rm", "-rf", str(self.root)], check=False))
