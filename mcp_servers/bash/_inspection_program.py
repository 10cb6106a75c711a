"""Program that lists the files below a directory with their content. It runs inside the sandbox.

Reads a JSON request from standard input and writes a JSON answer. Uses only the standard library, and starts no program
that lies in the workspace.
"""

import hashlib
import io
import json
import os
import stat
import sys

SKIPPED = frozenset({".git", ".cache", "__pycache__", ".ipython", ".config", ".local"})
READ_BYTES = 8 * 1024 * 1024
TEXT_BYTES = 32 * 1024
ALL_TEXT_BYTES = 1024 * 1024
MEMBERS = 200


def text_of(data: bytes) -> "str | None":
    """Return short UTF-8 text; `None` for anything else."""
    if len(data) > TEXT_BYTES or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def unpacked(data: bytes, limit: int) -> bytes:
    """Return the beginning of what a gzip file holds."""
    import gzip

    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return stream.read(limit)


def members(data: bytes) -> "dict[str, str] | None":
    """Return the files of an archive with the hashes of their content; `None` if it is none, or too large."""
    import tarfile  # both are slow to load, and seldom needed
    import zipfile

    hashes: dict[str, str] = {}
    room = READ_BYTES
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for entry in archive.infolist():
                    if entry.is_dir():
                        continue
                    room -= entry.file_size
                    if room < 0 or len(hashes) >= MEMBERS:
                        return None
                    with archive.open(entry) as file:
                        hashes[os.path.normpath(entry.filename)] = hashlib.sha256(
                            file.read(READ_BYTES)
                        ).hexdigest()
            return hashes
        plain = data
        if data[:2] == b"\x1f\x8b":
            plain = unpacked(data, READ_BYTES)
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is None:
                    continue
                if len(hashes) >= MEMBERS:
                    return None
                hashes[os.path.normpath(member.name)] = hashlib.sha256(file.read()).hexdigest()
        return hashes or None
    except Exception:  # hostile archives raise anything
        return None


def described(path: str) -> "dict[str, object]":
    """Describe an entry; links are not followed."""
    info = os.lstat(path)
    description: dict[str, object] = {
        "mode": stat.S_IMODE(info.st_mode),
        "size": info.st_size,
        "kind": "other",
    }
    if stat.S_ISLNK(info.st_mode):
        description.update(
            kind="symlink", target=os.fsencode(os.readlink(path)).decode("utf-8", "backslashreplace")
        )
    elif stat.S_ISDIR(info.st_mode):
        description["kind"] = "directory"
    elif stat.S_ISREG(info.st_mode):
        description["kind"] = "file"
        if info.st_size <= READ_BYTES:
            read(path, description)
    return description


def read(path: str, description: "dict[str, object]") -> None:
    """Add the content of a file; an unreadable one has none."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            data = file.read(READ_BYTES)
    except OSError:
        return
    description["sha256"] = hashlib.sha256(data).hexdigest()
    text = text_of(data)
    if text is not None:
        description["text"] = text
        return
    packed = members(data)
    if packed is not None:
        description["members"] = packed
    elif data[:2] == b"\x1f\x8b":
        try:
            description["unpacked"] = text_of(unpacked(data, TEXT_BYTES + 1))
        except Exception:  # hostile files raise anything
            description["unpacked"] = None


def answer(root: str, limit: int) -> "dict[str, object]":
    """Return the entries below a directory by relative path, and the directories of git repositories."""
    entries: dict[str, object] = {}
    repositories: list[str] = []
    room = ALL_TEXT_BYTES
    for folder, names, files in os.walk(root):
        if ".git" in names:
            repositories.append(os.path.relpath(folder, root))
        for name in sorted([*names, *files]):
            if name in SKIPPED or name == ".bash_history":
                continue
            if len(entries) >= limit:
                return {"files": entries, "repositories": repositories, "complete": False}
            path = os.path.join(folder, name)
            try:
                entry = described(path)
            except OSError:
                continue  # it has vanished
            room -= len(str(entry.get("text") or entry.get("unpacked") or ""))
            if room < 0:
                entry.pop("text", None)
                entry.pop("unpacked", None)
            # A name that is not UTF-8 is written as escapes.
            name = (
                os.path.relpath(path, root)
                .encode("utf-8", "surrogateescape")
                .decode("utf-8", "backslashreplace")
            )
            entries[name] = entry
        names[:] = sorted(name for name in names if name not in SKIPPED)
    return {"files": entries, "repositories": sorted(repositories), "complete": True}


if __name__ == "__main__":
    request = json.load(sys.stdin)
    json.dump(answer(request["root"], request["limit"]), sys.stdout, ensure_ascii=True)
