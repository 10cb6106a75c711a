"""Snapshots and mounts: archives that name, link or claim what is not theirs, and mount points moved from inside."""

import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import anyio

from agentflow.errors import AgentFlowError
from runtimes import Instance, InstanceSpec, Limits, Snapshot
from runtimes.process import ProcessRuntime
from tests.attacks._table import Attack, attacks

CATEGORY = "snapshots"
REFUSED = "refused: .*; others unchanged"
HARMLESS = "(refused: .*|restored); others unchanged"
FORKED = "(forked|refused: CannotFork); others unchanged"
HARMLESS_FORK = "(forked|refused: .*); others unchanged"
HOME = "upper/home/agent"
_LIMITS = Limits(disk_bytes=8 << 20, files=500, file_bytes=4 << 20, wall_seconds=60)

# Entries as `name|type|link|mode|size|pax headers`; empty fields have defaults. $HOME is the home's place in an archive.
_ENTRIES: dict[str, tuple[str, str, str]] = {
    "above": ("write above the archive", "../outside", REFUSED),
    "absolute": ("write to an absolute path", "/etc/passwd", REFUSED),
    "dots at the end": ("write above by a trailing part", "$HOME/..", REFUSED),
    "dots inside": ("leave the upper folder by dots", "upper/../lower/x", REFUSED),
    "many dots": ("leave the root by dots", "upper/" + "../" * 50 + "tmp/x", REFUSED),
    "dot before a link": ("hide a link by a dot", "$HOME/lnk|2|/skeleton/etc; $HOME/./lnk/bash", REFUSED),
    "two slashes before a link": ("hide a link by two slashes", "$HOME/lnk|2|/skeleton/etc; $HOME//lnk/bash", REFUSED),
    "slash after a link": ("write to a link as a folder", "$HOME/lnk|2|/skeleton/etc; $HOME/lnk/|5; $HOME/lnk/bash", REFUSED),
    "dot at the start": ("hide the top folder by a dot", "./upper/lnk|2|/skeleton/etc; upper/lnk/bash", REFUSED),
    "link to a link": ("follow two links", "$HOME/a|2|/skeleton; $HOME/b|2|a/etc; $HOME/b/hosts", REFUSED),
    "link in the middle": ("replace a folder by a link and write below", "$HOME/d|5; $HOME/d/x; $HOME/d|2|/skeleton/etc; $HOME/d/hosts", REFUSED),
    "link over the top": ("replace the upper folder by a link", "upper|2|/skeleton", REFUSED),
    "link over home": ("replace the home by a link and write below", "upper/home|2|/skeleton; upper/home/agent/x", REFUSED),
    "hard link above": ("link a file above", "$HOME/a|1|../../outside", REFUSED),
    "hard link absolute": ("link a file of the host", "$HOME/a|1|/etc/shadow", REFUSED),
    "hard link behind a link": ("link a file behind a link", "$HOME/a|2|/skeleton/etc; $HOME/b|1|$HOME/a/hosts", REFUSED),
    "hard link to nothing": ("link a file that is not in the archive", "$HOME/a|1|$HOME/none", REFUSED),
    "hard link to itself": ("link a file to itself", "$HOME/a|1|$HOME/a", REFUSED),
    "hard link to a link": ("write through a hard link to a link", "$HOME/a|2|/skeleton/etc/hosts; $HOME/b|1|$HOME/a; $HOME/b", HARMLESS),
    "hard link to a folder": ("link a folder", "$HOME/d|5; $HOME/e|1|$HOME/d", REFUSED),
    "character device": ("make a device", "$HOME/null|3", REFUSED),
    "block device": ("make a disk", "$HOME/disk|4", REFUSED),
    "device in a system folder": ("make a device in /dev", "upper/dev/mem|3", REFUSED),
    "work folder": ("write to the overlay's work folder", "work/x", REFUSED),
    "other top": ("write beside the upper folder", "lower/x", REFUSED),
    "empty name": ("use an empty name", "", HARMLESS),
    "unknown type": ("use an unknown type", "$HOME/a|Z", HARMLESS),
    "pax name": ("name a file twice", "$HOME/a|||||path=../../../outside", REFUSED),
    "pax absolute": ("name a file by an absolute path in a header", "$HOME/a|||||path=/etc/passwd", REFUSED),
    "pax link": ("name a link's target in a header", "$HOME/a|1|x|||linkpath=/etc/shadow", REFUSED),
    "pax negative size": ("claim a negative size", "$HOME/a|||||size=-1", HARMLESS),
    "pax huge size": ("claim a huge size", "$HOME/a|||||size=999999999999999999", REFUSED),
    "pax bad time": ("set a time that is no number", "$HOME/a|||||mtime=nan", HARMLESS),
    "pax huge time": ("set a time beyond the kernel's", "$HOME/a|||||mtime=1e300", HARMLESS),
    "pax owner": ("own a file by another user", "$HOME/a|||||uid=0", HARMLESS),
    "attribute: capability": ("set a file's capabilities", "$HOME/a|||||SCHILY.xattr.security.capability=x", HARMLESS),
    "attribute: overlay": ("set an attribute of the overlay", "$HOME/a|5||||SCHILY.xattr.trusted.overlay.redirect=/usr", HARMLESS),
    "attribute: user overlay": ("redirect a folder of the overlay", "$HOME/a|5||||SCHILY.xattr.user.overlay.redirect=/skeleton/etc", HARMLESS),
    "attribute: opaque": ("hide the system's files", "upper/etc|5||||SCHILY.xattr.user.overlay.opaque=y", HARMLESS),
    "attribute: metacopy": ("show the content of another file", "$HOME/a|||||SCHILY.xattr.user.overlay.metacopy=x", HARMLESS),
    "sparse: huge": ("claim a huge sparse file", "$HOME/a|||||GNU.sparse.major=1,GNU.sparse.minor=0,GNU.sparse.realsize=99999999999999", HARMLESS),
    "sparse: bad map": ("use a sparse map that is no map", "$HOME/a|||||GNU.sparse.map=x,GNU.sparse.size=1", HARMLESS),
    "long name": ("use a name that is too long", "$HOME/" + "x" * 300, HARMLESS),
    "long path": ("use a path that is too long", "$HOME/" + "d/" * 3000 + "x", HARMLESS),
    "file as a folder": ("write below a file", "$HOME/f; $HOME/f/x", HARMLESS),
    "folder as a file": ("write to a folder", "$HOME/f|5; $HOME/f", HARMLESS),
    "set-user-id": ("make a set-user-id program", "$HOME/su|||6755", HARMLESS),
    "no rights": ("make a folder that cannot be written", "$HOME/d|5||0; $HOME/d/x", HARMLESS),
    "pipes": ("make pipes that block a reader", "$HOME/p|6; $HOME/q|6", HARMLESS),
    "shared memory": ("write above the shared memory", "shm/../x", REFUSED),
    "library": ("replace the C library", "upper/usr/lib/x86_64-linux-gnu/libc.so.6", HARMLESS),
    "users": ("replace the list of users", "upper/etc/passwd", HARMLESS),
    "loader": ("preload a library", "upper/etc/ld.so.preload", HARMLESS),
}  # fmt: skip

