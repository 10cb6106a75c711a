"""Landlock: a second, independent restriction of file and socket access in a sandboxed process.

`make_ruleset` is for sandboxes: the rule is anchored at the inode of the shared, empty root below every sandbox's own root. A rule for a sandbox's own
files would lock its forks out of theirs, since a fork inherits the restriction. `make_file_ruleset` is for workers that need only some files.
"""

import os
import stat
import struct

from runtimes.process.linux import _syscalls as sc

_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_FS_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_SCOPE_ABSTRACT_SOCKETS = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE_FILE, _MAKE_REG = 1 << 5, 1 << 8
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

READ = _READ_FILE | _READ_DIR
"""Read files, and list directories."""
WRITE = _WRITE_FILE | _TRUNCATE
"""Write to existing files."""
CHANGE_FOLDER = _REMOVE_FILE | _MAKE_REG
"""Create and remove files in a directory."""


def version() -> int:
    """Return the kernel's Landlock version; 0 without Landlock."""
    try:
        return sc.syscall("landlock version", sc.SYS_LANDLOCK_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def make_ruleset(anchor: int) -> int | None:
    """Create a ruleset that allows everything below `anchor` except creating device nodes.

    Return `None` if the kernel has no Landlock. It is created once and inherited; applying it is one call.
    """
    abi = version()
    if not abi:
        return None
    rights = _rights(abi)
    ruleset = _create(rights, abi)
    rule = struct.pack("=Qi", rights & ~(_MAKE_CHAR | _MAKE_BLOCK), anchor)
    sc.syscall("landlock_add_rule", sc.SYS_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    os.set_inheritable(ruleset, False)
    return ruleset


def make_file_ruleset(*, refuse_reading: bool) -> int:
    """Create a ruleset that refuses all access to files, or only changing and executing them; see `permit`."""
    abi = version()
    rights = _rights(abi)
    return _create(rights if refuse_reading else rights & ~READ, abi)


def permit(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for a file, or a directory and its contents. A missing file, and a symbolic link at the end of the path, are skipped."""
    try:
        anchor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        mode = os.fstat(anchor).st_mode
        if not stat.S_ISLNK(mode):
            rights &= _rights(version()) if stat.S_ISDIR(mode) else _rights(version()) & _OF_FILES
            rule = struct.pack("=Qi", rights, anchor)
            sc.syscall("landlock_add_rule", sc.SYS_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(anchor)


def _rights(abi: int) -> int:
    return max(rights for since, rights in _FS_RIGHTS_BY_VERSION.items() if since <= abi)


def _create(rights: int, abi: int) -> int:
    scope = _SCOPE_ABSTRACT_SOCKETS if abi >= 6 else 0
    attr = struct.pack("=QQQ", rights, 0, scope) if abi >= 6 else struct.pack("=Q", rights)
    return sc.syscall("landlock_create_ruleset", sc.SYS_LANDLOCK_CREATE_RULESET, attr, len(attr), 0)


def apply(ruleset: int) -> None:
    """Apply a ruleset to the calling thread and its descendants, irrevocably."""
    sc.syscall("landlock_restrict_self", sc.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
