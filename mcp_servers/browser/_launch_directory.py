"""The directory that one Chromium is started from, its memory cgroup, and checks of what the machine must provide."""

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from agentflow.errors import IsolationUnavailable
from runtimes.process.linux import _cgroups as cgroups

__all__ = [
    "HOME",
    "NO_GROUP",
    "Group",
    "Place",
    "find_chromium",
    "half_of_the_machine",
    "make_group",
    "missing",
    "prepare",
    "remove_group",
]

HOME = "/tmp"  # inside the confinement, where it is Chromium's alone
_FIRST_UID = 0x6E000000
_PREFIX = "agentflow-browser"
_CHROMIUMS = (
    # Debian's `chromium` is a script around this one.
    "/usr/lib/chromium/chromium",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
)
_POLICIES = {
    "URLBlocklist": ["file://*", "chrome://*", "devtools://*", "view-source:*", "filesystem:*"],
    "URLAllowlist": ["chrome://newtab"],
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "BackgroundModeEnabled": False,
    "BrowserSignin": 0,
    "ComponentUpdatesEnabled": False,
    "DefaultSearchProviderEnabled": False,
    "DnsOverHttpsMode": "off",
    "MetricsReportingEnabled": False,
    "NetworkPredictionOptions": 2,
    "PasswordManagerEnabled": False,
    "SafeBrowsingProtectionLevel": 0,
    "SearchSuggestEnabled": False,
    "SyncDisabled": True,
    "TranslateEnabled": False,
    "WebRtcIPHandling": "disable_non_proxied_udp",
}
"""What pages may not open, and what the browser may not tell anybody."""
Group: TypeAlias = dict[str, Any]
"""A group as JSON: what it takes to enter it, and to remove it."""
NO_GROUP: Final[Group] = {"doors": [], "folders": {}, "version": 0}
"""Where none was made."""
_MEMBERS = "chromium"
_COUNTED = ("memory", "")
"""The controllers that count memory: of version 1, and of version 2."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one Chromium is started with. Close it when Chromium has ended."""

    folder: Path
    """All that belongs to it."""
    program: Path
    """What Playwright starts."""
    downloads: Path
    """The only folder that Chromium shares with the server."""
    control: socket.socket
    """Where the started program hands over the socket of the proxy."""
    alive: int
    """A lock that says that the folder is in use."""
    group: Group
    """What bounds Chromium's memory."""

    def close(self) -> None:
        """Remove it. Blocks for a moment."""
        self.control.close()
        shutil.rmtree(self.downloads, ignore_errors=True)
        # Else the next server finds the group by the folder.
        if remove_group(self.group):
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.alive)


def missing(executable: str | None) -> list[str]:
    """What stands in the way, as far as can be seen without trying, with how to mend it; empty if nothing does."""
    found: list[str] = []
    if sys.platform != "linux":
        found.append("the browser is confined by Linux namespaces: use a Linux machine or container")
    if find_chromium(executable) is None:
        what = f"there is no Chromium at {executable}" if executable else "there is no Chromium"
        found.append(f"{what}: install the package chromium, or name one in the setting browser.executable")
    if shutil.which("bwrap") is None:
        found.append("bubblewrap, which confines the browser, is missing: install the package bubblewrap")
    for name, bad, mend in (
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ):
        if _read(f"/proc/sys/{name}") == bad:
            found.append(f"user namespaces, which confine the browser, are switched off: {mend}")
    return found


def find_chromium(executable: str | None) -> str | None:
    """The Chromium to run: the one asked for, or the first one of the system."""
    for name in (executable,) if executable else _CHROMIUMS:
        path = shutil.which(name)
        if path is not None:
            return os.path.realpath(path)
    return None


