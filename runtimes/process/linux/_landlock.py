"""Landlock: a second, independent restriction of file and socket access in a sandboxed process.

The rule is anchored at the inode of the shared, empty root below every sandbox's own root. A rule for a sandbox's own
files would lock its forks out of theirs, since a fork inherits the restriction.
"""

import os
import struct

from runtimes.process.linux import _syscalls as sc

_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_FS_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_SCOPE_ABSTRACT_SOCKETS = 1
_RULE_PATH_BENEATH = 1


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
    rights = max(rights for since, rights in _FS_RIGHTS_BY_VERSION.items() if since <= abi)
    scope = _SCOPE_ABSTRACT_SOCKETS if abi >= 6 else 0
    attr = struct.pack("=QQQ", rights, 0, scope) if abi >= 6 else struct.pack("=Q", rights)
    ruleset = sc.syscall("landlock_create_ruleset", sc.SYS_LANDLOCK_CREATE_RULESET, attr, len(attr), 0)
    rule = struct.pack("=Qi", rights & ~(_MAKE_CHAR | _MAKE_BLOCK), anchor)
    sc.syscall("landlock_add_rule", sc.SYS_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    os.set_inheritable(ruleset, False)
    return ruleset


def apply(ruleset: int) -> None:
    """Apply a ruleset to the calling thread and its descendants, irrevocably."""
    sc.syscall("landlock_restrict_self", sc.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
