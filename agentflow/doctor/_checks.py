"""Checks of the installation, runtimes, backends, model providers and network hosts, made concurrently."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import aiohttp
import anyio
import anyio.to_thread
from msgspec import Struct, field, structs

from agentflow._import_path import own_environment
from agentflow.errors import AgentFlowError, ConfigurationError, error_line
from agentflow.extras import DISTRIBUTION, add_command, list_extras
from agentflow.models import PROVIDERS, is_loopback
from agentflow.sandbox import Sandbox, SandboxSettings, Tool
from agentflow.serving import ServingSettings
from mcp_servers import BACKENDS
from mcp_servers.core import RUNTIMES, did_you_mean, runtime_maker
from runtimes import Capabilities, InstanceSpec, Outcome
from runtimes.process import CONTAINMENT, LACKS, ContainmentPromise, Lack, ProcessRuntime


class DiagnosisState(StrEnum):
    """State of a checked part."""

    WORKS = "works"
    """It works."""
    PARTLY = "partly"
    """It works with the limitations in the text."""
    MISSING = "missing"
    """It does not work; the text says how to fix it."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Result of one check."""

    area: str
    """`installation`, `runtimes`, `containment`, `backends`, `models`, `networks` or `live`."""
    name: str
    """Name of the checked part."""
    state: DiagnosisState
    """State of the part."""
    text: str = field(default="", name="said")
    """Abilities of the part; or what is missing, and what to install or set."""
    variable: str = ""
    """Environment variable of a model provider that nobody has configured."""
    command: str = ""
    """Command that installs what is missing."""


PRELOADED = ("numpy", "pandas")
"""Libraries that sandboxes import at their start, if they are installed."""
_CHECKOUT = Path(__file__).parents[2]

_about_installation = partial(Diagnosis, area="installation")


async def examine_extras() -> Diagnosis:
    """List the extras that are missing."""
    extras = list_extras()
    if not extras:
        text = f"no metadata of {DISTRIBUTION}: install it with pip or uv"
        return _about_installation(name="extras", state=DiagnosisState.MISSING, text=text)
    missing = [extra.name for extra in extras if extra.missing and extra.name != "all"]
    installed = ", ".join(extra.name for extra in extras if not extra.missing and extra.name != "all")
    if not missing:
        return _about_installation(name="extras", state=DiagnosisState.WORKS, text=f"installed: {installed}")
    small = any(extra.name == "all" and extra.missing for extra in extras)
    command = add_command("all") if small else ""
    text = f"installed: {installed or 'none'}; missing: {', '.join(missing)} ({add_command('NAME')})"
    return _about_installation(name="extras", state=DiagnosisState.PARTLY, text=text, command=command)


async def examine_bytecode() -> Diagnosis:
    """Look for the compiled modules of libraries that every sandbox imports, and can't compile for the next one."""
    folders = await anyio.to_thread.run_sync(_uncompiled)
    if not folders:
        return _about_installation(name="bytecode", state=DiagnosisState.WORKS, text="modules are compiled")
    names = ", ".join(folder.name for folder in folders)
    return _about_installation(
        name="bytecode",
        state=DiagnosisState.PARTLY,
        text=f"not compiled: {names}; every sandbox compiles them again, which takes a second",
        command=shlex.join([sys.executable, "-m", "compileall", "-q", "-j", "0", *map(str, folders)]),
    )


async def examine_serving() -> Diagnosis:
    """Look for vLLM in the environment that serves models."""
    try:
        python = ServingSettings(model="any").interpreter()
    except ConfigurationError as error:
        return _about_installation(name="serving", state=DiagnosisState.MISSING, text=str(error))
    return await anyio.to_thread.run_sync(_environment, "serving", "vllm", python, "agentflow serve-model")


async def examine_verl() -> Diagnosis:
    """Look for verl in its environment."""
    return await anyio.to_thread.run_sync(
        _environment, "verl", "verl", own_environment(".venv-verl"), "backbone: verl"
    )


