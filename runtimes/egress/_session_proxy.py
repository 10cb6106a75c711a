"""Network of a session: a proxy that connects to the hosts of its allowlist only."""

import ipaddress

from agentflow.errors import ErrorKind, ToolFailure
from runtimes._protocol import HostRule, NetworkAccess, parse_host_rule
from runtimes.egress._addresses import AddressPolicy, Resolve, plain_host
from runtimes.egress._proxy import EgressProxy

PROXY_PORT = 3128
"""Port of the proxy on the loopback interface of a session's network namespace."""

_SHOWN_RULES = 10


def proxy_environment() -> dict[str, str]:
    """Return the variables by which programs find the session's proxy.

    Example::

        env = {**proxy_environment(), **spec.env}
    """
    url = f"http://127.0.0.1:{PROXY_PORT}"
    env = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url) | {
        "NO_PROXY": "localhost,127.0.0.1,::1"
    }
    # Some programs read only lower-case names, others only upper-case ones. Node.js reads them if told to.
    return {**env, **{name.lower(): value for name, value in env.items()}, "NODE_USE_ENV_PROXY": "1"}


def session_proxy(
    access: NetworkAccess, name: str, *, resolve: Resolve | None = None, used_bytes: int = 0
) -> EgressProxy:
    """Return the proxy of one session.

    Example::

        proxy = session_proxy(NetworkAccess(allow=("example.org",)), "session 1")
        await proxy.start(listener)

    :param name: the session, for the log.
    :param used_bytes: traffic that already counts, of the session that it was forked from.
    """
    rules = [parse_host_rule(pattern) for pattern in access.allow]

    def admit(host: str, port: int) -> None:
        if not any(_matches(rule, host, port) for rule in rules):
            more = ", …" if len(access.allow) > _SHOWN_RULES else ""
            allowed = ", ".join(access.allow[:_SHOWN_RULES]) + more or "nothing"
            raise ToolFailure(
                ErrorKind.DENIED,
                f"{host}:{port} is not allowed: network.allow of this session has {allowed}.",
            )

    policy = AddressPolicy(access.allow_private, setting="network.allow_private")
    proxy = EgressProxy(
        policy,
        admit=admit,
        resolve=resolve,
        max_connections=access.max_connections,
        max_bytes=access.max_bytes,
        name=name,
    )
    proxy.used_bytes = used_bytes
    return proxy


def _matches(rule: HostRule, host: str, port: int) -> bool:
    if not any(port in ports for ports in rule.ports):
        return False
    if rule.host == "*":
        return True
    if rule.host.startswith("*."):
        return host.endswith("." + plain_host(rule.host[2:])) and not _is_address(host)
    return host == plain_host(rule.host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
