"""The capabilities of a fork during its move serve only the move, however hostile its code is."""

import anyio
import pytest

from agentflow.errors import CannotFork
from runtimes import Instance
from runtimes.process import ProcessRuntime
from tests.runtimes.process.hostile import PRELUDE

pytestmark = pytest.mark.timeout(200)

HOSTILE_MOVES = {
    "becomes root": (
        "raise_power(); os.setresuid(0, 0, 0)",
        r"called setresuid\(0, 0\), not setns",
    ),
    "becomes another sandbox": (
        "raise_power(); enter_all(); os.chroot(ROOT_MOUNT); os.setgroups([]); os.setresgid(uid + 16, uid + 16, uid + 16)",
        r"called setresgid\(\d+, \d+, \d+\), not setresgid",
    ),
    "changes the order": ("raise_power(); enter(1)", r"called setns\(1001, \d+\), not setns\(1000"),
    "skips a namespace": ("raise_power(); enter(0); enter(2)", r"called setns\(1002, \d+\), not setns\(1001"),
    "skips the root": ("raise_power(); enter_all(); os.setgroups([])", "called setgroups.*not chroot"),
    "goes to another root": (
        (
            "raise_power(); enter_all(); os.chroot('/'); os.chdir('/r'); forget_namespaces(); become(uid)\n"
            "lower_power(); close_all(control); be_checked(control)"
        ),
        "another root",
    ),
    "stays outside of its root": (
        (
            "raise_power(); enter_all(); os.chroot(ROOT_MOUNT); forget_namespaces(); become(uid)\n"
            "lower_power(); close_all(control); be_checked(control)"
        ),
        "working directory is in another sandbox",
    ),
    "takes a second step at once": (
        "raise_power(); raise_power()",
        r"called capset\(.*\), not setns",
    ),
    "keeps its power": ("honest(uid, control, effective=POWER)", "CapEff"),
    "keeps power for its programs": ("honest(uid, control, inheritable=POWER)", "died during its move"),
    "drops what its own forks need": ("honest(uid, control, permitted=0)", "CapPrm"),
    "has a thread with it": (
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); honest(uid, control)",
        "several threads",
    ),
    "shares its descriptors": (
        "libc.syscall(56, 0x400 | 0x4000 | 17, 0, 0, 0, 0) or honest(uid, control)\nos._exit(0)",
        "shares descriptors",
    ),
    "raises its limit of processes": (
        "raise_power(); resource.setrlimit(resource.RLIMIT_NPROC, (9, 9))",
        r"called (prlimit64|setrlimit)\(.*\), not setns",
    ),
    "keeps a pipe": ("honest(uid, control, keep=(ends := os.pipe()))", "kept descriptor"),
    "keeps a socket": (
        "sock = socket.socket(); honest(uid, control, keep=(sock.fileno(),))",
        "kept descriptor",
    ),
    "keeps a folder of its parent": (
        "fd = os.open('/home/agent', 0); honest(uid, control, keep=(fd,))",
        "kept descriptor .* of another sandbox",
    ),
    "keeps a file of its parent": (
        "honest(uid, control, keep=(log_fd,))",
        "kept descriptor .* of another sandbox",
    ),
    "keeps memory in a file": (
        "try: fd = os.memfd_create('kept')\nexcept OSError: fd = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)\nhonest(uid, control, keep=(fd,))",
        "kept descriptor .* of another sandbox",
    ),
    "keeps a namespace of its parent": (
        "fd = os.open('/proc/self/ns/net', 0); honest(uid, control, keep=(fd,))",
        "kept descriptor .* of another sandbox",
    ),
    "keeps a namespace of its own": (
        (
            "raise_power(); enter_all(); confine.enter_root(); become(uid); lower_power()\n"
            "close_all(control, keep=(FIRST_FD + 2,)); be_checked(control)"
        ),
        "kept descriptor 1002 of another sandbox",
    ),
    "keeps its parent's working directory": (
        (
            "raise_power(); here = os.open('.', 0); enter_all(); os.chroot(ROOT_MOUNT); os.fchdir(here); forget_namespaces()\n"
            "become(uid); lower_power(); close_all(control); be_checked(control)"
        ),
        "working directory is in another sandbox",
    ),
    "keeps shared memory": (
        "import mmap\nkept = mmap.mmap(-1, 4096); honest(uid, control)",
        "kept memory that it shares",
    ),
    "keeps a file of its parent mapped": (
        "import mmap\nos.ftruncate(log_fd, 4096); kept = mmap.mmap(log_fd, 4096); honest(uid, control)",
        "kept memory that it shares",
    ),
    "kills itself during its move": (
        "raise_power(); enter_all(); os.kill(os.getpid(), 9)",
        "died during its move",
    ),
    "asks for no power": ("enter_all()", "hung during its move"),
    "ends before it asks": ("os._exit(0)", "hung during its move"),
    "hangs during its move": (
        "raise_power(); enter_all()\nwhile True: time.sleep(1)",
        "hung during its move",
    ),
    "spins during its move": ("raise_power(); enter(0)\nwhile True: pass", "hung during its move"),
    "stops itself during its move": (
        "raise_power(); os.kill(os.getpid(), signal.SIGSTOP)",
        "hung during its move",
    ),
    "is never made": ("pass", "does not respond"),
}
"""Hostile moves that must end in `CannotFork`, with the expected reason."""
HANGS = ("hung during its move", "does not respond")


