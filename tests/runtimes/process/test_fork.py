"""Forks: copied state, state left behind, and independent ends."""

from collections.abc import AsyncIterator

import anyio
import psutil
import pytest

from agentflow.errors import CannotFork, InstanceGone
from runtimes import Instance, Language, RunResult
from runtimes.process import ProcessRuntime
from tests.runtimes.process.machine import ended, trusted_processes


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> AsyncIterator[Instance]:
    with anyio.fail_after(90):
        instance = await runtime.start()
        yield instance
        await instance.stop()


async def python(instance: Instance, source: str) -> str | None:
    result = await instance.run("python", source)
    assert result.error is None, result
    return result.value


async def bash(instance: Instance, source: str) -> str:
    result = await instance.run("bash", source)
    assert result.exit_code == 0, result
    return result.stdout


# -- copied state -----------------------------------------------------------------------------------


@pytest.mark.promise("fork:python")
async def test_a_forked_interpreter_continues_where_its_parent_was(instance: Instance) -> None:
    await python(
        instance, "import textwrap\ndef double(x): return 2 * x\nlines = (n for n in range(9))\nnext(lines)"
    )
    fork = (await instance.fork()).instance
    assert await python(fork, "double(21), next(lines), textwrap.fill('a b', 1)") == "(42, 1, 'a\\nb')"
    assert await python(instance, "next(lines)") == "1"


@pytest.mark.promise("fork:bash")
async def test_a_forked_shell_continues_where_its_parent_was(instance: Instance) -> None:
    await bash(
        instance,
        "mkdir -p deep; cd deep; declare -A m=([k]=v); f() { echo f:$1; }; set -o pipefail; umask 077",
    )
    fork = (await instance.fork()).instance
    assert await bash(fork, "f ${m[k]}; pwd; umask; shopt -qo pipefail && echo on") == (
        "f:v\n/home/agent/deep\n0077\non\n"
    )


@pytest.mark.promise("fork:offsets")
async def test_open_files_keep_their_offsets(instance: Instance) -> None:
    await python(
        instance,
        "import os, tempfile\nnamed = open('n', 'w+')\nnamed.write('0123456789')\nnamed.seek(4)\n"
        "gone = open('g', 'w+b', buffering=0)\ngone.write(b'abcdef')\nos.unlink('g')\ngone.seek(2)\n"
        "unnamed = tempfile.TemporaryFile()\nunnamed.write(b'xyz')",
    )
    fork = await instance.fork()
    assert fork.left_behind == ()
    assert await python(fork.instance, "named.read(2), gone.read(), unnamed.tell()") == "('45', b'cdef', 3)"
    assert await python(instance, "named.read(3), gone.tell()") == "('456', 2)"


@pytest.mark.promise("fork:offsets")
async def test_duplicated_descriptors_still_share_their_offset(instance: Instance) -> None:
    await python(
        instance, "import os\na = os.open('f', os.O_RDWR | os.O_CREAT)\nb = os.dup(a)\nos.write(a, b'12345')"
    )
    fork = (await instance.fork()).instance
    assert await python(fork, "os.lseek(a, 2, 0)\nos.lseek(b, 0, 1)") == "2"
    assert await python(instance, "os.lseek(b, 0, 1)") == "5"


@pytest.mark.promise("fork:offsets")
async def test_a_deleted_file_is_not_mistaken_for_a_file_with_the_name_of_a_deleted_one(
    instance: Instance,
) -> None:
    await python(
        instance,
        "import os\nmine = open('f', 'w+b', buffering=0)\nmine.write(b'mine')\nos.unlink('f')\n"
        "open('f (deleted)', 'w').write('other')",
    )
    fork = (await instance.fork()).instance
    assert await python(fork, "mine.seek(0)\nmine.read()") == "b'mine'"


@pytest.mark.promise("fork:offsets")
async def test_a_write_only_file_keeps_its_content(instance: Instance) -> None:
    source = "import os\nfile = open('f', 'wb', buffering=0)\nfile.write(b'mine')\nos.unlink('f')"
    await python(instance, source)
    fork = (await instance.fork()).instance
    assert await python(fork, "os.fstat(file.fileno()).st_size, file.tell()") == "(4, 4)"


