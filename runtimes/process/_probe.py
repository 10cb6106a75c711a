"""What this machine lacks for the process runtime, in one line each, with how to get it."""

import os
import platform
import shutil
import sys

from agentflow.errors import IsolationUnavailable
from runtimes.process.linux import _seccomp

_OLDEST_KERNEL = (5, 12)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def missing() -> list[str]:
    """What stands in the way, as far as can be seen without trying; empty if nothing does."""
    if sys.platform != "linux":
        return [
            f"sandboxes are made of Linux namespaces, and this is {platform.system()}: use a Linux machine or container"
        ]
    found: list[str] = []
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if release < _OLDEST_KERNEL:
        found.append(f"the kernel is {platform.release()}: 5.12 or newer is needed")
    try:
        _seccomp.build_filter(gated=False)
    except OSError as error:
        found.append(f"{error.strerror}: x86_64 and aarch64 are supported")
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        found.append("user namespaces are switched off: sysctl user.max_user_namespaces=10000")
    if os.geteuid() != 0:
        if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
            found.append("user namespaces are for root only: sysctl kernel.unprivileged_userns_clone=1")
        if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
            found.append(
                "AppArmor restricts user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
            )
    if not shutil.which("bash", path="/bin:/usr/bin"):
        found.append("there is no /bin/bash: install bash")
    return found


def require() -> None:
    """Refuse to start where isolation can't be had.

    :raises IsolationUnavailable: naming the first thing that is missing and how to get it.
    """
    problems = missing()
    if problems:
        raise IsolationUnavailable(problems[0])