async def examine_trinity() -> Diagnosis:
    """Look for Trinity in its environment."""
    return await anyio.to_thread.run_sync(
        _environment, "trinity", "trinity-rft", own_environment(".venv-trinity"), "backbone: trinity"
    )


async def examine_verifiers() -> Diagnosis:
    """Look for verifiers in its environment."""
    return await anyio.to_thread.run_sync(
        _environment, "verifiers", "verifiers", own_environment(".venv-verifiers"), "verifiers:TASKSET"
    )


def _uncompiled() -> list[Path]:
    specs = [spec for name in PRELOADED if (spec := find_spec(name)) is not None]
    sources = [spec.origin for spec in specs if spec.origin is not None]
    return [Path(source).parent for source in sources if not Path(cache_from_source(source)).is_file()]


def _environment(name: str, distribution: str, python: Path, use: str) -> Diagnosis:
    version = ""
    if python.exists():
        probe = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        done = subprocess.run([python, "-c", probe], check=False, capture_output=True, encoding="utf-8")
        version = done.stdout.strip()
    if version:
        return _about_installation(
            name=name, state=DiagnosisState.WORKS, text=f"{distribution} {version} in {python}"
        )
    made = (
        "agentflow serve-model --install cpu"
        if distribution == "vllm"
        else f"make .venv-{distribution.removesuffix('-rft')}/.stamp"
        if (_CHECKOUT / "Makefile").is_file()
        else f"install {distribution} into an environment of its own and set `python`"
    )
    text = f"{use} needs {distribution} in its own environment: {made}"
    return _about_installation(name=name, state=DiagnosisState.MISSING, text=text)


Area: TypeAlias = Literal["installation", "runtimes", "containment", "backends", "models", "networks"]


AREAS: Final[tuple[Area, ...]] = get_args(Area)
"""Areas, in the order of the output."""


CONCURRENCY = 4
"""Maximum number of concurrent checks."""


SECONDS = 60.0
"""Time limit of a check."""


CONNECT_SECONDS = 5.0
"""Time limit of a connection or request."""


HOSTS: Final[Mapping[str, str]] = {
    "en.wikipedia.org": "web_wikipedia",
    "google.serper.dev": "web_search by Serper",
    "r.jina.ai": "web_visit by Jina Reader",
    "huggingface.co": "weights and data sets by name",
}
"""Hosts that the tools use, with their purpose."""


_TRIALS: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    "bash": ("bash:run", {"command": "true"}),
    "browser": ("browser:navigate", {"url": "about:blank"}),
    "code": ("code:run", {"code": "1"}),
    "data": ("data:inspect", {}),
    "document": ("document:outline", {}),
    "files": ("files:list", {}),
    "rag": ("rag:stats", {}),
    "sql": ("sql:list_databases", {}),
    "vm": ("vm:screenshot", {}),
    "world": ("world:reset", {}),
}
"""Call per backend that changes nothing and has the usual requirements."""


_Check: TypeAlias = Callable[[], Awaitable[Diagnosis]]


async def examine(names: Iterable[str], environment: Mapping[str, str]) -> list[Diagnosis]:
    """Check areas, or runtimes, backends, providers and hosts by name; without names, everything. See docs/doctor.md.

    :raises ConfigurationError: if a name is unknown.
    """
    checks = _checks(environment)
    wanted = _wanted(list(names), checks)
    diagnoses: dict[tuple[str, str], Diagnosis] = {}
    limit = anyio.CapacityLimiter(CONCURRENCY)

    async def check(key: tuple[str, str]) -> None:
        area, name = key
        async with limit:
            try:
                with anyio.move_on_after(SECONDS):
                    diagnoses[key] = await checks[key]()
            except Exception as error:  # boundary: any error of a check is its result
                diagnoses[key] = _missing(area, name, error_line(error))
        if key not in diagnoses:
            diagnoses[key] = _missing(area, name, f"not finished after {SECONDS:.0f} seconds")

    async with anyio.create_task_group() as tasks:
        for key in wanted:
            tasks.start_soon(check, key)
    return [diagnoses[key] for key in wanted]