@pytest.mark.promise("fork:memory")
async def test_shared_memory_is_no_longer_shared(instance: Instance) -> None:
    await python(
        instance,
        "import mmap\nblank = mmap.mmap(-1, 4096)\nblank[:2] = b'ab'\nopen('f', 'wb').write(bytes(4096))\n"
        "file = open('f', 'r+b')\nmapped = mmap.mmap(file.fileno(), 0)\nmapped[:2] = b'cd'",
    )
    fork = (await instance.fork()).instance
    assert await python(fork, "blank[:2], mapped[:2]") == "(b'ab', b'cd')"
    await python(fork, "blank[:2] = b'xx'\nmapped[:2] = b'yy'\nmapped.flush()")
    assert await python(fork, "open('f', 'rb').read(2)") == "b'yy'"
    assert await python(instance, "blank[:2], mapped[:2], open('f', 'rb').read(2)") == "(b'ab', b'cd', b'cd')"


@pytest.mark.promise("fork:instant")
async def test_files_and_memory_belong_to_one_instant(instance: Instance) -> None:
    source = "with open('count', 'w') as file: file.write('{0}')\ncount = {0}"
    async with anyio.create_task_group() as tasks:

        async def count() -> None:
            for number in range(40):
                await python(instance, source.format(number))

        await python(instance, source.format(-1))
        tasks.start_soon(count)
        for _ in range(8):
            fork = (await instance.fork()).instance
            assert await python(fork, "count == int(open('count').read())") == "True"
            await fork.stop()


# -- independence ---------------------------------------------------------------------------------------


@pytest.mark.promise("fork:independent")
async def test_siblings_and_parent_see_no_change_of_each_other(instance: Instance) -> None:
    await python(instance, "import os\nwho = 'parent'")
    await bash(instance, "who=parent; echo parent > who")
    members = [instance] + [(await instance.fork()).instance for _ in range(3)]
    for number, member in enumerate(members):
        await python(member, f"who = {number}\nos.environ['WHO'] = '{number}'\nos.mkdir('py{number}')")
        await bash(
            member,
            f"who={number}; echo {number} > who; cd py{number}; echo {number} | tee /tmp/who > /dev/shm/who",
        )
    for number, member in enumerate(members):
        assert await python(member, "who, os.environ['WHO']") == f"({number}, '{number}')"
        assert await bash(member, "echo $who; cat ~/who; pwd; ls -d ~/py*; cat /dev/shm/who") == (
            f"{number}\n{number}\n/home/agent/py{number}\n/home/agent/py{number}\n{number}\n"
        )


@pytest.mark.promise("fork:generations")
async def test_sixty_generations_of_forks_keep_their_state(runtime: ProcessRuntime) -> None:
    member: Instance = await runtime.start()
    await python(member, "line = []")
    await bash(member, "line=")
    with anyio.fail_after(100):
        for number in range(60):
            await python(member, f"line.append({number})")
            await bash(member, f"line+={number},")
            fork = (await member.fork()).instance
            await member.stop()
            member = fork
        assert await python(member, "line == list(range(60))") == "True"
        assert await bash(member, "echo $line") == "".join(f"{n}," for n in range(60)) + "\n"
        assert (await member.usage()).processes == 2
        await member.stop()


@pytest.mark.promise("fork:order")
@pytest.mark.parametrize("first", ["parent", "fork"])
async def test_parent_and_fork_can_end_in_either_order(runtime: ProcessRuntime, first: str) -> None:
    parent: Instance = await runtime.start()
    await python(parent, "x = 1")
    await bash(parent, "y=2; sleep 1000 & disown")
    fork = (await parent.fork()).instance
    ended, left = (parent, fork) if first == "parent" else (fork, parent)
    await ended.stop()
    with pytest.raises(InstanceGone):
        await ended.run("python", "x")
    assert await python(left, "x") == "1"
    assert await bash(left, "echo $y") == "2\n"
    again = (await left.fork()).instance
    assert await python(again, "x") == "1"
    await left.stop()
    await again.stop()


