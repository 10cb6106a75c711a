"""Requirements of the process runtime that this machine lacks, each as one line with its remedy."""

import os
import platform
import shutil
import sys

from runtimes.process.linux import _call_table

_OLDEST_KERNEL = (5, 12)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def missing() -> list[str]:
    """Return one line for each requirement that this machine lacks, as far as can be checked without trying.

    Example::

        for line in missing():
            print(line)  # "user namespaces are disabled: sysctl user.max_user_namespaces=10000"
    """
    if sys.platform != "linux":
        return [
            f"sandboxes need Linux namespaces, and this is {platform.system()}: use a Linux machine or container"
        ]
    problems: list[str] = []
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if release < _OLDEST_KERNEL:
        problems.append(f"the kernel is {platform.release()}: 5.12 or newer is needed")
    if platform.machine() not in _call_table.MACHINES:
        supported = " and ".join(_call_table.MACHINES)
        problems.append(f"no system-call filter for {platform.machine()}: {supported} are supported")
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        problems.append("user namespaces are disabled: sysctl user.max_user_namespaces=10000")
    if os.geteuid() != 0:
        if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
            problems.append("user namespaces are for root only: sysctl kernel.unprivileged_userns_clone=1")
        if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
            problems.append(
                "AppArmor restricts user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
            )
    if not shutil.which("bash", path="/bin:/usr/bin"):
        problems.append("/bin/bash is missing: install bash")
    return problems
