"""Secrets in settings and texts: recognised by name, by place and by form, and replaced by `***`.

Values that were once seen as secrets are remembered by this process and removed from every text that it logs, reports or
takes from a tool or an endpoint, even if these repeat them.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Final, Protocol, TypeGuard
from urllib.parse import quote, unquote

from agentflow._typeguards import is_list, is_list_or_tuple, is_mapping

MASK: Final = "***"
"""Replacement of a secret."""

_SECRET_WORDS: Final = frozenset({
    "secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials", "authorization",
    "cookie", "cookies", "apikey", "apikeys", "apitoken", "accesskey", "privatekey", "secretkey", "authtoken", "sessionid",
    "jwt", "bearer", "webhook", "dsn",
})  # fmt: skip
"""Words that make a name secret wherever they are in it."""
_SECRET_LAST: Final = frozenset({
    "key", "keys", "token", "tokens", "pass", "pat", "pwd", "pw", "auth", "sig", "signature", "sas", "otp", "pin",
})  # fmt: skip
"""Words that make a name secret at its end: `X-Api-Key`, `GITHUB_PAT`, `DB_PASS`."""
_PLAIN_KEYS: Final = frozenset({
    "primary", "foreign", "public", "config", "sort", "hot", "id", "answer", "question", "text", "path", "cache", "vm",
})  # fmt: skip
"""Words before `key` that make it no secret."""
_SECRET_ENDS: Final = ("password", "passwd", "secret", "token", "apikey")
"""Ends of a word that make a name secret: `PGPASSWORD`."""
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

VARIABLES: Final = frozenset({"env", "environment", "env_overrides", "headers", "cookies", "params", "query"})
"""Settings of backends whose values are all masked."""
_ARGUMENTS: Final = frozenset({"args", "arguments", "command"})
"""Settings of backends whose words are all masked, except the name of a command."""

_ADDRESSES: Final = frozenset({"databases", "db_paths", "connection_string", "index_url"})
"""Secret settings that are mostly file names and addresses: only the passwords in them are remembered."""

_USER: Final = re.compile(r"(?<=://)([^/@:\s?#]*):[^/\s]+@")
_USER_ALONE: Final = re.compile(r"(?<=\bhttps://|.\bhttp://)[^/@:\s?#]+@")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
_QUERY: Final = re.compile(r"(://[^\s?#\"'<>]*\?)([^\s#\"'<>]+)")
_FIELD: Final = re.compile(r"([^&;=]+)=([^&;]*)")
_FORMS: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk|gsk|xai|hf|ghp|gho|ghu|ghs|ghr|glpat|dop_v1|npm|pypi|xox[abeprs]|whsec|r8|nvapi|tvly|fc|lsv2)[-_](?=[\w-]*\d)[\w-]{12,}"
    r"|\bgithub_pat_\w{20,}|\bAIza[\w-]{30,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bya29\.[\w-]{16,}|\bSG\.[\w-]{16,}\.[\w-]+"
    r"|\beyJ[\w-]{6,}\.eyJ[\w-]{6,}\.[\w-]+|\b\d{8,10}:AA[\w-]{30,}|(?<=hooks\.slack\.com/services/)[\w/]+",
    re.DOTALL,
)
"""Forms of keys that are recognised without a name."""
_SCHEME: Final = re.compile(
    r"\b(Bearer|Basic|Digest|ApiKey)(\s+)(?=[\w.~+/=-]*[\d.+/=-])[\w.~+/=-]{8,}", re.IGNORECASE
)
_NAMED: Final = re.compile(
    r"(?P<name>--?[A-Za-z][\w-]*)(?P<between>[= ])(?P<value>[^\s\"'&,;-][^\s\"'&,;]{3,})"
    r"|(?P<name2>\b[A-Za-z][\w-]*)(?P<between2>[=])(?P<value2>[^\s\"'&,;)]{4,})"
    r"|(?P<name3>[\"']?\b[A-Za-z][\w-]*[\"']?)(?P<between3>\s*[:=]\s*[\"'])(?P<value3>[^\"'\s]{4,})(?=[\"'])"
    r"|(?P<name4>\b(?:X-[\w-]+|(?:Set-)?Cookie|Proxy-Authorization|Authorization))(?P<between4>:\s*)(?P<value4>[^\n\"']{4,})"
)
"""A name and its value in a text: `--token x`, `DB_PASS=x`, `"password": "x"`, `X-Api-Key: x`."""

_SHORTEST: Final = 8
"""Shorter values are not remembered: they also occur in ordinary text."""
_PATH: Final = re.compile(r"(/[\w.-]{1,24})+/?")
"""Values that are paths are not remembered either."""
_MAX_SECRETS: Final = 1000


class _Secret(Protocol):
    """Pydantic's `SecretStr`, which this module does not load."""

    def get_secret_value(self) -> str: ...


