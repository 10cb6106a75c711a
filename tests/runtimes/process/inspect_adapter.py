"""Adapter that runs inspect_ai's own sandbox checks over an instance of any runtime.

Run as a program, `python -m tests.runtimes.process.inspect_adapter` runs all checks concurrently, each in its own
instance, and prints the errors of the failed ones as JSON.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Literal, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox import self_check
from typing_extensions import override

from runtimes import Instance, Outcome, Runtime
from runtimes.process import ProcessRuntime

Check = Callable[[SandboxEnvironment], Awaitable[None]]
CHECKS: dict[str, Check] = {name: getattr(self_check, name) for name in self_check.__all__}
_AT_ONCE = 8
_GUARD_SECONDS = 10
"""Limits from here on only guard against programs that hang: a busy machine may take longer."""


class InstanceEnvironment(SandboxEnvironment):
    """Instance as a sandbox of inspect_ai."""

    def __init__(self, instance: Instance) -> None:
        super().__init__()
        self._instance = instance

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        data = input.encode() if isinstance(input, str) else input or b""
        if timeout is not None and timeout >= _GUARD_SECONDS:
            timeout *= 10
        try:
            result = await self._instance.exec(cmd, input=data, cwd=cwd, env=env, user=user, timeout=timeout)
        except PermissionError as error:
            if user is None:
                raise
            raise SandboxUserUnsupportedError(str(error)) from error
        stdout, stderr = (text.decode("utf-8", "replace") for text in (result.stdout, result.stderr))
        if result.outcome is Outcome.TIMEOUT:
            raise TimeoutError(result.detail)
        if result.outcome is Outcome.OUTPUT_LIMIT:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout)
        if result.exit_code == 126 and "Permission denied" in stderr:
            raise PermissionError(stderr)
        return ExecResult(result.exit_code == 0, result.exit_code, stdout, stderr)

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self._instance.write(file, contents.encode() if isinstance(contents, str) else contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        data = await self._instance.read(file, length=limit + 1)
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Do nothing: the code that started an instance stops it."""


async def failures(runtime: Runtime) -> dict[str, str]:
    """Run all checks; return the failed ones with their errors."""
    errors: dict[str, str] = {}
    turns = anyio.CapacityLimiter(_AT_ONCE)

    async def run(name: str, check: Check) -> None:
        async with turns:
            instance = await runtime.start()
            try:
                await check(InstanceEnvironment(instance))
            except Exception as error:
                # The checks belong to another project: any exception is a failure.
                errors[name] = repr(error)
            await instance.stop()

    async with anyio.create_task_group() as tasks:
        for name, check in CHECKS.items():
            tasks.start_soon(run, name, check)
    return errors


async def main() -> None:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        report = {
            "root": runtime.capabilities.root,
            "checks": len(CHECKS),
            "failures": await failures(runtime),
        }
        sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    anyio.run(main)