@pytest.mark.promise("fork:waits")
async def test_a_fork_waits_for_the_running_call(instance: Instance) -> None:
    await bash(instance, "mkfifo gate")
    order: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await bash(instance, "read -r < gate; done=yes")
            order.append("run")

        async def fork() -> None:
            fork = (await instance.fork()).instance
            order.append("fork")
            assert await bash(fork, "echo $done") == "yes\n"

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(fork)
        await anyio.wait_all_tasks_blocked()
        assert order == []
        await instance.exec(["sh", "-c", "echo go > gate"])
    assert order == ["run", "fork"]


@pytest.mark.promise("fork:concurrent")
async def test_concurrent_forks_and_runs_do_not_mix(instance: Instance) -> None:
    await python(instance, "calls = []")
    forks: list[Instance] = []
    async with anyio.create_task_group() as tasks:

        async def call(number: int) -> None:
            await python(instance, f"calls.append({number})")

        async def fork() -> None:
            forks.append((await instance.fork()).instance)

        for number in range(12):
            tasks.start_soon(call, number)
            tasks.start_soon(fork)
    assert await python(instance, "sorted(calls) == list(range(12))") == "True"
    lengths = [int(await python(fork, "len(calls)") or -1) for fork in forks]
    assert len(lengths) == 12
    assert all(0 <= length <= 12 for length in lengths)


@pytest.mark.promise("fork:after-end")
@pytest.mark.parametrize("language", ["python", "bash"])
async def test_an_ended_session_is_started_anew_in_parent_and_fork(
    instance: Instance, language: Language
) -> None:
    ends = {"python": "import os\nos._exit(3)", "bash": "exit 3"}
    says = {"python": "print('x' in globals())", "bash": "echo ${x:-False}"}
    await instance.run(language, "x=1")
    assert (await instance.run(language, ends[language])).state_lost
    fork = (await instance.fork()).instance
    assert (await fork.run(language, says[language])).stdout == "False\n"
    assert (await instance.run(language, says[language])).stdout == "False\n"


# -- state left behind ----------------------------------------------------------------------------------


async def left_behind(instance: Instance, language: Language, source: str) -> str:
    result: RunResult = await instance.run(language, source)
    assert result.error is None, result
    fork = await instance.fork()
    assert (await fork.instance.run(language, "x=1")).outcome == "ok"
    assert (await instance.run(language, "x=1")).outcome == "ok"
    return "\n".join(fork.left_behind)


PIPE = "import os\nends = os.pipe()"
SOCKET = "import socket\npair = socket.socketpair()"
THREAD = "import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait, name='ticker', daemon=True)\nt.start()"
CHILD = (
    "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\ndef name():\n"
    "    try: return open(f'/proc/{child.pid}/comm').read()\n    except FileNotFoundError: return ''\n"
    "while name() != 'sleep\\n': pass"
)
IS_SLEEPING = "until read -r name < /proc/$!/comm; [[ $name == sleep ]]; do :; done"
EPOLL = "import select\npoller = select.epoll()"
NAMESPACE = "import os\nnamespace = os.open('/proc/self/ns/net', 0)"
PIDFD = "import os\npidfd = os.pidfd_open(os.getpid())"
GONE = "import os\nos.mkdir('here')\nos.chdir('here')\nos.rmdir('../here')"


@pytest.mark.promise("fork:left-behind")
@pytest.mark.parametrize(
    ("language", "source", "expected"),
    [
        ("python", THREAD, "thread 'ticker'"),
        ("python", CHILD, "process sleep"),
        ("python", SOCKET, "a socket"),
        ("python", PIPE, "a pipe"),
        ("python", EPOLL, "eventpoll"),
        ("python", NAMESPACE, "(net:["),
        ("python", PIDFD, "pidfd"),
        ("python", GONE, "working directory"),
        ("bash", "sleep 1000 &", "job [1]"),
        ("bash", "exec 7> file", "descriptor 7"),
        ("bash", "coproc cat", "job [1]"),
        ("bash", "mkdir here; cd here; rmdir ../here", "working directory"),
        ("bash", f"setsid sleep 1000 & disown; {IS_SLEEPING}", "process sleep"),
    ],
    ids=[
        "thread",
        "child",
        "socket",
        "pipe",
        "epoll",
        "namespace",
        "pidfd",
        "folder",
        "job",
        "descriptor",
        "coproc",
        "cd",
        "daemon",
    ],
)
async def test_a_fork_reports_what_it_leaves_behind(
    instance: Instance, language: Language, source: str, expected: str
) -> None:
    assert expected in await left_behind(instance, language, source)