def is_secret_name(name: str) -> bool:
    """Return true for the name of a secret: `X-Api-Key`, `AWS_SECRET_ACCESS_KEY`, `private_key`.

    `tokens` alone is a setting, not a secret.

    >>> [is_secret_name(name) for name in ("OPENAI_KEY", "db_pass", "sessionCookie", "tokens", "primary_key")]
    [True, True, True, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words == ["tokens"]:
        return False
    if not _SECRET_WORDS.isdisjoint(words) or words[-1].endswith(_SECRET_ENDS):
        return True
    return words[-1] in _SECRET_LAST and not (len(words) > 1 and words[-2] in _PLAIN_KEYS)


def mask_settings(value: object, name: str = "") -> object:
    """Return settings with every secret in them as `***`; paths become texts.

    Secrets are `SecretStr` values, entries with names of secrets, passwords and query values of URLs, keys of a known form,
    and all variables, headers and arguments.

    >>> mask_settings({"env": {"LEVEL": "1"}, "url": "https://a.example/mcp?key=1", "depth": 3})
    {'env': {'LEVEL': '***'}, 'url': 'https://a.example/mcp?key=***', 'depth': 3}
    """
    if _is_secret(value):
        return MASK if value.get_secret_value() else ""
    if is_mapping(value):
        if name in VARIABLES:
            return {key: _mask_all(entry) for key, entry in value.items()}
        return {key: mask_settings(entry, key) for key, entry in value.items()}
    if is_list_or_tuple(value):
        if name in _ARGUMENTS and all(isinstance(word, str) for word in value):
            kept = 1 if name == "command" else 0
            return [mask_settings(word) if index < kept else MASK for index, word in enumerate(value)]
        return [mask_settings(entry, name) for entry in value]
    if isinstance(value, str):
        if value and is_secret_name(name):
            return MASK
        return _mask_forms(_mask_urls(value, every_field=_URL.fullmatch(value) is not None))
    return str(value) if isinstance(value, PurePath) else value


def _mask_all(value: object) -> object:
    if is_mapping(value):
        return {key: _mask_all(entry) for key, entry in value.items()}
    text = value.get_secret_value() if _is_secret(value) else value
    return text if text in ("", None) else MASK


def mask_text(text: str) -> str:
    """Return a text of a log or a message with remembered secrets, and everything that looks like one, as `***`.

    >>> mask_text("GET https://me:pw@a.example/x?key=1&page=2 with --token abcd and DB_PASS=abcd")
    'GET https://me:***@a.example/x?key=***&page=2 with --token *** and DB_PASS=***'
    """
    text = mask_remembered(text)
    if "://" in text:
        text = _mask_urls(text, every_field=False)
    text = _NAMED.sub(_mask_named, _SCHEME.sub(rf"\1\2{MASK}", text))
    return _mask_forms(text)


def _mask_urls(text: str, *, every_field: bool) -> str:
    if "://" not in text:
        return text
    text = _USER_ALONE.sub(f"{MASK}@", _USER.sub(rf"\1:{MASK}@", text))

    def mask_fields(match: re.Match[str]) -> str:
        def mask_field(field: re.Match[str]) -> str:
            hidden = field[2] and (every_field or is_secret_name(unquote(field[1])))
            return f"{field[1]}={MASK}" if hidden else field[0]

        return match[1] + _FIELD.sub(mask_field, match[2])

    return _QUERY.sub(mask_fields, text)


def _mask_named(match: re.Match[str]) -> str:
    for kind in ("", "2", "3", "4"):
        if (name := match[f"name{kind}"]) is not None:
            value = match[f"value{kind}"]
            # A number of tokens is no secret.
            plain = (
                name.lower() == "key"
                or value.startswith(MASK)
                or (value.isdigit() and name.lower().endswith("tokens"))
            )
            secret = is_secret_name(name) and not plain
            return f"{name}{match[f'between{kind}']}{MASK}" if secret else match[0]
    return match[0]


def _mask_forms(text: str) -> str:
    return _FORMS.sub(MASK, text)


_remembered: dict[str, None] = {}
"""Secret values seen by this process, the longest first."""


def remember_secrets(value: object, name: str = "") -> None:
    """Remember the secrets in some settings, so that texts of this process never show them.

    Short and plain words are left out: they also occur elsewhere.

    >>> remember_secrets({"headers": {"X-Api-Key": "k3y-of-a-service"}})
    >>> mask_remembered("the service said: k3y-of-a-service is not valid")
    'the service said: *** is not valid'
    """
    forms = {form for secret in _secrets_in(value, name) for form in _written(secret)}
    if new := forms - _remembered.keys():
        kept = sorted([*_remembered, *new][-_MAX_SECRETS:], key=len, reverse=True)
        _remembered.clear()
        _remembered.update(dict.fromkeys(kept))


def has_secrets() -> bool:
    """Return true if this process remembers any secret."""
    return bool(_remembered)


def mask_remembered(text: str) -> str:
    """Return a text with remembered secrets as `***`."""
    for secret in tuple(_remembered):
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def mask_data(data: Mapping[str, object]) -> dict[str, object]:
    """Return JSON data with remembered secrets as `***` in all its texts."""
    return {key: _masked_data(entry) for key, entry in data.items()}


def _masked_data(value: object) -> object:
    if isinstance(value, str):
        return mask_remembered(value)
    if is_mapping(value):
        return {key: _masked_data(entry) for key, entry in value.items()}
    if is_list(value):
        return [_masked_data(entry) for entry in value]
    return value


def _secrets_in(value: object, name: str) -> Iterator[str]:
    """Yield the texts in some settings that are secrets by type, name, place or form."""
    if _is_secret(value):
        yield from _secrets_of(value.get_secret_value(), certain=name not in _ADDRESSES)
    elif is_mapping(value):
        ordinary = name in VARIABLES or name in _ADDRESSES
        for key, entry in value.items():
            if ordinary and _is_secret(entry):
                # The values may be ordinary words, and the names tell.
                yield from _secrets_of(entry.get_secret_value(), certain=is_secret_name(key))
            else:
                yield from _secrets_in(entry, key)
    elif is_list_or_tuple(value):
        before = ""
        for entry in value:
            if isinstance(entry, str) and before.startswith("-"):
                yield from _secrets_of(entry, certain=is_secret_name(before))
            elif isinstance(entry, str) and "=" in entry and not entry.startswith("http"):
                flag, _, text = entry.partition("=")
                yield from _secrets_of(text, certain=is_secret_name(flag))
            else:
                yield from _secrets_in(entry, name)
            before = entry if isinstance(entry, str) else ""
    elif isinstance(value, str):
        yield from _secrets_of(value, certain=is_secret_name(name))


def _secrets_of(text: str, *, certain: bool) -> Iterator[str]:
    """Yield a text if it is certainly a secret, and the secrets inside it."""
    if certain:
        yield text
        scheme, space, rest = text.partition(" ")
        if space and scheme.lower() in ("bearer", "basic", "token", "apikey"):
            yield rest
        if ";" in text or "=" in text:  # a cookie or a connection string
            yield from (part.partition("=")[2] for part in text.split(";"))
    yield from (match[0] for match in _FORMS.finditer(text))
    if "://" in text:
        authority = text.partition("://")[2].partition("/")[0]
        user, at, _ = authority.rpartition("@")
        if at:
            yield user.partition(":")[2] or (user if text.startswith("http") else "")
        for query in _QUERY.finditer(text):
            yield from (field[2] for field in _FIELD.finditer(query[2]) if is_secret_name(unquote(field[1])))


def _written(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in texts, unless it is too short or an ordinary word."""
    for form in (secret.strip(), unquote(secret.strip()), quote(secret.strip(), safe="")):
        words = form.split()
        ordinary = len(words) < 3 and all(
            word.isalpha() and (word.islower() or word.istitle()) for word in words
        )
        if (
            len(form) >= _SHORTEST
            and not ordinary
            and not form.isdigit()
            and MASK not in form
            and not _PATH.fullmatch(form)
        ):
            yield form


