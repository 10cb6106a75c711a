"""The read-only part that all sandboxes share: system programs, the interpreter, a small `/etc`, devices.

Prepared once, in two steps. `collect` runs where the host's files are still in view and takes detached copies
of the mounts to show. `assemble` builds, on a fresh tmpfs, the tree that becomes the builder's only world:

    /skeleton   the lowest layer of every sandbox's root: /etc, /tmp, mount points
    /trees/N    system programs and interpreters, read-only
    /sleeper    the program of a family's first process
    /dev        a handful of harmless devices
    /proc       the runtime's own processes; never shown to a sandbox
    /stage /r   empty, for building one sandbox
"""

import os
import stat
import sys
from dataclasses import dataclass, field

from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _sleeper

_READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = ("null", "zero", "full", "random", "tty", "urandom")
_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates.conf",
    "debian_version",
    "default/useradd",
    "deluser.conf",
    "fonts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pam.conf",
    "pam.d",
    "profile",
    "protocols",
    "security",
    "services",
    "skel",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_ETC_TEXTS = {
    # New users must get ids that a sandbox's block has.
    "adduser.conf": "DSHELL=/bin/bash\nDHOME=/home\nSKEL=/etc/skel\nFIRST_UID=1000\nLAST_UID=1013\n"
    "FIRST_GID=1000\nLAST_GID=1013\nUSERGROUPS=yes\nDIR_MODE=0755\n",
    "login.defs": "UID_MIN 1000\nUID_MAX 1013\nGID_MIN 1000\nGID_MAX 1013\nUSERGROUPS_ENAB yes\nENCRYPT_METHOD SHA512\n",
    "group": "root:x:0:\nshadow:x:42:\nusers:x:100:\nagent:x:1000:\nnogroup:x:65534:\n",
    "gshadow": "",
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "resolv.conf": "",
    "shadow": "root:*:19000:0:99999:7:::\nagent:*:19000:0:99999:7:::\n",
    "shells": "/bin/sh\n/bin/bash\n",
}
_OWN_PACKAGES = ("agentflow", "mcp_servers", "runtimes")
SHELL_ENTRY = "/etc/bash"
"""Sourced by the shell session for every command, so that a signal can make it return."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What of the host every sandbox sees, by name."""

    trees: list[str]
    """Folders, read-only; later ones may lie in earlier ones."""
    hidden: list[str]
    """Folders in those that appear empty: this project's own source."""
    links: list[tuple[str, str]]
    """Symbolic links of the root: path, target."""
    etc: list[tuple[str, str]]
    """Files of /etc to copy: name, path on the host."""


@dataclass(slots=True)
class Collected:
    """What `collect` found."""

    trees: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Where each tree goes, and its detached mount."""
    links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Symbolic links of the root: path, target."""
    devices: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Device name, and its detached mount."""
    etc: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Files of /etc to copy: name, path on the host."""


def interpreter_prefixes() -> list[str]:
    """The folders that the running interpreter lives in, outermost only."""
    wanted = {os.path.realpath(p) for p in (sys.base_prefix, sys.prefix)} | {sys.prefix, sys.base_prefix}
    kept: list[str] = []
    for path in sorted(wanted):
        if not any(path == k or path.startswith(k + "/") for k in [*kept, "/usr"]):
            kept.append(path)
    return kept


def _hidden(prefix: str) -> list[str]:
    """Folders under a prefix that hold this project's own source."""
    found: list[str] = []
    for entry in sys.path:
        if entry.startswith(prefix + "/"):
            found += [p for name in _OWN_PACKAGES if os.path.isdir(p := os.path.join(entry, name))]
    return found


def shown() -> Shown:
    """What to show of this host."""
    prefixes = interpreter_prefixes()
    return Shown(
        [*(path for path in _SYSTEM if os.path.isdir(path) and not os.path.islink(path)), *prefixes],
        [folder for prefix in (*prefixes, "/usr") for folder in _hidden(prefix)],
        [(path, os.readlink(path)) for path in _SYSTEM if os.path.islink(path)],
        [(name, path) for name in _ETC if os.path.exists(path := f"/etc/{name}")],
    )


def collect() -> Collected:
    """Take detached, read-only copies of the mounts to show. Needs power over the current mount namespace."""
    names = shown()
    result = Collected(links=names.links, etc=names.etc)
    result.trees += [(path, read_only_view(path)) for path in names.trees]
    result.trees += [(folder, _empty_folder()) for folder in names.hidden]
    for name in _DEVICES:
        result.devices.append((name, sc.clone_mount(f"/dev/{name}", recursive=False)))
    return result


