"""Forty kinds of secrets, and the places of a run's settings where a user puts them."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final


def _value(number: int) -> str:
    """Return a text that no other file contains by chance."""
    return f"pLanted{number:02d}x" + base64.b32encode(number.to_bytes(2, "big") * 5).decode().lower()


_NAMES: Final = {
    "env": (
        "AWS_SECRET_ACCESS_KEY", "OPENAI_KEY", "GITHUB_PAT", "DB_PASS", "private_key", "PGPASSWORD", "SLACK_BOT_TOKEN",
        "STRIPE_SECRET", "NPM_AUTH", "VAULT_PASSPHRASE", "SESSION_COOKIE", "GOOGLE_CREDENTIALS",
    ),
    "headers": (
        "X-Api-Key", "Cookie", "Authorization", "Proxy-Authorization", "X-Auth-Token", "X-Amz-Security-Token",
        "X-Goog-Api-Key",
    ),
    "query": ("key", "token", "sig", "api_key", "access_token", "X-Amz-Signature"),
    "args": ("--token", "--api-key", "--password", "--client-secret", "--auth"),
    "settings": ("api_key", "verifier_model.api_key", "sandbox_token", "serper_api_key", "jina_api_key"),
    "address": ("user info of a URL", "password of a DSN", "password of a Redis URL"),
    "process": ("ANTHROPIC_API_KEY", "HF_TOKEN"),
}  # fmt: skip
SECRETS: Final = {
    (place, name): _value(number)
    for number, (place, name) in enumerate((place, name) for place, names in _NAMES.items() for name in names)
}
"""Values by place and name."""


def planted(place: str) -> dict[str, str]:
    """Return the values of one place, by name."""
    return {name: value for (where, name), value in SECRETS.items() if where == place}


def server_settings(program: Path, python: str) -> dict[str, object]:
    """Return settings of two external servers, one with variables and arguments, and one with headers and a query."""
    args, address = planted("args"), planted("address")
    words = [
        word
        for name, value in args.items()
        for word in ([name, value] if len(name) % 2 else [f"{name}={value}"])
    ]
    query = "&".join(f"{name}={value}" for name, value in planted("query").items())
    headers = planted("headers")
    headers["Authorization"] = f"Bearer {headers['Authorization']}"
    headers["Cookie"] = f"session={headers['Cookie']}; theme=dark"
    return {
        "local": {
            "command": [python, "-I", "-S", str(program)],
            "args": [*words, f"redis://:{address['password of a Redis URL']}@127.0.0.1:6379/0"],
            "env": planted("env"),
        },
        "remote": {
            "url": f"http://me:{address['user info of a URL']}@127.0.0.1:9/mcp?{query}",
            "headers": headers,
            "required": False,
            "start_seconds": 1,
        },
    }


def database_settings(folder: Path) -> Mapping[str, object]:
    """Return settings of a database with a password."""
    return {
        "databases": {"shop": f"postgresql://me:{planted('address')['password of a DSN']}@127.0.0.1:9/shop"}
    }


PROGRAM: Final = """
import json, os, sys

def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        say({"id": asked["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
             "serverInfo": {"name": "leaky", "version": "1"}}})
    elif asked.get("method") == "tools/list":
        tool = {"name": "look", "description": "Look something up.",
                "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}}}
        say({"id": asked["id"], "result": {"tools": [tool]}})
    elif asked.get("method") == "tools/call":
        words = "it can't be found with " + json.dumps(dict(os.environ)) + " and " + " ".join(sys.argv[1:])
        say({"id": asked["id"], "result": {"content": [{"type": "text", "text": words}], "isError": True}})
    elif "id" in asked:
        say({"id": asked["id"], "error": {"code": -32601, "message": "unknown"}})
"""
"""An external server whose only tool fails with everything that it was started with."""
