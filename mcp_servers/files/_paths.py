"""Display paths, and file system errors as typed failures."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import PurePosixPath

from agentflow.errors import ErrorKind, ToolFailure
from runtimes import WORKSPACE

_KINDS = {
    errno.ENOENT: (ErrorKind.NOT_FOUND, "does not exist"),
    errno.EEXIST: (ErrorKind.BAD_ARGUMENTS, "already exists"),
    errno.EISDIR: (ErrorKind.BAD_ARGUMENTS, "is a directory"),
    errno.ENOTDIR: (ErrorKind.BAD_ARGUMENTS, "leads through a path that is not a directory"),
    errno.ENOTEMPTY: (ErrorKind.BAD_ARGUMENTS, "is a directory that is not empty"),
    errno.ENAMETOOLONG: (ErrorKind.BAD_ARGUMENTS, "is too long"),
    errno.EINVAL: (ErrorKind.BAD_ARGUMENTS, "cannot be used this way"),
    errno.EACCES: (ErrorKind.DENIED, "may not be used this way"),
    errno.EPERM: (ErrorKind.DENIED, "may not be used this way"),
    errno.EROFS: (ErrorKind.DENIED, "cannot be changed: it is outside the workspace"),
    errno.ELOOP: (ErrorKind.DENIED, "leads through a symlink that is not followed"),
    errno.EXDEV: (ErrorKind.DENIED, "leads out of the session"),
    errno.EFBIG: (ErrorKind.FILE_TOO_LARGE, "would exceed the file size limit"),
    errno.ENOSPC: (ErrorKind.FILE_TOO_LARGE, "does not fit: the workspace is full"),
    errno.EDQUOT: (ErrorKind.FILE_TOO_LARGE, "does not fit: the workspace is full"),
}
"""Failure kind and message for an error number."""

_TYPES: tuple[tuple[type[OSError], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
    (PermissionError, errno.EACCES),
)


def checked(path: str) -> str:
    """Return the path if it is valid.

    :raises ToolFailure: `bad_arguments` if it is empty or contains an invalid character.
    """
    if not path or "\0" in path:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{path!r} is not a valid path.")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{path!r} is not valid text.") from None
    return path


def short(path: str) -> str:
    """Return a path relative to the workspace if it is inside it."""
    pure = PurePosixPath(WORKSPACE, path)
    return str(pure.relative_to(WORKSPACE)) if pure.is_relative_to(WORKSPACE) else str(pure)


@contextmanager
def file_failures(tool: str, path: str) -> Generator[None]:
    """Convert file system errors to typed failures that name the path."""
    try:
        yield
    except OSError as error:
        number = error.errno or next((number for kind, number in _TYPES if isinstance(error, kind)), None)
        kind, meaning = _KINDS.get(number or 0, (ErrorKind.FAILED, str(error)))
        raise ToolFailure(kind, f"{tool}: {path!r} {meaning}.") from error