def _checks(environment: Mapping[str, str]) -> dict[tuple[str, str], _Check]:
    machine = MachineContainment()
    return {
        ("installation", "extras"): examine_extras,
        ("installation", "bytecode"): examine_bytecode,
        ("installation", "serving"): examine_serving,
        ("installation", "verl"): examine_verl,
        ("installation", "trinity"): examine_trinity,
        ("installation", "verifiers"): examine_verifiers,
        **{("runtimes", name): partial(examine_runtime, name) for name in RUNTIMES},
        **{
            ("containment", containment.name): partial(machine.examine, containment)
            for containment in CONTAINMENT
        },
        **{("backends", name): partial(examine_backend, name) for name in BACKENDS},
        ("backends", "panel"): examine_panel,
        **{("models", name): partial(examine_provider, name, environment) for name in PROVIDERS},
        **{("networks", name): partial(examine_host, name) for name in HOSTS},
    }


def _wanted(names: list[str], checks: Mapping[tuple[str, str], _Check]) -> list[tuple[str, str]]:
    for name in names:
        if not any(name in key for key in checks):
            known_names = [*AREAS, *(name for _, name in checks)]
            raise ConfigurationError(f"{name!r} is unknown.{did_you_mean(name, known_names)}")
    return [key for key in checks if not names or any(name in key for name in names)]


async def examine_runtime(name: str) -> Diagnosis:
    """Start a sandbox and run a command in it."""
    try:
        async with runtime_maker(name, InstanceSpec())() as runtime:
            instance = await runtime.start()
            try:
                ran = await instance.exec(["true"])
            finally:
                await instance.stop()
            if ran.outcome is not Outcome.OK or ran.exit_code:
                return _missing("runtimes", name, ran.detail or f"a command ended with {ran.exit_code}")
            able = runtime.capabilities
    except AgentFlowError as error:
        return _missing("runtimes", name, str(error))
    if able.notes:
        return _diagnosis("runtimes", name, DiagnosisState.PARTLY, "; ".join(able.notes))
    return _diagnosis("runtimes", name, DiagnosisState.WORKS, _abilities(able))


def _abilities(able: Capabilities) -> str:
    words = [f"fork: {able.fork}", "snapshots" if able.snapshot else "", "screen" if able.screen else ""]
    return ", ".join(word for word in words if word)


