"""Resources of the host that all sandboxes share: the id range, and the read-only base of their roots.

The base (system programs, the interpreter, a small `/etc`, devices) is prepared once, in two steps. `collect` runs
where the host's files are still visible and takes detached copies of the mounts. `assemble` builds, on a new tmpfs,
the tree that becomes the root of the sandbox init process:

    /skeleton   lowest layer of every sandbox's root: /etc, /tmp, mount points
    /trees/N    system programs and interpreters, read-only
    /pause      program of the pause processes
    /dev        six harmless devices
    /proc       the runtime's own processes; never visible in a sandbox
    /stage /r   empty, used to build a sandbox
"""

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass

from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _spawn

_ID_RANGE_SIZE = 65536
_ROOT_FIRST = 0x70000000
_ROOT_SLOTS = 2048


@dataclass(frozen=True, slots=True)
class IdMap:
    """Host ids that the runtime's user namespace maps: a range if the user has one, else only the user's own."""

    first: int
    """First host id of the range; -1 without a range."""
    helpers: bool
    """The maps are written by `newuidmap` and `newgidmap`, as an ordinary user needs."""
    note: str
    """Reason for having no range and the remedy; empty otherwise."""

    @property
    def single_user(self) -> bool:
        """Only one id is mapped."""
        return self.first < 0

    @property
    def owner(self) -> int | None:
        """Host user to own the runtime's user namespace, which only root may choose; `None` for the server's user."""
        return None if self.single_user or self.helpers else self.first