# Data that is no archive, or too much of one.
_DATA: dict[str, tuple[str, str, str]] = {
    "data: nothing": ("restore nothing", "empty", REFUSED),
    "data: text": ("restore text", "text", REFUSED),
    "data: zeros": ("restore zeros", "zeros", HARMLESS),
    "data: gzip": ("restore a compressed archive", "gzip", REFUSED),
    "data: more than the disk": ("fill more than the disk", "large", REFUSED),
    "data: more than the files": ("make more files than allowed", "many", REFUSED),
    "data: truncated": ("restore a part of an archive", "truncated", REFUSED),
    "data: false checksum": ("restore a header with a false checksum", "checksum", REFUSED),
    "data: long header": ("claim a long name of 4 GiB", "long", REFUSED),
}
# Programs that make a trusted process stumble over the files of a sandbox.
_PROGRAMS: dict[str, tuple[str, str, str]] = {
    "program: moved mount": ("lead a mount elsewhere by a link", "cd; mv data d2; ln -s /skeleton/etc data", HARMLESS_FORK),
    "program: mount over a file": ("replace a mount's folder by a file", "cd; mv data d2; touch data", HARMLESS_FORK),
    "program: mount removed": ("remove a mount's folder", "cd; mv data d2", HARMLESS_FORK),
    "program: links everywhere": ("lead a fork's files elsewhere", "cd; for n in .bashrc .cache x; do ln -s /skeleton/etc $n; done", FORKED),
    "program: pipes": ("block a fork by pipes", "cd; for n in {1..50}; do mkfifo p$n; done", FORKED),
    "program: sockets": ("block a fork by sockets", "cd; python3 -c \"import socket; [socket.socket(1).bind(f's{n}') for n in range(50)]\"", FORKED),
    "program: deep folders": ("exhaust a fork by deep folders", "cd; for n in {1..300}; do mkdir d; cd d; done", HARMLESS_FORK),
    "program: no rights": ("stop a fork by rights", "cd; mkdir d; touch d/x; chmod 0 d; chmod 0 ~", HARMLESS_FORK),
    "program: names": ("confuse a fork by names", "cd; touch $'new\\nline' -- -rf '*' $'\\xff\\xfe' '$(id)'", FORKED),
    "mount: read-only": ("write to a read-only mount", "touch ~/data/x; rm -rf ~/data/file; chmod 777 ~/data", FORKED),
}  # fmt: skip