@pytest.mark.promise("fork:python")
@pytest.mark.parametrize("before", ["import threading", THREAD], ids=["one-thread", "threads"])
async def test_a_fork_is_one_process_that_is_not_a_child_of_its_parent_and_is_reaped_at_its_end(
    runtime: ProcessRuntime, before: str
) -> None:
    instance = await runtime.start()
    await python(instance, before)
    alone = trusted_processes().sandboxed()
    fork = (await instance.fork()).instance
    theirs = set(trusted_processes().sandboxed()) - set(alone)
    with anyio.fail_after(60):
        # The builder process may still be exiting.
        while len(theirs) > 1:
            theirs &= set(trusted_processes().sandboxed())
            await anyio.lowlevel.checkpoint()
    assert len(theirs) == 1
    waited = "import os\ntry: os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError: none = True\nnone"
    assert await python(instance, waited) == "True"
    assert await python(fork, waited) == "True"
    assert await python(fork, "import threading\nthreading.get_native_id() == os.getpid()") == "True"
    await python(fork, "child = os.fork()\nif not child: os._exit(7)")
    assert await python(fork, "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == "7"
    await fork.stop()
    with anyio.fail_after(60):
        for pid in theirs:
            await ended(pid)
        # The zygote has noticed its end before it replies.
        await runtime.warmup()
    assert [pid for pid in theirs if psutil.pid_exists(pid)] == []
    await instance.stop()


@pytest.mark.promise("fork:left-behind")
async def test_nothing_is_reported_if_everything_was_copied(instance: Instance) -> None:
    await bash(instance, "x=1; (sleep 0) & wait")
    assert await left_behind(instance, "python", "import numpy, pandas\nfile = open('/etc/passwd')") == ""


NATIVE_THREAD = """
import ctypes
lib = ctypes.CDLL(None)
lock = (ctypes.c_char * 64)()
lib.pthread_mutex_lock(lock)
thread = ctypes.c_ulong()
address = ctypes.cast(lib.pthread_mutex_lock, ctypes.c_void_p)
lib.pthread_create(ctypes.byref(thread), None, address, lock)
"""


@pytest.mark.promise("fork:cannot")
async def test_threads_of_a_native_library_prevent_a_fork_without_a_hang(instance: Instance) -> None:
    await python(instance, NATIVE_THREAD)
    with anyio.fail_after(60), pytest.raises(CannotFork, match="thread"):
        await instance.fork()
    assert await python(instance, "1 + 1") == "2"


@pytest.mark.promise("fork:cannot")
async def test_a_module_known_to_hang_prevents_a_fork(instance: Instance) -> None:
    await python(instance, "import sys, types\nsys.modules['polars'] = types.ModuleType('polars')")
    with pytest.raises(CannotFork, match="polars"):
        await instance.fork()
    await python(instance, "del sys.modules['polars']")
    await instance.fork()


@pytest.mark.promise("fork:cannot")
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "import os\nos.register_at_fork(after_in_child=lambda: os._exit(1))", marks=pytest.mark.soak
        ),
        "import os\nos.register_at_fork(before=lambda: os.kill(os.getpid(), 9))",
        pytest.param(
            "import os\nos.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), 19))",
            marks=pytest.mark.soak,
        ),
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
    ],
    ids=["dies", "kills", "stops", "limit"],
)
async def test_a_fork_that_does_not_start_is_an_error_and_not_a_hang(
    instance: Instance, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing reports the end of some copies, so that only the deadline ends the wait.
    monkeypatch.setattr("runtimes.process._sessions._MOVE_DEADLINE", 3.0)
    await python(instance, source)
    with anyio.fail_after(60), pytest.raises(CannotFork):
        await instance.fork()
    assert (await instance.run("bash", "echo on")).stdout == "on\n"
