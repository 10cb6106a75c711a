"""Secrets are recognised by name, by place and by form; ordinary settings and texts stay as they are."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from agentflow._arguments import CommandParser
from agentflow._secrets import is_secret_name, mask_data, mask_settings, mask_text, remember_secrets

SECRET_NAMES = [
    "X-Api-Key",
    "Cookie",
    "Set-Cookie",
    "Authorization",
    "AWS_SECRET_ACCESS_KEY",
    "OPENAI_KEY",
    "GITHUB_PAT",
    "DB_PASS",
    "private_key",
    "privateKey",
    "APIKey",
    "apikey",
    "token",
    "access_token",
    "PGPASSWORD",
    "MYSQL_PWD",
    "client_secret",
    "passphrase",
    "X-Amz-Signature",
    "sig",
    "sessionCookie",
]
PLAIN_NAMES = [
    "tokens",
    "max_depth",
    "primary_key",
    "monkey",
    "vm_hotkey",
    "pass_rate",
    "model_name",
    "author",
    "secretary_of",
]


@pytest.mark.promise("secrets:names")
def test_names_of_secrets_are_recognised_and_others_are_not() -> None:
    assert [name for name in SECRET_NAMES if not is_secret_name(name)] == []
    assert [name for name in PLAIN_NAMES if is_secret_name(name)] == []


@pytest.mark.promise("secrets:names")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"env": {"LEVEL": "1", "EMPTY": ""}}, {"env": {"LEVEL": "***", "EMPTY": ""}}),
        ({"headers": {"Accept": SecretStr("text/html")}}, {"headers": {"Accept": "***"}}),
        (
            {"command": ["python", "-m", "x", "--token", "y"]},
            {"command": ["python", "***", "***", "***", "***"]},
        ),
        ({"args": ["--token", "x"]}, {"args": ["***", "***"]}),
        (
            {"url": "https://me:pw@a.example/mcp?page=2&x=1"},
            {"url": "https://me:***@a.example/mcp?page=***&x=***"},
        ),
        ({"url": "https://T0KEN@a.example/x"}, {"url": "https://***@a.example/x"}),
        ({"journal": "postgresql://me:p@w@host/db"}, {"journal": "postgresql://me:***@host/db"}),
        ({"note": "ask ghp_a1b2c3d4e5f6g7h8"}, {"note": "ask ***"}),
        ({"tips": "see https://a.example/?id=3 first"}, {"tips": "see https://a.example/?id=3 first"}),
        (
            {"depth": 3, "tokens": "exact", "folder": Path("a/b")},
            {"depth": 3, "tokens": "exact", "folder": "a/b"},
        ),
        ({"key": "x", "api_key": "", "db_pass": "x"}, {"key": "***", "api_key": "", "db_pass": "***"}),
    ],
)
def test_settings_are_masked_by_name_place_and_form(value: object, shown: object) -> None:
    assert mask_settings(value) == shown


@pytest.mark.promise("secrets:names")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run x --token abcd1 --page 2", "run x --token *** --page 2"),
        ("run --api-key=abcd1", "run --api-key=***"),
        ("DB_PASS=hunter22 DEPTH=12345", "DB_PASS=*** DEPTH=12345"),
        ('{"password": "hunter22", "user": "maria"}', '{"password": "***", "user": "maria"}'),
        ("X-Api-Key: abcd1234", "X-Api-Key: ***"),
        ("Authorization: Bearer abc.def.123", "Authorization: ***"),
        ("got Bearer abc.def.123 there", "got Bearer *** there"),
        ("GET https://a.example/?key=1a2b&page=2", "GET https://a.example/?key=***&page=2"),
        ("AKIAIOSFODNN7EXAMPLE and eyJhbGciOi.eyJzdWIiOi.abc-1", "*** and ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "***"),
        ("max_tokens=4096, primary_key=item_number", "max_tokens=4096, primary_key=item_number"),
        ("api_key: is missing; add it", "api_key: is missing; add it"),
        ("set OPENAI_API_KEY or the setting api_key", "set OPENAI_API_KEY or the setting api_key"),
    ],
)
def test_texts_are_masked_where_they_name_a_secret_or_contain_a_known_form(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@pytest.mark.promise("secrets:names")
def test_remembered_values_disappear_from_texts_and_data_but_ordinary_words_stay() -> None:
    words = {"env": {"REGION_TOKEN": "sunflower", "DATA_KEY": "/srv/data", "OTHER_TOKEN": "s3cret-of-mine"}}
    remember_secrets({**words, "args": ["--password", "an0ther one"]})
    assert mask_data({"a": ["s3cret-of-mine is not sunflower", 1, None]}) == {
        "a": ["*** is not sunflower", 1, None]
    }
    assert mask_text("opened /srv/data with an0ther one") == "opened /srv/data with ***"


@pytest.mark.promise("secrets:arguments")
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--tokn", "s3cret"], "unrecognized arguments: --tokn …"),
        (["--tokn=s3cret"], "unrecognized arguments: --tokn=…"),
        (["--tokn", "--other", "s3cret", "word"], "unrecognized arguments: --tokn --other … word"),
    ],
)
def test_a_misspelt_option_is_refused_without_its_value(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        CommandParser(prog="tool").parse_args(words)
    assert capsys.readouterr().err == f"tool: error: {shown}; see tool --help\n"


@pytest.mark.promise("secrets:arguments")
def test_arguments_of_a_process_are_hidden_from_the_list_of_processes() -> None:
    program = (
        "import sys; from agentflow._secrets import hide_arguments; hide_arguments(sys.argv); "
        "print(open('/proc/self/cmdline').read().replace(chr(0), ' ')); print(sys.argv[2:])"
    )
    words = [
        "--token",
        "s3cret-1",
        "--port",
        "80",
        "--token=s3cret-2",
        "tokens={a: s3cret-3}",
        "api_key=s3cret-4",
        "depth=3",
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, "x", *words], capture_output=True, text=True, check=True
    )
    listed, own = done.stdout.splitlines()
    assert "s3cret" not in listed
    assert "--port 80" in listed and "depth=3" in listed
    assert own == repr(words)
