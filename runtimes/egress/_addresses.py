"""Address policy for tools that connect to hosts: names are resolved here and the resulting addresses are checked.

Callers must connect to an address that `resolve_public` returned, never to the name: a name may resolve to another
address the next time.
"""

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import anyio

from agentflow.errors import ErrorKind, ToolFailure

IpAddress: TypeAlias = IPv4Address | IPv6Address

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host and port to addresses; raises `OSError` if there are none."""

PORTS = {"http": 80, "https": 443}
RESOLVE_SECONDS = 15

_SEVERE = frozenset({"link-local", "metadata", "multicast", "reserved", "unspecified"})
"""Address kinds that `allow_private` does not permit: the policy must name such a host itself."""

_IPV4 = tuple(
    (ipaddress.ip_network(network), meaning)
    for network, meaning in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.100.100.200/32", "metadata"),
        ("100.64.0.0/10", "shared"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "metadata"),
        ("169.254.169.254/32", "metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_IPV6 = tuple(
    (ipaddress.ip_network(network), meaning)
    for network, meaning in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fd00:ec2::254/128", "metadata"),
        ("fd20:ce::254/128", "metadata"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved"),
        ("3fff::/20", "reserved"),
    )
)
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# IPv6 networks that embed an IPv4 address, and the position of that address in bits from the right.
_CARRIERS = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)
_ISATAP = (0x00005EFE, 0x02005EFE)

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_UNUSABLE = re.compile(r"[\x00-\x20\x7f#/<>?@\\^|%]")


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Hosts that may be connected to besides public addresses."""

    allow_private: bool = False
    """Allow private networks and this machine, but not link-local addresses (cloud metadata)."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that may have any address: `name`, `*.name` or an address, each optionally limited to one port by `:port`."""
    setting: str = "allowed_hosts, allow_private"
    """Settings that allow more, for messages."""

    def names(self, host: str, port: int) -> bool:
        """Return true if `allowed_hosts` names the host."""
        shown = f"[{host}]" if ":" in host else host
        # Only '*' is special in a pattern.
        patterns = [name.lower().replace("[", "[[]").replace("?", "[?]") for name in self.allowed_hosts]
        candidates = (host, shown, f"{shown}:{port}")
        return any(fnmatchcase(candidate, pattern) for pattern in patterns for candidate in candidates)


@dataclass(frozen=True, slots=True)
class Target:
    """Host and port of a URL."""

    host: str
    """The normalized host, without brackets."""
    port: int
    """The port; the scheme's default if the URL names none."""


def http_target(url: str) -> Target:
    """Return the host and port of an http or https URL.

    Example::

        assert http_target("https://example.org/a") == Target("example.org", 443)

    :raises ToolFailure: `bad_arguments` for an invalid URL, `denied` for another scheme or a URL with a user or password.
    """
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{url!r} is not a valid URL: {error}.") from None
    if parts.scheme not in PORTS:
        message = f"{url!r}: only http and https addresses can be opened."
        raise ToolFailure(ErrorKind.DENIED, message)
    if "@" in parts.netloc:
        # The part before '@' is not repeated, because messages are logged and read by models.
        host = parts.netloc.rpartition("@")[2]
        message = f"an address with a user or password is refused; leave out the part before {'@' + host!r}."
        raise ToolFailure(ErrorKind.DENIED, message)
    if "\\" in url or not parts.hostname:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{url!r} is not a URL with a host.")
    return Target(plain_host(parts.hostname), PORTS[parts.scheme] if port is None else port)


async def resolve_public(
    host: str, port: int, policy: AddressPolicy, *, resolve: Resolve | None = None
) -> list[str]:
    """Return the addresses of a host that may be connected to, in resolver order; never an empty list.

    Example::

        for address in await resolve_public("example.org", 443, AddressPolicy()):
            ...

    If one of the host's addresses is not allowed, the host is refused: it must not resolve to an allowed address only sometimes.

    :raises ToolFailure: `denied` by the policy, `not_found` without addresses, `bad_arguments` for an invalid host.
    """
    host = plain_host(host)
    named = policy.names(host, port)
    allowed: list[str] = []
    for text in await _addresses_of(host, port, resolve or _ask):
        address = ipaddress.ip_address(text.partition("%")[0])
        meaning = unusual(address)
        if meaning is not None and not named and (not policy.allow_private or meaning in _SEVERE):
            where = f"{host} ({address})" if host != str(address) else host
            kind = f"is a {meaning} address" if meaning != "unspecified" else "is the unspecified address"
            message = f"{where} {kind}, which the settings don't allow ({policy.setting})."
            raise ToolFailure(ErrorKind.DENIED, message)
        allowed.append(text)
    return list(dict.fromkeys(allowed))