class MachineContainment:
    """Promises of the process runtime that hold on this machine; it is started once for all."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._lacks: frozenset[Lack] | None = None
        self._error = ""

    async def examine(self, promise: ContainmentPromise) -> Diagnosis:
        """Return the state of a promise."""
        async with self._lock:
            if self._lacks is None and not self._error:
                await self._start()
        if self._lacks is None:
            return _missing("containment", promise.name, self._error)
        effects = promise.effects(self._lacks)
        if not effects:
            return _diagnosis("containment", promise.name, DiagnosisState.WORKS, promise.text)
        lost = bool(promise.lost.keys() & self._lacks)
        state = DiagnosisState.MISSING if lost else DiagnosisState.PARTLY
        lacks = ", ".join(
            LACKS[lack] for lack in LACKS if lack in self._lacks and promise.cell(lack) != "holds"
        )
        text = f"{'; '.join(effects)} ({lacks}); promised: {promise.text}"
        return _diagnosis("containment", promise.name, state, text)

    async def _start(self) -> None:
        try:
            async with ProcessRuntime(preload=()) as runtime:
                self._lacks = runtime.lacks
        except AgentFlowError as error:
            self._error = str(error)


async def examine_backend(name: str) -> Diagnosis:
    """Start a backend, open a session, and call one of its tools."""
    try:
        async with Sandbox(backends=[name]) as sandbox:
            await sandbox.warmup(name)
            tools = [tool for tool in await sandbox.tools() if tool.backend == name]
            trial = _TRIALS.get(name)
            if trial is not None:
                result = await sandbox.execute(*trial)
                if result.error is not None:
                    return _missing("backends", name, result.error.message)
    except AgentFlowError as error:
        return _missing("backends", name, str(error))
    return _by_tools(name, tools)


async def examine_panel() -> Diagnosis:
    """Start a desktop with a panel, as for tasks on a desktop, and look for a browser."""
    settings = SandboxSettings(backends={"vm": {"desktop": {"panel": True}}})
    try:
        async with Sandbox(settings) as sandbox:
            result = await sandbox.execute("vm:screenshot")
    except AgentFlowError as error:
        return _missing("backends", "panel", str(error))
    if result.error is not None:
        return _missing("backends", "panel", result.error.message)
    if shutil.which("chromium") is None:
        text = "a desktop without a browser; install chromium (Debian: apt-get install chromium)"
        return _diagnosis("backends", "panel", DiagnosisState.PARTLY, text)
    text = "a desktop with a terminal, a file manager, an editor and a browser"
    return _diagnosis("backends", "panel", DiagnosisState.WORKS, text)


def _by_tools(name: str, tools: list[Tool]) -> Diagnosis:
    unusable = {tool.name: tool.unusable for tool in tools if tool.unusable}
    if not unusable:
        text = f"{len(tools)} tools" if tools else "its tools come from the servers in its settings"
        return _diagnosis("backends", name, DiagnosisState.WORKS, text)
    text = "; ".join(
        f"{', '.join(tool for tool, why in unusable.items() if why == reason)}: {reason}"
        for reason in dict.fromkeys(unusable.values())
    )
    state = DiagnosisState.PARTLY if len(unusable) < len(tools) else DiagnosisState.MISSING
    return _diagnosis("backends", name, state, text)


async def examine_provider(name: str, environment: Mapping[str, str]) -> Diagnosis:
    """Request the provider's list of models, if there is a key or none is needed."""
    provider = PROVIDERS[name]
    key, url = provider.key(environment), provider.address(environment)
    if not url:
        return _unset(name, provider.url_variable)
    if not key and not is_loopback(url):
        return _unset(name, provider.key_variable)
    headers = provider.make_api(environment).headers(key)
    timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=True) as session,
            session.get(f"{url}{provider.models_path}", allow_redirects=False) as answer,
        ):
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        missing = _missing("models", name, f"{url} can't be reached: {str(error) or 'timeout'}")
        unset = not key and provider.url_variable not in environment
        return structs.replace(missing, variable=provider.url_variable) if unset else missing
    # Gemini answers an invalid key with 400.
    if status in (400, 401, 403):
        return _missing("models", name, f"{url} rejects the key: fix {provider.key_variable}")
    state = DiagnosisState.WORKS if status < 500 else DiagnosisState.PARTLY
    return _diagnosis("models", name, state, f"{url} answers with {status}")


async def examine_host(host: str, port: int = 443) -> Diagnosis:
    """Connect to a host."""
    use = HOSTS.get(host, "")
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except (OSError, TimeoutError) as error:
        return _missing("networks", host, f"can't be reached ({str(error) or 'timeout'}); needed for {use}")
    return _diagnosis("networks", host, DiagnosisState.WORKS, use)


def _diagnosis(area: str, name: str, state: DiagnosisState, text: str) -> Diagnosis:
    return Diagnosis(area=area, name=name, state=state, text=" ".join(text.split()))


def _missing(area: str, name: str, text: str) -> Diagnosis:
    return _diagnosis(area, name, DiagnosisState.MISSING, text)


def _unset(name: str, variable: str) -> Diagnosis:
    return structs.replace(_missing("models", name, f"set {variable} to use {name}/…"), variable=variable)
