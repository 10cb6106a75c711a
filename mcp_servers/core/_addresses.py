"""Which addresses tools may connect to: names are resolved here, and what they resolve to is judged, not how it is written.

Who connects must connect to an address that `resolve_public` returned, never to the name: a name may resolve to
something else the next time.
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

__all__ = ["AddressPolicy", "Resolve", "Target", "http_target", "resolve_public", "unusual"]

IpAddress: TypeAlias = IPv4Address | IPv6Address

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Asks the name service: host and port to addresses; raises `OSError` where there are none."""

PORTS = {"http": 80, "https": 443}
RESOLVE_SECONDS = 15

_SEVERE = frozenset({"link-local", "metadata", "multicast", "reserved", "unspecified"})
"""What nobody means by a private network: only a host named by itself in the policy may be there."""

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
# Networks of IPv6 that carry an IPv4 address: what is reached is the address inside, at that bit from the right.
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
    """What besides public addresses may be connected to."""

    allow_private: bool = False
    """Private networks and this machine itself may be reached; link-local ones (cloud metadata) still not."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that may have any address: `name`, `*.name` or an address, each with `:port` for that port alone."""

    def names(self, host: str, port: int) -> bool:
        """The host is named in `allowed_hosts`."""
        shown = f"[{host}]" if ":" in host else host
        return any(
            fnmatchcase(candidate, pattern.lower())
            for pattern in map(_escaped, self.allowed_hosts)
            for candidate in (host, shown, f"{shown}:{port}")
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads."""

    host: str
    """The host in its plain form, without brackets."""
    port: int
    """The port, that of the scheme if the URL names none."""


def http_target(url: str) -> Target:
    """Host and port of a URL of the web.

    :raises ToolFailure: `bad_arguments` for what is no URL, `denied` for another scheme or a URL with a user or password.
    """
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{url!r} is no URL: {error}.") from None
    if parts.scheme not in PORTS:
        message = f"{url!r}: only http and https addresses can be opened."
        raise ToolFailure(ErrorKind.DENIED, message)
    if "@" in parts.netloc:
        # What stands before '@' is not repeated: messages are read by models and logged.
        host = parts.netloc.rpartition("@")[2]
        message = (
            f"an address with a user or password in it is refused; leave out what is before {'@' + host!r}."
        )
        raise ToolFailure(ErrorKind.DENIED, message)
    if "\\" in url or not parts.hostname:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{url!r} is no URL of a host.")
    return Target(plain_host(parts.hostname), PORTS[parts.scheme] if port is None else port)


async def resolve_public(
    host: str, port: int, policy: AddressPolicy, *, resolve: Resolve | None = None
) -> list[str]:
    """The addresses of a host that may be connected to, in the order of the name service; never an empty list.

    If one of its addresses is not allowed, none is: a name must not lead to a public place now and then.

    :raises ToolFailure: `denied`, if the policy doesn't allow them; `not_found`, if there are none; `bad_arguments` for what is no host.
    """
    host = plain_host(host)
    named = policy.names(host, port)
    found: list[str] = []
    for text in await _addresses_of(host, port, resolve or _ask):
        address = ipaddress.ip_address(text.partition("%")[0])
        meaning = unusual(address)
        if meaning is not None and not named and (not policy.allow_private or meaning in _SEVERE):
            where = f"{host} ({address})" if host != str(address) else host
            kind = f"is a {meaning} address" if meaning != "unspecified" else "is no address of anybody"
            message = f"{where} {kind}, which the settings don't allow (allowed_hosts, allow_private)."
            raise ToolFailure(ErrorKind.DENIED, message)
        found.append(text)
    return list(dict.fromkeys(found))


def unusual(address: IpAddress) -> str | None:
    """What an address is if it is none of the public internet: `loopback`, `private`, `metadata`, …"""
    if isinstance(address, IPv6Address):
        inner = _carried(address)
        if inner is not None:
            return unusual(inner)
        meaning = _meaning(address, _IPV6)
        return meaning or (None if address in _GLOBAL_IPV6 else "reserved")
    return _meaning(address, _IPV4)


def plain_host(host: str) -> str:
    """A host in the one form in which it is compared and resolved: as browsers understand it.

    :raises ToolFailure: `bad_arguments`, if it is none.
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
    except UnicodeError:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{host!r} is no name of a host.") from None
    if not plain or len(plain) > 253 or ":" in plain or _UNUSABLE.search(plain):
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{host!r} is no name of a host.")
    return plain


def _as_ipv4(host: str) -> str | None:
    """An IPv4 address in any of its spellings (`127.1`, `0x7f000001`, `0177.0.0.1`), as dotted decimals."""
    parts = host.removesuffix(".").split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None
    try:
        numbers = [_number(part) for part in parts]
        *bytes_, rest = numbers
        if len(parts) > 4 or any(number > 255 for number in bytes_) or rest >= 256 ** (5 - len(parts)):
            raise ValueError
    except ValueError:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{host!r} is no address.") from None
    value = rest + sum(number << (24 - 8 * place) for place, number in enumerate(bytes_))
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
    # The old way to write an IPv4 address as one of IPv6, `::a.b.c.d`.
    return IPv4Address(value) if 0xFFFF < value <= 0xFFFFFFFF else None


def _meaning(
    address: IpAddress, networks: tuple[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str], ...]
) -> str | None:
    return next((meaning for network, meaning in networks if address in network), None)


def _escaped(pattern: str) -> str:
    """A pattern in which only '*' has a meaning."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


async def _addresses_of(host: str, port: int, resolve: Resolve) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    if host == "localhost" or host.endswith(".localhost"):
        return ["127.0.0.1"]
    try:
        with anyio.fail_after(RESOLVE_SECONDS):
            found = await resolve(host, port)
    except (OSError, UnicodeError) as error:
        reason = "the name service does not answer" if isinstance(error, TimeoutError) else "no such host"
        raise ToolFailure(ErrorKind.NOT_FOUND, f"{host} has no address: {reason}.") from None
    if not found:
        raise ToolFailure(ErrorKind.NOT_FOUND, f"{host} has no address: no such host.")
    return found


async def _ask(host: str, port: int) -> list[str]:
    answers = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in answers]