def unusual(address: IpAddress) -> str | None:
    """Return the kind of an address outside the public internet (`loopback`, `private`, `metadata`, …); `None` if public.

    Example::

        assert unusual(ip_address("10.0.0.1")) == "private"
    """
    if isinstance(address, IPv6Address):
        inner = _carried(address)
        if inner is not None:
            return unusual(inner)
        meaning = _meaning(address, _IPV6)
        return meaning or (None if address in _GLOBAL_IPV6 else "reserved")
    return _meaning(address, _IPV4)


def plain_host(host: str) -> str:
    """Normalize a host as browsers do, for comparison and resolution.

    Example::

        assert plain_host("EXAMPLE.org.") == "example.org" and plain_host("0x7f000001") == "127.0.0.1"

    :raises ToolFailure: `bad_arguments` for an invalid host.
    """
    plain = unquote(host).strip("[]") if host.startswith("[") else unquote(host)
    plain = unicodedata.normalize("NFKC", plain).replace("。", ".").lower()
    zone_free = plain.partition("%")[0]
    try:
        return str(ipaddress.IPv6Address(zone_free))
    except ValueError:
        pass
    number = _as_ipv4(plain)
    if number is not None:
        return number
    plain = plain.removesuffix(".")
    try:
        plain = plain.encode("idna").decode() if not plain.isascii() else plain
        if "xn--" in plain:
            plain.encode().decode("idna")
    except UnicodeError:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{host!r} is not a valid host name.") from None
    if not plain or len(plain) > 253 or ":" in plain or _UNUSABLE.search(plain):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{host!r} is not a valid host name.")
    return plain


def _as_ipv4(host: str) -> str | None:
    """Return an IPv4 address in any spelling (`127.1`, `0x7f000001`, `0177.0.0.1`) as dotted decimals; `None` for a name."""
    parts = host.removesuffix(".").split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None
    try:
        numbers = [_number(part) for part in parts]
        *bytes_, rest = numbers
        if len(parts) > 4 or any(number > 255 for number in bytes_) or rest >= 256 ** (5 - len(parts)):
            raise ValueError
    except ValueError:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{host!r} is not a valid address.") from None
    value = rest + sum(number << (24 - 8 * index) for index, number in enumerate(bytes_))
    return str(IPv4Address(value))


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    if not text.isdecimal() or not text.isascii():
        raise ValueError(text)
    return int(text, 8) if text.startswith("0") and len(text) > 1 else int(text)


def _carried(address: IPv6Address) -> IPv4Address | None:
    value = int(address)
    for network, shift in _CARRIERS:
        if address in network:
            return IPv4Address(value >> shift & 0xFFFFFFFF)
    if (value >> 32) & 0xFFFFFFFF in _ISATAP:
        return IPv4Address(value & 0xFFFFFFFF)
    # IPv4-compatible IPv6 address, the deprecated form `::a.b.c.d`.
    return IPv4Address(value) if 0xFFFF < value <= 0xFFFFFFFF else None


def _meaning(
    address: IpAddress, networks: tuple[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str], ...]
) -> str | None:
    return next((meaning for network, meaning in networks if address in network), None)


async def _addresses_of(host: str, port: int, resolve: Resolve) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    if host == "localhost" or host.endswith(".localhost"):
        return ["127.0.0.1"]
    try:
        with anyio.fail_after(RESOLVE_SECONDS):
            addresses = await resolve(host, port)
    except (OSError, UnicodeError) as error:
        reason = "the name service does not answer" if isinstance(error, TimeoutError) else "no such host"
        raise ToolFailure(ErrorKind.NOT_FOUND, f"{host} has no address: {reason}.") from None
    if not addresses:
        raise ToolFailure(ErrorKind.NOT_FOUND, f"{host} has no address: no such host.")
    return addresses


async def _ask(host: str, port: int) -> list[str]:
    answers = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in answers]
