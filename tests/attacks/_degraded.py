"""Machines that lack a mechanism of isolation, simulated for one process and its children without touching the machine.

Landlock is absent behind a system-call filter that answers its calls as old kernels do. cgroups are absent behind an empty
file system over `/sys/fs/cgroup` or the controller `cpu` of version 1, in a mount namespace. A user without a range of ids is one that can't find `newuidmap`.
Autogroup is a property of the kernel: it is on or off in all of them.
"""

import json
import subprocess
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from runtimes.process import Lack

if TYPE_CHECKING:
    from tests._plain_user import PlainUser

_LAUNCH = """
import ctypes, json, os, struct, sys
lacks, argv = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
hidden = ["/sys/fs/cgroup"] if "cgroups" in lacks else ["/sys/fs/cgroup/cpu"] if "cpu-cgroup" in lacks else []
if hidden:
    check(libc.unshare(0x20000))
    check(libc.mount(None, b"/", None, 0x4000 | 0x40000, None))
for place in hidden:
    check(libc.mount(b"none", place.encode(), b"tmpfs", 0, None))
if "landlock" in lacks:
    load, jump, answer = (0x20, 0, 0, 0), (0x35, 0, 2, 444), (0x35, 1, 0, 447)
    code = b"".join(struct.pack("=HBBI", *line) for line in [load, jump, answer, (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if os.geteuid():
        check(libc.prctl(38, 1, 0, 0, 0))
    check(libc.prctl(22, 2, program, 0, 0))
os.execv(argv[0], argv)
"""


def report_without(
    lacks: Collection[Lack], module: str, plain: "PlainUser | None" = None, *, main: str = "main"
) -> object:
    """Return the JSON that a module's function prints on a machine that lacks these mechanisms.

    :param plain: a user that takes the place of one without a range of ids; otherwise the current user, who must be root.
    """
    script = f"from {module} import {main}; {main}()"
    if plain is not None:
        done = plain.run_python(script, timeout=400, env={"PATH": "/nowhere"})
    else:
        given = json.dumps([list(lacks), [sys.executable, "-c", script]])
        done = subprocess.run(
            [sys.executable, "-c", _LAUNCH, given],
            capture_output=True,
            encoding="utf-8",
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