def read_only_view(path: str) -> int:
    """A detached, read-only copy of the mount tree at a path."""
    mount = sc.clone_mount(path)
    sc.set_mount_attributes(mount, _READ_ONLY)
    return mount


def _empty_folder() -> int:
    return sc.new_mount("tmpfs", _READ_ONLY, size="4k", mode="0555")


def read_etc(collected: Collected | Shown) -> list[tuple[str, str | bytes]]:
    """The contents of the files of /etc: name, and bytes or (for a link) its target."""
    found: list[tuple[str, str | bytes]] = []
    for name, path in collected.etc:
        paths = [path]
        if os.path.isdir(path) and not os.path.islink(path):
            paths = [os.path.join(folder, file) for folder, _, files in os.walk(path) for file in files]
        for file in paths:
            inner = name + file[len(path) :]
            if os.path.islink(file) and os.readlink(file).startswith(("/usr/", "/etc/", "..", ".")):
                found.append((inner, os.readlink(file)))
            elif stat.S_ISREG(os.stat(file).st_mode) and os.stat(file).st_mode & stat.S_IROTH:
                with open(file, "rb") as source:
                    found.append((inner, source.read()))
    return found


def assemble(
    at: str, collected: Collected, etc: list[tuple[str, str | bytes]], shell_entry: str
) -> list[str]:
    """Build the tree at a mount point. Returns the places of the trees: tree N goes to entry N.

    The caller then makes it the root of its mount namespace.
    """
    sc.attach_mount(sc.new_mount("tmpfs", sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV, mode="0755"), at)
    for name in ("skeleton", "trees", "dev", "proc", "stage", "r", "old"):
        os.mkdir(f"{at}/{name}", 0o755)
    with open(at + _sleeper.PLACE, "wb") as file:
        file.write(_sleeper.program())
    os.chmod(at + _sleeper.PLACE, 0o555)
    skeleton = f"{at}/skeleton"
    fill_skeleton(skeleton, etc, shell_entry)
    for path, target in collected.links:
        os.symlink(target, skeleton + path)
    places: list[str] = []
    for number, (path, mount) in enumerate(collected.trees):
        os.makedirs(skeleton + path, 0o755, exist_ok=True)
        if path.startswith("/root/"):
            os.chmod(f"{skeleton}/root", 0o711)
        os.mkdir(f"{at}/trees/{number}")
        sc.attach_mount(mount, f"{at}/trees/{number}")
        places.append(path)
    _make_dev(f"{at}/dev", collected.devices)
    return places


def fill_skeleton(skeleton: str, etc: list[tuple[str, str | bytes]], shell_entry: str) -> None:
    """Put into an empty folder what a sandbox's root has beside the shared trees."""
    for name in (
        "etc",
        "home",
        "home/agent",
        "proc",
        "sys",
        "dev",
        "run",
        "mnt",
        "opt",
        "srv",
        "var",
        "var/lib",
        "var/cache",
    ):
        os.mkdir(f"{skeleton}/{name}", 0o755)
    os.mkdir(f"{skeleton}/root", 0o700)
    for name in ("tmp", "var/tmp"):
        os.mkdir(f"{skeleton}/{name}")
        os.chmod(f"{skeleton}/{name}", 0o1777)
    texts: list[tuple[str, str | bytes]] = [(name, text.encode()) for name, text in _ETC_TEXTS.items()]
    for name, content in [*etc, *texts, (SHELL_ENTRY.removeprefix("/etc/"), shell_entry.encode())]:
        path = f"{skeleton}/etc/{name}"
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        if isinstance(content, str):
            os.symlink(content, path)
        else:
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, 0o644)


def _make_dev(path: str, devices: list[tuple[str, int]]) -> None:
    tmpfs = sc.new_mount("tmpfs", sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NOEXEC, size="64k", mode="0755")
    sc.attach_mount(tmpfs, path)
    for name, mount in devices:
        with open(f"{path}/{name}", "wb"):
            pass
        sc.attach_mount(mount, f"{path}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{path}/{name}")
    links = {"fd": "/proc/self/fd", "ptmx": "pts/ptmx", "stdin": "/proc/self/fd/0"}
    for name, target in {**links, "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}.items():
        os.symlink(target, f"{path}/{name}")
