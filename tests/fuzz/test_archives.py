"""Archives of sandboxes: whatever the bytes, nothing outside the tree changes, and a checked archive can be unpacked."""

import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtimes.process.trusted import _archive
from tests.fuzz._budget import FuzzBudget, FuzzCase, fuzzed

FOLDERS = ("upper", "shm", "home/agent")
NAMES = ("a", "b", "..", ".", "", "c\0d", "\udcff", "e" * 256, "f/" * 20 + "f", "upper", "outside")
KINDS = (
    *(tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    * 6,
    *(tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE),
)
SPARSE = ("GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.numblocks")
RECORDS = {
    "GNU.sparse.map": ("0,4,8192,4,20000,0", "0,4", "5,1,2,1", "x", "", "0,99999999", "-1,4", "0,8"),
    "GNU.sparse.size": ("20000", "4", "0", "-1", "9" * 18, "9" * 30, "x"),
    "GNU.sparse.numblocks": ("1", "3", "99999"),
    "GNU.sparse.major": ("1",),
    "GNU.sparse.minor": ("0",),
    "GNU.sparse.name": ("upper/../../outside", "upper/a"),
    "SCHILY.xattr.user.k": ("v", "v" * 3000),
    "SCHILY.xattr.user.overlay.opaque": ("y",),
    "SCHILY.xattr.user.overlay.redirect": ("/outside",),
    "SCHILY.xattr.security.capability": ("x",),
    "mtime": ("nan", "inf", "-1", "9" * 40, "1.5"),
    "size": ("0", "512", "-512", "99999999999"),
    "uid": ("0", "-1", "x"),
    "linkpath": ("../../outside/kept", "/", "x" * 5000),
    "path": ("upper/a/", "/upper/a", "upper/../../outside/kept"),
    "hdrcharset": ("BINARY", "x"),
}


def made(case: FuzzCase, outside: Path) -> bytes:
    """Return an archive of a few entries; most are valid, the others almost."""
    out = io.BytesIO()
    folders: list[str] = [*FOLDERS]
    files: list[str] = []
    for number in range(case.randint(1, 8)):
        info = tarfile.TarInfo(f"{case.choice(folders)}/n{number}")
        info.type, info.mode = case.choice(KINDS), case.choice((0o755, 0o644, 0, 0o6777))
        info.uid, info.mtime = case.choice((0, 1000)), case.choice((0, 1.5, 1 << 33))
        if info.islnk() and not files:
            info.type = tarfile.REGTYPE
        info.linkname = case.choice(files if info.islnk() else (str(outside), "../../outside", "a"))
        if case.random() < 0.1:
            info.name = f"{case.choice([*folders, *files])}/{case.choice(NAMES)}"
        if case.random() < 0.1:
            info.linkname = case.choice((*folders, *files, str(outside), "../../outside", "", ".."))
        data = b""
        if info.isreg():
            data = case.choice((b"", b"data", bytes(600), b"x" * 1500))
            files.append(info.name)
        elif info.isdir() or case.random() < 0.03:
            folders.append(info.name)
        else:
            info.devmajor = info.devminor = int(case.random() < 0.1)
        info.size = len(data)
        if info.isreg() and case.random() < 0.2:
            data, info.size = b"x" * 8, 8
            info.pax_headers = {key: RECORDS[key][0] for key in SPARSE}
        if case.random() < 0.1:
            for key in case.sample(sorted(RECORDS), case.randint(1, 3)):
                info.pax_headers = {**info.pax_headers, key: case.choice(RECORDS[key])}
        out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        out.write(data + bytes(-len(data) % 512))
    return out.getvalue() + bytes(1024)


def damaged(case: FuzzCase, data: bytes) -> bytes:
    """Change bytes; mostly keep the checksums of headers valid, so that the reader goes on."""
    changed = bytearray(case.mutated(data, times=2))
    if case.random() < 0.8:
        for start in range(0, len(changed) - 511, 512):
            block = changed[start : start + 512]
            if block.startswith(b"ustar", 257):
                total = sum(block[:148]) + 8 * 32 + sum(block[156:])
                changed[start + 148 : start + 156] = b"%06o\0 " % total
    return bytes(changed)


def state(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return mode, links, time and content of everything in a folder."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else b""
        if stat.S_ISLNK(info.st_mode):
            content = os.fsencode(path.readlink())
        modified = 0 if path in (folder, folder / "home") else info.st_mtime_ns
        found[str(path)] = (info.st_mode, info.st_nlink, modified, content)
    return found


@contextmanager
def tree(at: Path) -> Generator[int]:
    """Make the empty folders that an archive is unpacked into; yield a descriptor of their root."""
    for folder in FOLDERS:
        (at / folder).mkdir(parents=True)
    root = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield root
    finally:
        os.close(root)
        shutil.rmtree(at)


def packed(root: int) -> bytes:
    out = io.BytesIO()
    _archive.pack(root, FOLDERS, out)
    return out.getvalue()


@pytest.fixture
def place() -> Iterator[Path]:
    """Folder in memory, where files are made and removed fast, with a folder `outside`."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name) / "outside"
        folder.mkdir()
        (folder / "kept").write_text("kept", encoding="utf-8")
        yield Path(name)


@fuzzed
@pytest.mark.promise("snapshot:contained")
def test_no_archive_changes_anything_outside_its_tree(budget: FuzzBudget, place: Path) -> None:
    outside = place / "outside"
    before = state(outside)
    for case in budget.cases(short=500):
        with case, tree(place / "root") as root:
            data = made(case, outside)
            if case.random() < 0.4:
                data = damaged(case, data)
            try:
                _archive.check(FOLDERS, io.BytesIO(data))
                valid = True
            except ValueError as error:
                assert "snapshot" in str(error)
                valid = False
            try:
                _archive.unpack(root, FOLDERS, os.geteuid(), io.BytesIO(data))
            except ValueError:
                assert not valid
            except OSError:
                # No space, or names and attributes that this file system lacks.
                pass
            else:
                assert valid or data.count(0) == len(data)
                again = packed(root)
                _archive.check(FOLDERS, io.BytesIO(again))
            assert state(outside) == before
            assert sorted(os.listdir(place)) == ["outside", "root"]


@fuzzed
@pytest.mark.promise("snapshot:files")
def test_a_tree_is_the_same_after_packing_and_unpacking(budget: FuzzBudget, place: Path) -> None:
    at = place / "root"
    for case in budget.cases(short=60):
        with case:
            with tree(at) as root:
                grown(case, at)
                data, before, first = packed(root), state(at), b""
            # At first zeros become holes.
            for _ in range(2):
                first = data
                with tree(at) as root:
                    _archive.check(FOLDERS, io.BytesIO(first))
                    _archive.unpack(root, FOLDERS, os.geteuid(), io.BytesIO(first))
                    data = packed(root)
                    assert state(at) == before
            assert data == first


def grown(case: FuzzCase, root: Path) -> None:
    """Fill a tree with files of every kind that a sandbox can make."""
    folders = [root / folder for folder in FOLDERS]
    files: list[Path] = []
    for number in range(case.randint(0, 12)):
        path = case.choice(folders) / case.choice(
            (f"n{number}", f"ü{number}", f"\udcff{number}", "x" * 200 + str(number))
        )
        match case.randrange(6):
            case 0:
                path.mkdir(mode=case.choice((0o755, 0o700, 0o1777)))
                folders.append(path)
            case 1:
                path.symlink_to(case.choice(("/", "nowhere", "../" * 9, "\udcfe", "y" * 300)))
            case 2:
                os.mkfifo(path, 0o600)
            case 3 if files:
                path.hardlink_to(case.choice(files))
            case _:
                files.append(path)
                with path.open("wb") as file:
                    for _ in range(case.randrange(4)):
                        file.seek(case.randrange(1 << 18))
                        file.write(case.randbytes(case.choice((1, 600, 5000))))
                    file.truncate(case.choice((0, 1, 4096, 1 << 18, 1 << 20)))
    for path in reversed([*files, *folders]):
        os.utime(path, ns=(0, case.randrange(1 << 33) * 1_000_000_000))