async def arm(instance: Instance, body: str) -> None:
    lines = "\n    ".join(body.splitlines())
    code = f"{PRELUDE}\nvariable = 42\ndef evil(uid, control):\n    {lines}\nloop_globals['move'] = evil"
    armed = await instance.run("python", code)
    assert armed.error is None, armed.error


async def disarm(instance: Instance) -> None:
    assert (await instance.run("python", "loop_globals['move'] = own_move")).error is None


async def log_of(instance: Instance) -> list[str]:
    return (await instance.read("log")).decode().split()


async def remember(instance: Instance) -> None:
    await instance.run("python", f"{PRELUDE}\nown_move = loop_globals['move']")


@pytest.mark.promise("broker:hostile-fork")
@pytest.mark.parametrize("attack", HOSTILE_MOVES)
async def test_a_fork_that_breaks_the_rules_fails(
    instance: Instance, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, reason = HOSTILE_MOVES[attack]
    await remember(instance)
    await arm(instance, body)
    if attack == "is never made":
        await instance.run("python", "loop_globals['fork_copy'] = lambda: time.sleep(3600)")
    with monkeypatch.context() as patch:
        if reason in HANGS:
            # Long enough for an honest move on a busy machine, short enough for several that hang.
            patch.setattr("runtimes.process._sessions._MOVE_DEADLINE", 5.0)
        with anyio.fail_after(60), pytest.raises(CannotFork, match=reason):
            await instance.fork()
    if attack == "is never made":
        return
    again = await instance.run("python", "variable")
    assert again.value == "42"
    with anyio.fail_after(60):
        while (await instance.usage()).processes > 1:
            continue
    await disarm(instance)
    fork = await instance.fork()
    assert (await fork.instance.run("python", "variable")).value == "42"


@pytest.mark.promise("broker:power")
async def test_capabilities_raised_during_a_move_serve_only_the_move(instance: Instance) -> None:
    await arm(
        instance,
        "raise_power()\n"
        "log(call(165, b'none', b'/tmp', b'tmpfs', 0, 0)); log(call(166, b'/proc', 2))\n"
        "log(call(272, 0x20000)); log(call(56, 0x10000000 | 17, 0, 0, 0, 0)); log(call(155, b'/tmp', b'/tmp'))\n"
        "log(call(304, -100, b'\\x80' + bytes(135), 0)); log(call(170, b'evil', 4)); log(call(430, b'tmpfs', 0))\n"
        "log(call(321, 0, bytes(72), 72)); log(call(428, -100, b'/', 1))\n"
        "fd = os.open('/proc/self/ns/mnt', 0)\n"
        "log(call(16, fd, 0x8010b70b, bytes(16)))\n"
        "os.close(fd)\n"
        "log(attempt(os.setxattr, '/home/agent', 'trusted.overlay.opaque', b'y'))\n"
        "log(attempt(os.mknod, '/tmp/null', 0o20666, os.makedev(1, 3)))\n"
        "log(attempt(open, '/proc/1/environ')); log(attempt(os.listdir, '/root'))\n"
        "enter_all(); confine.enter_root(); forget_namespaces(); become(uid); lower_power(); close_all(control)\n"
        "return be_checked(control)",
    )  # fmt: skip
    fork = await instance.fork()
    assert (await fork.instance.run("python", "variable")).value == "42"
    assert set((await log_of(instance))[:13]) == {"EPERM"}
    assert set((await log_of(instance))[13:]) <= {"EACCES", "ENOENT"}


@pytest.mark.promise("broker:power")
async def test_no_other_process_gets_the_capabilities_of_a_moving_fork(instance: Instance) -> None:
    await arm(
        instance,
        "raise_power(); log(attempt(os.fork)); enter_all(); log(attempt(os.fork)); confine.enter_root()\n"
        "forget_namespaces(); become(uid); log(attempt(os.fork)); log(call(56, 17, 0, 0, 0, 0))\n"
        "try:\n    threading.Thread(target=print).start()\nexcept RuntimeError:\n    log('no-thread')\n"
        "lower_power(); close_all(control); return be_checked(control)",
    )
    fork = await instance.fork()
    assert await log_of(instance) == ["EAGAIN"] * 4 + ["no-thread"]
    started = await fork.instance.run("python", "import subprocess; subprocess.run(['true']).returncode")
    assert started.value == "0"


@pytest.mark.promise("broker:namespaces")
async def test_a_fork_enters_its_new_sandbox_with_any_replaced_descriptors(instance: Instance) -> None:
    await arm(
        instance,
        "mine = [os.open(f'/proc/self/ns/{kind}', 0) for kind in ('mnt', 'net', 'ipc', 'uts')]\n"
        "raise_power()\n"
        "for number, fd in enumerate(mine):\n    os.dup2(fd, FIRST_FD + number)\n    enter(number)\n"
        "log(sorted(os.listdir('/'))); log(os.listdir('/proc') + os.listdir('/stage'))\n"
        "confine.enter_root(); forget_namespaces(); become(uid); lower_power(); close_all(control)\n"
        "return be_checked(control)",
    )
    where = "[os.stat(f'/proc/self/ns/{kind}').st_ino for kind in ('mnt', 'net', 'ipc', 'uts')]"
    fork = await instance.fork()
    before = (await instance.run("python", where)).value
    after = (await fork.instance.run("python", where)).value
    assert before is not None and after is not None
    assert not set(before.strip("[]").split(", ")) & set(after.strip("[]").split(", "))
    seen = (await instance.read("log")).decode().splitlines()
    assert seen[1] == "[]"


@pytest.mark.promise("broker:outsiders")
async def test_the_broker_refuses_changes_of_identity_outside_a_fork(instance: Instance) -> None:
    await remember(instance)
    raising = "attempt(raise_power), attempt(os.setresuid, 0, 0, 0), attempt(os.setgroups, []), attempt(os.chroot, '/')"
    refused = "('EPERM', 'EPERM', 'EPERM', 'EPERM')"
    assert (await instance.run("python", raising)).value == refused
    fork = await instance.fork()
    assert (await fork.instance.run("python", raising)).value == refused
    assert (await instance.run("python", raising)).value == refused
    keeping = "attempt(os.setuid, os.getuid()), attempt(os.setresgid, -1, -1, -1)"
    assert (await instance.run("python", keeping)).value == "('done', 'done')"


@pytest.mark.promise("broker:race")
async def test_a_process_that_calls_the_broker_first_spoils_only_the_fork(instance: Instance) -> None:
    await remember(instance)
    racer = (
        "if (racer := os.fork()) == 0:\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "    while True:\n        attempt(raise_power)\n        open('/proc/self/status').read()"
    )
    await instance.run("python", racer)
    with anyio.fail_after(60):
        try:
            fork = await instance.fork()
        except CannotFork:
            pass
        else:
            assert (await fork.instance.run("python", "os.getuid() != 0")).value == "True"
    await instance.run("python", "os.kill(racer, 9); os.waitpid(racer, 0)")
    fork = await instance.fork()
    assert (await fork.instance.run("python", "POWER > 0")).value == "True"


@pytest.mark.promise("broker:flood")
async def test_a_flood_of_brokered_calls_does_not_keep_others_from_forking(runtime: ProcessRuntime) -> None:
    flood = (
        "import os\nfor _ in range(4):\n    if os.fork() == 0:\n        while True:\n"
        "            try:\n                os.setuid(0)\n            except OSError:\n                pass"
    )
    flooders = [await runtime.start() for _ in range(3)]
    for flooder in flooders:
        await flooder.run("python", flood)
    other = await runtime.start()
    await other.run("python", "x = 1")
    with anyio.fail_after(60):
        for _ in range(5):
            fork = await other.fork()
            assert (await fork.instance.run("python", "x")).value == "1"
            await fork.instance.stop()
