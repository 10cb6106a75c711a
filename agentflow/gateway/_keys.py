"""Keys of episodes, ids of clients and tokens of roles. Only digests of secrets are stored, and comparisons take constant time."""

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

from agentflow.gateway._types import GatewayError

_KEY = re.compile(r"af_([0-9]{1,15})_([A-Za-z0-9_-]{43})", re.ASCII)
_CLIENT = re.compile(r"c_[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", re.ASCII)


class ClientRole(IntEnum):
    """Rights of a token; each role has those of the roles below it."""

    VIEWER = 1
    """Reads the status and tokens."""
    WORKER = 2
    """Plays episodes."""
    OWNER = 3
    """Offers, scores and uses episodes: the trainer."""


class ClientIdentity(NamedTuple):
    """Sender of a request."""

    role: ClientRole
    """Its role."""
    client: str = ""
    """Its id as a client; empty if the request has none."""

    @property
    def digest(self) -> bytes:
        """Digest of its id, as it is stored with the episodes that it begins."""
        return digest_of(self.client)


def digest_of(secret: str) -> bytes:
    """Return the digest under which a secret is stored."""
    # A header may be in any encoding.
    return sha256(secret.encode(errors="surrogateescape")).digest()


def new_key(page: int) -> tuple[str, bytes]:
    """Return a new key for an agent of an attempt, `af_<attempt>_<256 bit>`, and its digest."""
    key = f"af_{page}_{secrets.token_urlsafe(32)}"
    return key, digest_of(key)


def page_of(key: str) -> int | None:
    """Return the number of the attempt in a key; `None` if it isn't one."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None


def agent_of(key: str, digests: Mapping[str, bytes]) -> str | None:
    """Return the agent whose key this is; `None`: no agent's."""
    sent, found = digest_of(key), None
    for agent, digest in digests.items():
        if hmac.compare_digest(sent, digest):
            found = agent
    return found


def same(one: bytes, other: bytes) -> bool:
    """Compare two digests in constant time."""
    return hmac.compare_digest(one, other)


class ClientIds:
    """Issues and checks ids of clients. An id carries a code of this journal, so that clients can't choose their own."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(self) -> str:
        """Return a new id."""
        name = f"c_{secrets.token_urlsafe(16)}"
        return f"{name}.{self._code(name)}"

    def check(self, client: str) -> str:
        """Return an id that was issued here.

        :raises GatewayError: 401 for any other.
        """
        name, _, code = client.partition(".")
        if not _CLIENT.fullmatch(client) or not hmac.compare_digest(code.encode(), self._code(name).encode()):
            raise GatewayError(
                401,
                "X-AgentFlow-Client: this id was not issued here; leave it out to get one",
                code="unknown_client",
            )
        return client

    def _code(self, name: str) -> str:
        code = hmac.digest(self._secret, name.encode(), "sha256")
        return urlsafe_b64encode(code).rstrip(b"=").decode()


class RoleTokens:
    """Tokens of the roles."""

    def __init__(self, tokens: Mapping[ClientRole, str]) -> None:
        self._digests = {role: digest_of(token) for role, token in tokens.items() if token}

    def role(self, authorization: str | None) -> ClientRole:
        """Return the role of an `Authorization` header.

        :raises GatewayError: 401 without a valid token.
        """
        scheme, _, token = (authorization or "").partition(" ")
        sent, found = digest_of(token.strip()), None
        for role, digest in self._digests.items():
            if hmac.compare_digest(sent, digest):
                found = role
        if found is None or scheme.lower() != "bearer":
            raise GatewayError(
                401,
                "Authorization: no valid token; send `Bearer TOKEN` with the token of a role",
                code="unknown_token",
            )
        return found
