"""The kernel allows a sandbox exactly the system calls of the allowlist, and refuses every other."""

import errno
import itertools
import json
import platform
import random
import runpy
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

import pytest

from runtimes.process.linux import _call_table
from tests.runtimes.process.escapes import dangerous_calls
from tests.runtimes.process.filter_run import ALLOWED, Call

NAMES = {
    number: name
    for table in (
        _call_table.ALLOWED,
        _call_table.REFUSED,
        _call_table.WITHOUT_EFFECT,
        _call_table.CHECKED,
    )
    for name, number in table.items()
}
X32 = 0x40000000
"""Calls of the 32-bit interface of x86_64."""
PROBES = {335, 336} if platform.machine() == "x86_64" else set[int]()
"""`uretprobe` and `uprobe` pass every filter: the kernel's own probes make them, and it ends any other caller by SIGILL."""
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80)
VM, FS, FILES, VFORK, THREAD = 0x100, 0x200, 0x400, 0x4000, 0x10000
GARBAGE = 0x5A5A5A5A << 32
"""Upper half of an argument of which the kernel takes the lower one."""


def low(value: int) -> int:
    return value & 0xFFFFFFFF


def clone(flags: int, *_: int) -> int:
    if any(flags & kind for kind in NAMESPACES):
        return errno.EPERM
    shares = flags & (VM | FS | FILES) and not flags & (VFORK | THREAD)
    return errno.EPERM if shares else ALLOWED


def unshare(flags: int, *_: int) -> int:
    return errno.EPERM if any(flags & kind for kind in NAMESPACES) else ALLOWED


def mknod(_: int, mode: int, *__: int) -> int:
    return errno.EPERM if stat.S_IFMT(mode & 0xFFFF) in (stat.S_IFCHR, stat.S_IFBLK) else ALLOWED


def mknodat(folder: int, _: int, mode: int, *__: int) -> int:
    return mknod(folder, mode)


def socket(family: int, kind: int, protocol: int, *_: int) -> int:
    family, kind, protocol = low(family), low(kind) & 0xF, low(protocol)
    if family == 1:
        return ALLOWED if kind in (1, 2, 3, 5) else errno.ESOCKTNOSUPPORT
    if family in (2, 10):
        if kind == 3:
            return errno.EPERM
        if kind not in (1, 2):
            return errno.ESOCKTNOSUPPORT
        return ALLOWED if protocol in (0, 6 if kind == 1 else 17) else errno.EPROTONOSUPPORT
    return ALLOWED if (family, protocol) == (16, 0) else errno.EAFNOSUPPORT


def socketpair(family: int, *_: int) -> int:
    return ALLOWED if low(family) == 1 else errno.EOPNOTSUPP


def setsockopt(_: int, level: int, option: int, *__: int) -> int:
    refused = {(1, 26), (1, 50), (1, 51), (1, 52), (6, 31), (17, 100)}
    return errno.ENOPROTOOPT if (low(level), low(option)) in refused else ALLOWED


def ioctl(_: int, request: int, *__: int) -> int:
    request = low(request)
    return errno.EPERM if request in (0x5412, 0x541C, 0x5423) or request >> 8 & 0xFF == 0xB7 else ALLOWED


def prlimit(pid: int, kind: int, new: int, *_: int) -> int:
    if low(kind) != 6:
        return ALLOWED
    return errno.EPERM if low(pid) else errno.ENOSYS if new else ALLOWED


def setrlimit(kind: int, *_: int) -> int:
    return errno.ENOSYS if low(kind) == 6 else ALLOWED


CHECKS: dict[str, Callable[..., int]] = {
    "clone": clone,
    "clone3": lambda *_: errno.ENOSYS,
    "ioctl": ioctl,
    "mknod": mknod,
    "mknodat": mknodat,
    "prlimit64": prlimit,
    "setns": lambda *_: errno.EPERM,
    "setrlimit": setrlimit,
    "setsockopt": setsockopt,
    "socket": socket,
    "socketpair": socketpair,
    "unshare": unshare,
}
"""Expected answer to each call whose arguments decide. ENOSYS stands for a question to the broker, which has no listener here."""


def expected(call: Call, *, notify: bool) -> int:
    """Return the error that a call must end in."""
    name, arguments = NAMES.get(call[0], ""), [*call[1:], *[0] * 6][:6]
    if notify and name in _call_table.NOTIFIED:
        return errno.ENOSYS
    if name in CHECKS:
        answer = CHECKS[name](*arguments)
        asks = name in _call_table.LIMIT_SETTERS and answer == errno.ENOSYS
        return ALLOWED if asks and not notify else answer
    if name in _call_table.ALLOWED:
        return ALLOWED
    if name in _call_table.WITHOUT_EFFECT:
        return 0
    return errno.EPERM if name in _call_table.REFUSED else errno.ENOSYS


def numbers() -> Iterable[int]:
    """Return every number of a call, those of the next years, and the ends of each range."""
    yield from range(1024)
    yield from range(X32, X32 + 600)
    yield from (2**31 - 1, 2**31, 2**32 - 1)