ATTACKS: list[Attack] = [
    *attacks(CATEGORY, _ENTRIES),
    *attacks(CATEGORY, _DATA),
    *attacks(CATEGORY, _PROGRAMS, soak=True),
]


def _entry(text: str) -> tarfile.TarInfo:
    name, kind, link, mode, size, pax = (*text.replace("$HOME", HOME).split("|"), "", "", "", "", "")[:6]
    info = tarfile.TarInfo(name)
    info.type, info.linkname = (kind or "0").encode(), link
    info.mode, info.size = int(mode or "644", 8), int(size or 0)
    info.devmajor, info.devminor = (1, 1) if kind in ("3", "4") else (0, 0)
    info.pax_headers = dict(pair.split("=", 1) for pair in pax.split(",") if pair)
    return info


def _archive(entries: Iterable[tarfile.TarInfo], content: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info in entries:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _data(name: str) -> bytes:
    good = _archive([_entry("$HOME/a")], b"x" * 2000)
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 1 << 32
    made = {
        "empty": b"",
        "text": b"not an archive" * 100,
        "zeros": bytes(10240),
        "gzip": b"\x1f\x8b" + bytes(1000),
        "large": _archive((_entry(f"$HOME/{n}") for n in range(12)), bytes(range(256)) * 4096),
        "many": _archive(_entry(f"$HOME/{n}") for n in range(600)),
        "truncated": good[:1500],
        "checksum": good[:150] + b"9" + good[151:],
        "long": long.tobuf(tarfile.GNU_FORMAT) + bytes(1024),
    }
    return made[name]


async def _state(runtime: ProcessRuntime) -> str:
    """Return a fingerprint of the system files that a new sandbox sees."""
    other = await runtime.start()
    find = "find / -xdev -path /proc -prune -o -printf '%p %y %s %l %m\\n' | sort; grep -v ^agent: /etc/passwd; cat /etc/hosts /etc/bash.bashrc"
    seen = await other.run("bash", find)
    await other.stop()
    return hashlib.sha256(seen.stdout.encode()).hexdigest()


async def _restore(instance: Instance, attack: Attack) -> str:
    name = attack.code
    archive = (
        _data(name) if attack.id.startswith(f"{CATEGORY}: data") else _archive(map(_entry, name.split("; ")))
    )
    try:
        await instance.restore(Snapshot(archive))
    except (ValueError, OSError, AgentFlowError) as error:
        return f"refused: {type(error).__name__}"
    return "restored"


async def _fork(instance: Instance, attack: Attack) -> str:
    await instance.run("python", "x = 1")
    await instance.run("bash", attack.code)
    try:
        with anyio.fail_after(60):
            await instance.snapshot()
            await (await instance.fork()).instance.stop()
    except (ValueError, OSError, AgentFlowError) as error:
        return f"refused: {type(error).__name__}"
    return "forked"


async def observe(runtime: ProcessRuntime, table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Try each attack; return the outcomes by id. A sandbox is used again while its archives are refused."""
    (folder / "data").mkdir()
    (folder / "data/file").write_text("of the host", encoding="utf-8")
    before = await _state(runtime)
    spec = InstanceSpec(limits=_LIMITS, mounts={"/home/agent/data": str(folder / "data")})
    seen: dict[str, str] = {}
    instance = await runtime.start(spec)
    for attack in table:
        program = attack.id.startswith((f"{CATEGORY}: program", f"{CATEGORY}: mount"))
        with anyio.fail_after(90):
            seen[attack.id] = await (_fork if program else _restore)(instance, attack)
        if program or seen[attack.id] == "restored":
            await instance.stop()
            instance = await runtime.start(spec)
    await instance.stop()
    unchanged = await _state(runtime) == before and sorted(
        path.name for path in (folder / "data").iterdir()
    ) == ["file"]
    state = "others unchanged" if unchanged else "others changed"
    return {id: f"{done}; {state}" for id, done in seen.items()}
