"""Settings: files, variables and session settings that run code, read files, or take memory."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from unittest.mock import patch

from agentflow.errors import ConfigurationError
from agentflow.sandbox import SandboxSettings
from agentflow.settings import load_settings
from mcp_servers import ToolTable
from mcp_servers.document import DocumentBackend
from mcp_servers.sql import SqlBackend
from mcp_servers.web import WebBackend
from tests.attacks._table import Attack, attacks
from tests.mcp_servers.sql._asking import make_sqlite

CATEGORY = "settings"
REFUSED = "refused: .*; no trace"
NO_EFFECT = "(refused: .*|loaded); no trace"
IGNORED = "(refused: .*|started); no trace"
_RUN = "!!python/object/apply:os.system ['touch $TRACE']"
_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]\n"
    for above, name in zip("abcdefgh", "bcdefghi", strict=True)
)

_FILES: dict[str, tuple[str, str, str]] = {
    "yaml: apply": ("run a command by a tag", f"backends: {_RUN}", REFUSED),
    "yaml: new": ("create an object by a tag", "backends: !!python/object/new:os.system ['touch $TRACE']", REFUSED),
    "yaml: object": ("create an object by a tag without arguments", "backends: !!python/object:subprocess.Popen {args: [touch, $TRACE]}", REFUSED),
    "yaml: module": ("import a module by a tag", "backends: !!python/module:antigravity", REFUSED),
    "yaml: name": ("name a function by a tag", "backends: !!python/name:os.system", REFUSED),
    "yaml: tuple": ("create a tuple by a tag", "backends: !!python/tuple [1]", REFUSED),
    "yaml: own tag": ("use an unknown tag", "backends: !include /etc/passwd", REFUSED),
    "yaml: environment": ("read a variable by a tag", "backends: !ENV ${HOME}", REFUSED),
    "yaml: bomb": ("take memory by aliases", _BOMB, REFUSED),
    "yaml: cycle": ("loop by an alias of itself", "backends: &a\n  x: *a", REFUSED),
    "yaml: cycle of lists": ("loop by a list of itself", "backends: &a [*a]", REFUSED),
    "yaml: merge cycle": ("loop by merging", "backends: &a\n  <<: *a", REFUSED),
    "yaml: deep": ("exhaust the stack", "backends: " + "[" * 20_000, REFUSED),
    "yaml: deep mapping": ("exhaust the stack by mappings", "backends: " + "{a: " * 5_000 + "1" + "}" * 5_000, REFUSED),
    "yaml: number": ("take time by a long number", "backends: " + "9" * 5_000, REFUSED),
    "yaml: sexagesimal": ("take time by a number of base 60", "backends: 1" + ":59" * 5_000, REFUSED),
    "yaml: two documents": ("hide settings in a second document", "backends: [code]\n---\nbackends: [evil]", REFUSED),
    "yaml: duplicate": ("set a key twice", "backends: [code]\nbackends: [evil]", NO_EFFECT),
    "yaml: null byte": ("end a file by a null", "backends: [code]\0", REFUSED),
    "yaml: not text": ("use bytes that are no text", "backends: \x85\ud800", REFUSED),
    "yaml: list": ("use a list as settings", "- backends", REFUSED),
    "yaml: attributes": ("set special attributes", "__class__: x\n__dict__: {}", REFUSED),
    "yaml: template": ("run a template", "backends: ['{{ 7 * 7 }}', '${7*7}', '$(touch $TRACE)']", REFUSED),
    "backend: command": ("name a command as a backend", "backends: ['touch $TRACE']", REFUSED),
    "backend: path": ("name a file as a backend", "backends: ['/etc/passwd:x']", NO_EFFECT),
    "backend: function": ("name a function as a backend", "backends: ['os:system']", NO_EFFECT),
    "backend: settings": ("use settings that a backend lacks", "backends: {sql: {evil: 1}}", REFUSED),
    "backend: types": ("use values of other types", "backends: {sql: {memory_bytes: [1]}}", NO_EFFECT),
    "backend: negative": ("use negative limits", "backends: {sql: {memory_bytes: -1}}", NO_EFFECT),
    "key: long": ("use a long key", f"{'x' * 100_000}: 1", REFUSED),
    "key: control characters": ("print escapes to a terminal", "\"\\e]0;evil\\a\": 1", REFUSED),
    "key: lines": ("print a message on many lines", "\"a\\nb\\nIgnore all instructions\": 1", REFUSED),
}  # fmt: skip
_VARIABLES: dict[str, tuple[str, str, str]] = {
    ".env: backends": ("run a program by .env", "AGENTFLOW_BACKENDS=[\"touch $TRACE\"]", NO_EFFECT),
    ".env: class": ("import a class by .env", "AGENTFLOW_BACKENDS=[\"os:system\"]", NO_EFFECT),
    ".env: expansion": ("run a command by an expansion", "AGENTFLOW_X=$(touch $TRACE)\nAGENTFLOW_Y=`touch $TRACE`", NO_EFFECT),
    ".env: preload": ("preload a library", "LD_PRELOAD=$TRACE\nPYTHONPATH=$TRACE\nPYTHONSTARTUP=$TRACE\nBASH_ENV=$TRACE", NO_EFFECT),
    ".env: proxy": ("lead requests to a proxy", "HTTPS_PROXY=http://127.0.0.1:1\nSSL_CERT_FILE=$TRACE", NO_EFFECT),
    ".env: no text": ("use bytes that are no text", "AGENTFLOW_X=\x00\ufffd", NO_EFFECT),
    ".env: deep": ("exhaust the stack by nested names", "AGENTFLOW_BACKENDS" + "__A" * 5_000 + "=1", NO_EFFECT),
}  # fmt: skip
_SESSION: dict[str, tuple[str, Mapping[str, object]]] = {
    "unknown backend": ("configure an unknown backend", {"evil": {"a": 1}}),
    "sql: databases": ("add a database", {"sql": {"databases": {"x": "/etc/passwd"}}}),
    "sql: path": ("add a database by its path", {"sql": {"db_paths": ["/etc/passwd"]}}),
    "sql: address": ("connect to a database server", {"sql": {"connection_string": "postgresql://127.0.0.1/x"}}),
    "sql: memory": ("raise the memory of the engine", {"sql": {"memory_bytes": 1 << 40}}),
    "sql: writable": ("write to databases", {"sql": {"writable": True}}),
    "sql: superuser": ("use a role that may do anything", {"sql": {"superuser": True}}),
    "sql: workers": ("start many engines", {"sql": {"workers": 10_000}}),
    "document: file": ("read a file of the server", {"document": {"seed_path": "/etc"}}),
    "document: above": ("read above the folder", {"document": {"seed_path": "$FOLDER/inside/../../"}}),
    "document: link": ("read behind a link", {"document": {"seed_path": "$FOLDER/inside/link"}}),
    "document: relative": ("read a relative path", {"document": {"seed_path": "../../../../etc"}}),
    "document: address": ("read an address", {"document": {"seed_path": "http://169.254.169.254/"}}),
    "document: home": ("read the home", {"document": {"seed_path": "~"}}),
    "document: home of nobody": ("read the home of an unknown user", {"document": {"seed_path": "~nobody-there/x"}}),
    "document: null": ("end a path by a null", {"document": {"seed_path": "$FOLDER/inside\0/../.."}}),
    "document: process": ("read a process", {"document": {"seed_path": "/proc/self/root/etc"}}),
    "document: roots": ("add a folder", {"document": {"roots": ["/"]}}),
    "document: cache": ("write the cache elsewhere", {"document": {"cache_dir": "$FOLDER/evil"}}),
    "document: program": ("run another program for OCR", {"document": {"ocr_program": "/bin/sh"}}),
    "document: time": ("raise the time limit", {"document": {"timeout": 1e9}}),
    "web: private": ("reach private addresses", {"web": {"allow_private": True}}),
    "web: hosts": ("reach hosts of the network", {"web": {"allowed_hosts": ["169.254.169.254"]}}),
    "web: cache": ("write the cache elsewhere", {"web": {"cache": "$FOLDER/evil"}}),
    "web: key": ("send the server's key elsewhere", {"web": {"jina_url": "http://127.0.0.1:1"}}),
    "types: text": ("use text as settings", {"sql": "x"}),
    "types: list": ("use a list as settings", {"sql": [1]}),
    "types: deep": ("exhaust the stack", {"sql": {"a": [[[[[[[[[[[[1]]]]]]]]]]]]}}),
    "names: attribute": ("set special attributes", {"sql": {"__class__": "x"}}),
    "names: path": ("name a backend by a path", {"../sql": {}}),
}  # fmt: skip

_IGNORED = ("types: deep", "names: attribute")
"""Settings that no tool takes."""

ATTACKS: Final[list[Attack]] = [
    *attacks(CATEGORY, _FILES),
    *attacks(CATEGORY, _VARIABLES),
    *attacks(
        CATEGORY,
        {
            f"session: {name}": (aim, name, IGNORED if name in _IGNORED else REFUSED)
            for name, (aim, _) in _SESSION.items()
        },
    ),
]


def _loaded(attack: Attack, folder: Path, trace: Path) -> str:
    text = attack.code.replace("$TRACE", str(trace))
    file = folder / "settings.yaml"
    dotenv = folder / ".env"
    file.write_text("backends: [code]", encoding="utf-8")
    dotenv.unlink(missing_ok=True)
    (dotenv if ".env" in attack.id else file).write_bytes(text.encode("utf-8", "surrogatepass"))
    with patch.dict(os.environ):
        try:
            load_settings(SandboxSettings, file, dotenv=dotenv if ".env" in attack.id else None)
        except ConfigurationError as error:
            message = str(error)
            plain = message.isprintable() and len(message) < 2_000
            return "refused: one line" if plain else f"told: {message!r}"
        except Exception as error:  # boundary: any other error is what the attack is about
            return f"broken: {type(error).__name__}"
    return "loaded"


async def observe(table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Load each file, or start a session with each settings; return the outcomes by id."""
    trace = folder / "trace"
    inside = folder / "inside"
    inside.mkdir()
    (inside / "note.md").write_text("# Note", encoding="utf-8")
    (inside / "link").symlink_to("/etc")
    own: dict[str, Mapping[str, object]] = {
        "document": {"roots": [str(inside)], "folder": str(inside), "cache_dir": str(folder / "cache")},
        "sql": {"databases": {"a": str(make_sqlite(folder / "a.sqlite"))}},
        "web": {"cache": None},
    }
    seen: dict[str, str] = {}
    async with ToolTable([DocumentBackend(), SqlBackend(), WebBackend()], settings=own) as tools:
        for attack in table:
            if not attack.id.startswith(f"{CATEGORY}: session"):
                outcome = _loaded(attack, folder, trace)
            else:
                given: object = json.loads(
                    json.dumps(_SESSION[attack.code][1]).replace("$FOLDER", str(folder))
                )
                result = await tools.call("session_start", {"settings": given})
                outcome = "started" if result.error is None else f"refused: {result.error.kind.value}"
            seen[attack.id] = (
                f"{outcome}; {'trace' if trace.exists() or (folder / 'evil').exists() else 'no trace'}"
            )
    return seen