def prepare(executable: str | None, file_bytes: int, memory_bytes: int) -> Place:
    """Make a place. Blocks for a moment.

    :param file_bytes: the largest file that Chromium may write.
    :param memory_bytes: what it may use of memory, all of its processes together or, where that can't be, each.
    :raises IsolationUnavailable: naming the first thing that is missing and how to get it.
    """
    problems = missing(executable)
    if problems:
        raise IsolationUnavailable(problems[0])
    _sweep()
    name, folder, alive = _new_folder()
    downloads = folder / "downloads"
    downloads.mkdir(0o700)
    uid = os.geteuid()
    if uid == 0:
        # A user that nothing else belongs to; process ids are unique, so two servers never share one.
        uid = _FIRST_UID + os.getpid()
        os.chown(downloads, uid, uid)
    control = socket.socket(socket.AF_UNIX)
    control.bind(str(folder / "control"))
    control.listen(1)
    control.setblocking(False)
    group = make_group(f"browser-{os.geteuid()}", name, memory_bytes)
    plan: dict[str, object] = {
        "bwrap": shutil.which("bwrap"),
        "control": str(folder / "control"),
        "downloads": str(downloads),
        "executable": find_chromium(executable),
        "file_bytes": file_bytes,
        "group": group,
        "home": HOME,
        "memory_bytes": memory_bytes,
        "policies": str(_write_policies(folder)),
        "uid": uid,
    }
    return Place(folder, _write_program(folder, plan), downloads, control, alive, group)


def _new_folder() -> tuple[str, Path, int]:
    """A folder with its name and the lock that keeps it."""
    # Locked before it has the name by which others look for what is left over.
    unnamed = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}-"))
    alive = os.open(unnamed / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    name = unnamed.name.rpartition("-")[2]
    folder = unnamed.rename(unnamed.with_name(f"{_PREFIX}-{os.geteuid()}-{name}"))
    # Chromium's user passes through to what is its own, and lists nothing.
    folder.chmod(0o711)
    return name, folder, alive


def _write_policies(folder: Path) -> Path:
    policies = folder / "policies"
    managed = policies / "managed"
    managed.mkdir(parents=True)
    (managed / "agentflow.json").write_text(json.dumps(_POLICIES), encoding="utf-8")
    for path in (policies, managed):
        path.chmod(0o755)
    (managed / "agentflow.json").chmod(0o644)
    return policies


def _write_program(folder: Path, plan: dict[str, object]) -> Path:
    """What Playwright starts, with the plan that it follows."""
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    program = folder / "chromium"
    launcher = str(Path(__file__).with_name("_launch.py"))
    words = [sys.executable, "-I", "-S", launcher, str(folder / "plan.json")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    return program


def _sweep() -> None:
    """Remove the folders and groups of servers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-{os.geteuid()}-*"):
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / "alive", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if remove_group(_group_of(folder)):
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _group_of(folder: Path) -> Group:
    """The group that was made for a folder; none, where its server was killed before it had one."""
    try:
        return json.loads((folder / "plan.json").read_text(encoding="utf-8"))["group"]
    except (OSError, ValueError, KeyError):
        return NO_GROUP


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def half_of_the_machine() -> int:
    """Half of the machine's memory, bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def make_group(realm: str, name: str, memory: int) -> Group:
    """A group whose processes may use so much together; one without doors, where none can be made."""
    hierarchies = cgroups.prepare(realm, name, idle=False)
    made = cgroups.make(hierarchies, _MEMBERS, memory, None)
    for fd in (*made.members, made.oom, made.memory, made.pids_events, made.folder):
        if fd >= 0:
            os.close(fd)
    # Only memory is shared out: a share of the processor would be that of one process, however many pages there are.
    counted = [folder for controller, folder in hierarchies.folders.items() if controller in _COUNTED]
    return {
        "doors": [f"{folder}/{_MEMBERS}/cgroup.procs" for folder in counted],
        "folders": hierarchies.folders,
        "version": hierarchies.version,
    }


def remove_group(group: Group) -> bool:
    """Remove it. Waits a little for dying processes; `False` while some are left."""
    cgroups.remove_all(cgroups.Hierarchies(group["version"], group["folders"]))
    return not any(os.path.exists(folder) for folder in group["folders"].values())
