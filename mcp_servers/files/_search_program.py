"""Search program that runs inside the sandbox, where the cost of a user's pattern is limited.

Reads a JSON request from standard input and writes a JSON answer. Uses only the standard library.
"""

import json
import os
import re
import sys
from collections.abc import Iterator

BINARY_SNIFF = 8192
LINE = 500


def translate(glob: str) -> "re.Pattern[str]":
    """Translate a glob to a regular expression over relative paths; without a `/` it matches at any depth."""
    pattern = glob if "/" in glob else f"**/{glob}"
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern.removeprefix("/"))
    # The split puts plain text at even indices and wildcards at odd ones.
    expressions = (_wildcard(part) if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile("".join(expressions) + r"\Z")


def _wildcard(part: str) -> str:
    kinds = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return kinds.get(part) or part.replace("[!", "[^", 1).replace("\\", "\\\\")


def files(root: str) -> Iterator[str]:
    """Yield every file below a directory, or the file itself; symlinks to directories are not followed."""
    if not os.path.isdir(root):
        yield root
        return
    for folder, folders, file_names in os.walk(root):
        folders.sort()
        for name in sorted(file_names):
            yield os.path.join(folder, name)


def search(path: str, pattern: "re.Pattern[str]", limit: int) -> "list[tuple[int, str]]":
    """Return numbers and texts of the matching lines of a file; empty for a binary file."""
    matches: list[tuple[int, str]] = []
    with open(path, "rb") as file:
        if b"\0" in file.read(BINARY_SNIFF):
            return matches
        file.seek(0)
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if pattern.search(text):
                matches.append((number, text if len(text) <= LINE else text[:LINE] + "…"))
                if len(matches) >= limit:
                    break
    return matches


def answer(request: "dict[str, str | int | bool | None]") -> "dict[str, object]":
    """Return the matches of a request."""
    root, limit = str(request["path"]), int(request["limit"] or 0)
    glob, text = request["glob"], request["pattern"]
    names = translate(str(glob)) if glob else None
    flags = re.IGNORECASE if request["ignore_case"] else 0
    pattern = re.compile(str(text), flags) if text else None
    os.lstat(root)
    matches: list[dict[str, object]] = []
    searched = 0
    for path in files(root):
        if len(matches) > limit:
            break
        if names and not names.match(os.path.relpath(path, root) if path != root else os.path.basename(path)):
            continue
        searched += 1
        shown = path.encode("utf-8", "backslashreplace").decode()
        if pattern is None:
            matches.append({"path": shown})
            continue
        try:
            lines = search(path, pattern, limit + 1 - len(matches)) if os.path.isfile(path) else []
        except OSError:
            continue
        matches.extend({"path": shown, "line": number, "text": line} for number, line in lines)
    return {"matches": matches[:limit], "files_searched": searched, "truncated": len(matches) > limit}


def main() -> None:
    """Answer one request."""
    try:
        result: dict[str, object] = {"found": answer(json.load(sys.stdin))}
    except re.error as error:
        result = {"wrong": f"invalid pattern: {error}"}
    except OSError as error:
        result = {"errno": error.errno}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