def remember_variables(environment: Mapping[str, str]) -> None:
    """Remember the values of variables with names of secrets."""
    remember_secrets({name: value for name, value in environment.items() if is_secret_name(name)})


def hide_arguments(words: Iterable[str]) -> None:
    """Overwrite secrets among the arguments of this process, which every user of the machine can list.

    It works on Linux only. Until it is called they are visible; variables of the environment never are.

    :param words: the arguments, as in `sys.argv`.
    """
    hidden = {word for word in _secret_words(list(words)) if word}
    if not hidden or not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        with open("/proc/self/stat", "rb") as file:
            numbers = file.read().rpartition(b")")[2].split()
        start, end = int(numbers[45]), int(numbers[46])
        command_line = ctypes.string_at(start, end - start)
    except (OSError, IndexError, ValueError):
        return
    for word in hidden:
        encoded = os.fsencode(word)
        position = command_line.find(encoded)
        while position >= 0:
            ctypes.memset(start + position, ord("*"), len(encoded))
            position = command_line.find(encoded, position + 1)


def _secret_words(words: list[str]) -> Iterator[str]:
    """Yield the values of secrets among some arguments: `--token x`, `--token=x`, `api_key=x`, `tokens={…}`."""
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        last = name.rpartition(".")[2]
        if equals and (is_secret_name(last) or last == "tokens" or value[:1] in ("{", "[") or "://" in value):
            yield value
        elif (
            before.startswith("--") and not word.startswith("-") and (is_secret_name(before) or "://" in word)
        ):
            yield word
        before = word


def _is_secret(value: object) -> TypeGuard[_Secret]:
    return hasattr(value, "get_secret_value")