def _claim_slot(folder: str) -> int:
    """Return the first id of a range that no other server of root uses; a file lock reserves it until this process ends."""
    os.makedirs(folder, 0o700, exist_ok=True)
    for slot in range(_ROOT_SLOTS):
        fd = os.open(f"{folder}/ids-{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            continue
        os.set_inheritable(fd, False)
        return _ROOT_FIRST + slot * _ID_RANGE_SIZE
    raise OSError("every range of user ids is used by another server: stop one of them")


def _subordinate_range(path: str, user: str, uid: int) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, first, size = line.strip().split(":")
                if name in (user, str(uid)) and int(size) >= _ID_RANGE_SIZE - 1:
                    return int(first)
    except (OSError, ValueError):
        pass
    return -1


def plan_ids(lock_folder: str) -> IdMap:
    """Return the largest id map that this user may have."""
    uid = os.geteuid()
    if uid == 0:
        return IdMap(_claim_slot(lock_folder), False, "")
    how = "install the package uidmap and give the user a line in /etc/subuid and /etc/subgid"
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        return IdMap(
            -1, False, f"one user id only, so no forks of live sessions: newuidmap is missing; {how}"
        )
    user = pwd.getpwuid(uid).pw_name
    first = _subordinate_range("/etc/subuid", user, uid)
    if first < 0 or _subordinate_range("/etc/subgid", user, uid) < 0:
        return IdMap(-1, False, f"one user id only, so no forks of live sessions: no range for {user}; {how}")
    return IdMap(first, True, "")


def write_id_map(idmap: IdMap, pid: int) -> None:
    """Write the id maps of a process that has just created a user namespace.

    :raises OSError: if the kernel or `newuidmap` refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    if idmap.single_user:
        _write_proc(pid, "setgroups", "deny")
        _write_proc(pid, "uid_map", f"0 {uid} 1")
        _write_proc(pid, "gid_map", f"0 {gid} 1")
    elif idmap.helpers:
        user = pwd.getpwuid(uid).pw_name
        for tool, own_id, first in (
            ("newuidmap", uid, idmap.first),
            ("newgidmap", gid, _subordinate_range("/etc/subgid", user, uid)),
        ):
            command = [tool, str(pid), "0", str(own_id), "1", "1", str(first), str(_ID_RANGE_SIZE - 1)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"{tool}: {done.stderr.strip()}")
    else:
        _write_proc(pid, "uid_map", f"0 {idmap.first} {_ID_RANGE_SIZE}")
        _write_proc(pid, "gid_map", f"0 {idmap.first} {_ID_RANGE_SIZE}")
    # The first process of the namespace that writes this map needs no capability, so sandboxes could leave messages in it.
    _write_proc(pid, "projid_map", "0 0 1")


def _write_proc(pid: int, name: str, text: str) -> None:
    with open(f"/proc/{pid}/{name}", "w", encoding="utf-8") as file:
        file.write(text)


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
    # New users must get ids from the sandbox's block.
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
_FONTS = "matplotlib/"
MATPLOTLIB_FOLDER = "/var/cache/matplotlib"
"""Matplotlib's own files; it must be able to write there."""
SHELL_ENTRY = "/etc/bash"
"""Sourced by the shell session for every command, so that a signal handler can `return` from it."""


@dataclass(frozen=True, slots=True)
class HostView:
    """Paths of the host that every sandbox sees."""

    trees: list[str]
    """Folders mounted read-only; later ones may lie inside earlier ones."""
    hidden: list[str]
    """Folders inside them that appear empty: this project's own source."""
    links: list[tuple[str, str]]
    """Symbolic links in the root: path and target."""
    etc: list[tuple[str, str]]
    """Files of /etc to copy: name and path on the host."""


@dataclass(frozen=True, slots=True)
class HostMounts:
    """Detached mounts returned by `collect`."""

    view: HostView
    """Paths that they show."""
    trees: list[tuple[str, int]]
    """Mount point and detached mount of each tree."""
    devices: list[tuple[str, int]]
    """Name and detached mount of each device."""


def _interpreter_prefixes() -> list[str]:
    """Return the outermost folders that contain the running interpreter."""
    wanted = {os.path.realpath(p) for p in (sys.base_prefix, sys.prefix)} | {sys.prefix, sys.base_prefix}
    kept: list[str] = []
    for path in sorted(wanted):
        if not any(path == k or path.startswith(k + "/") for k in [*kept, "/usr"]):
            kept.append(path)
    return kept


def _hidden(prefix: str) -> list[str]:
    """Return the folders below a prefix that contain this project's own source."""
    entries = [entry for entry in sys.path if entry.startswith(prefix + "/")]
    folders = [os.path.join(entry, name) for entry in entries for name in _OWN_PACKAGES]
    return [folder for folder in folders if os.path.isdir(folder)]


def host_view() -> HostView:
    """Return the paths of this host that sandboxes see."""
    prefixes = _interpreter_prefixes()
    return HostView(
        [*(path for path in _SYSTEM if os.path.isdir(path) and not os.path.islink(path)), *prefixes],
        [folder for prefix in (*prefixes, "/usr") for folder in _hidden(prefix)],
        [(path, os.readlink(path)) for path in _SYSTEM if os.path.islink(path)],
        [(name, path) for name in _ETC if os.path.exists(path := f"/etc/{name}")],
    )


def collect() -> HostMounts:
    """Take detached, read-only copies of the mounts. Needs CAP_SYS_ADMIN over the current mount namespace."""
    view = host_view()
    trees = [(path, read_only_view(path)) for path in view.trees]
    trees += [(path, sc.new_mount("tmpfs", _READ_ONLY, size="4k", mode="0555")) for path in view.hidden]
    devices = [(name, sc.clone_mount(f"/dev/{name}", recursive=False)) for name in _DEVICES]
    return HostMounts(view, trees, devices)


def read_only_view(path: str) -> int:
    """Return a detached, read-only copy of the mount tree at a path."""
    mount = sc.clone_mount(path)
    sc.set_mount_attributes(mount, _READ_ONLY)
    return mount


def read_etc(view: HostView, fonts: str = "") -> list[tuple[str, str | bytes]]:
    """Return the files of /etc: name, and content as bytes or (for a link) its target as text.

    :param fonts: path of matplotlib's list of fonts, if there is one.
    """
    contents: list[tuple[str, str | bytes]] = []
    if fonts:
        with open(fonts, "rb") as source:
            contents.append((_FONTS + os.path.basename(fonts), source.read()))
    for name, path in view.etc:
        paths = [path]
        if os.path.isdir(path) and not os.path.islink(path):
            paths = [os.path.join(folder, file) for folder, _, files in os.walk(path) for file in files]
        for file in paths:
            inner = name + file[len(path) :]
            if os.path.islink(file) and os.readlink(file).startswith(("/usr/", "/etc/", "..", ".")):
                contents.append((inner, os.readlink(file)))
            elif stat.S_ISREG(os.stat(file).st_mode) and os.stat(file).st_mode & stat.S_IROTH:
                with open(file, "rb") as source:
                    contents.append((inner, source.read()))
    return contents


def assemble(
    at: str, collected: HostMounts, etc: list[tuple[str, str | bytes]], shell_entry: str
) -> list[str]:
    """Build the tree at a mount point; return the mount points of the trees by number.

    The caller then makes it the root of its mount namespace.
    """
    sc.attach_mount(sc.new_mount("tmpfs", sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV, mode="0755"), at)
    for name in ("skeleton", "trees", "dev", "proc", "stage", "r", "old"):
        os.mkdir(f"{at}/{name}", 0o755)
    with open(at + _spawn.PAUSE_PATH, "wb") as file:
        file.write(_spawn.pause_program())
    os.chmod(at + _spawn.PAUSE_PATH, 0o555)
    skeleton = f"{at}/skeleton"
    fill_skeleton(skeleton, etc, shell_entry)
    for path, target in collected.view.links:
        os.symlink(target, skeleton + path)
    for number, (path, mount) in enumerate(collected.trees):
        os.makedirs(skeleton + path, 0o755, exist_ok=True)
        if path.startswith("/root/"):
            os.chmod(f"{skeleton}/root", 0o711)
        os.mkdir(f"{at}/trees/{number}")
        sc.attach_mount(mount, f"{at}/trees/{number}")
    _make_dev(f"{at}/dev", collected.devices)
    return [path for path, _ in collected.trees]


def fill_skeleton(skeleton: str, etc: list[tuple[str, str | bytes]], shell_entry: str) -> None:
    """Fill an empty folder with everything in a sandbox's root except the shared trees."""
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
    for name in ("tmp", "var/tmp", MATPLOTLIB_FOLDER.removeprefix("/")):
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
        if name.startswith(_FONTS):
            os.symlink(f"/etc/{name}", f"{skeleton}{MATPLOTLIB_FOLDER}/{os.path.basename(name)}")


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