FLAGS = [0, *(1 << bit for bit in range(32)), VM | VFORK, VM | FS | FILES | THREAD, VM | 17, FS | 0x10000000]
KINDS = [*range(12), 1 | 0x80800, 3 | 0x80800, 0x10]
PROTOCOLS = (0, 1, 2, 6, 17, 33, 41, 58, 115, 132, 136, 255, 256, 262)
CLASSES: dict[str, Sequence[tuple[int, ...]]] = {
    "clone": [(flags,) for flags in FLAGS] + [(VM | GARBAGE,)],
    "ioctl": [(0, n) for n in (0, 0x5401, *range(0x540E, 0x5430), *range(0xB6FF, 0xB801), 0x8933, 0x4008B705)]
    + [(0, 0x5412 | GARBAGE)],
    "mknod": [(0, kind << 12 | 0o666) for kind in range(16)] + [(0, stat.S_IFBLK | GARBAGE)],
    "mknodat": [(0, 0, kind << 12 | 0o666) for kind in range(16)] + [(0, 0, stat.S_IFCHR | GARBAGE)],
    "prlimit64": [
        *itertools.product((0, 1, 2**32 - 1), range(17), (0, 4096, 1 << 40)),
        (GARBAGE, 6 | GARBAGE, 1),
    ],
    "setrlimit": [(kind, 4096) for kind in range(17)] + [(6 | GARBAGE, 4096)],
    "setsockopt": [
        (0, *pair) for pair in itertools.product((0, 1, 2, 6, 16, 17, 41, 136, 270, 284), range(0, 104))
    ]
    + [(0, 6 | GARBAGE, 31 | GARBAGE)],
    "socket": list(itertools.product((1, 2, 10, 16), KINDS, PROTOCOLS))
    + list(itertools.product(range(48), (1, 3), (0, 262)))
    + [(2 | GARBAGE, 1 | GARBAGE, 262 | GARBAGE), (2**32 - 1, 1, 0)],
    "socketpair": [(family, 1, 0) for family in range(48)] + [(30 | GARBAGE, 1, 0)],
    "unshare": [(flags,) for flags in FLAGS],
}
"""Classes of arguments of the calls whose arguments decide."""
EXTREMES = ((), (2**63 - 1,) * 6, (-1,) * 6)


def calls() -> list[Call]:
    """Return every number, each with its classes of arguments."""
    return [
        (number, *arguments)
        for number in numbers()
        if number not in PROBES
        for arguments in (*CLASSES.get(NAMES.get(number, ""), ()), *EXTREMES)
    ]


def random_calls(seed: int, count: int) -> list[Call]:
    """Return calls with random arguments, many of them near a value that decides."""
    source = random.Random(seed)

    def argument() -> int:
        value = source.choice((source.randrange(300), 1 << source.randrange(63), source.getrandbits(63)))
        return value | (source.getrandbits(31) << 32 if source.random() < 0.3 else 0)

    decided = [_call_table.CHECKED[name] for name in CLASSES if name in _call_table.CHECKED]
    chosen = (
        source.choice((source.randrange(512), source.choice(decided), source.getrandbits(32)))
        for _ in range(count)
    )
    return [(number, *(argument() for _ in range(6))) for number in chosen if number not in PROBES]


def differences(calls: list[Call]) -> list[str]:
    """Return the calls to which the kernel answers otherwise than expected."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtimes.process.filter_run"],
        input="\n".join(map(json.dumps, calls)),
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines: list[str] = []
    for notify, answers in zip((False, True), json.loads(done.stdout), strict=True):
        for call, answer in zip(calls, answers, strict=True):
            if answer != (wanted := expected(call, notify=notify)):
                lines.append(f"{NAMES.get(call[0], '')}{call}, {notify=}: {answer}, not {wanted}")
    return lines


@pytest.mark.promise("containment:allowlist")
def test_every_system_call_is_allowed_by_the_table_or_refused() -> None:
    assert differences(calls()) == []


@pytest.mark.soak
@pytest.mark.promise("containment:allowlist")
@pytest.mark.parametrize("seed", range(5))
def test_system_calls_with_random_arguments_are_allowed_by_the_table_or_refused(seed: int) -> None:
    assert differences(random_calls(seed, 100_000)) == []


@pytest.mark.promise("containment:allowlist")
@pytest.mark.parametrize("machine", _call_table.MACHINES)
def test_no_number_stands_for_two_decisions(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    tables = runpy.run_path(str(_call_table.__file__))
    decided = [
        number
        for name in ("ALLOWED", "REFUSED", "WITHOUT_EFFECT", "CHECKED")
        for number in tables[name].values()
    ]
    assert len(decided) == len(set(decided))
    decided_by_name = tables["ALLOWED"] | tables["REFUSED"] | tables["CHECKED"]
    for name, number in (tables["NOTIFIED"] | tables["LIMIT_SETTERS"]).items():
        assert decided_by_name[name] == number


@pytest.mark.promise("containment:allowlist")
def test_no_call_that_reaches_out_of_a_sandbox_is_on_the_allowlist() -> None:
    assert set(dangerous_calls()) & set(_call_table.ALLOWED.values()) == set()
