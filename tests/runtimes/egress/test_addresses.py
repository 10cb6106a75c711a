"""Address policy of tools that connect to hosts."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ToolFailure
from runtimes.egress import AddressPolicy, Resolve, http_target, resolve_public, unusual

NAMES = {
    "example.com": ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"],
    "inside.example.com": ["10.1.2.3"],
    "now-and-then.example.com": ["93.184.216.34", "127.0.0.1"],
    "metadata.google.internal": ["169.254.169.254"],
    "scoped.example.com": ["fe80::1%eth0"],
}


def names_of(names: dict[str, list[str]]) -> Resolve:
    async def resolve(host: str, port: int) -> list[str]:
        if host not in names:
            raise OSError("Name or service not known")
        return names[host]

    return resolve


async def refused(url: str, policy: AddressPolicy | None = None) -> str:
    """Return the kind of failure with which a URL is refused."""
    with pytest.raises(ToolFailure) as failure:
        target = http_target(url)
        await resolve_public(target.host, target.port, policy or AddressPolicy(), resolve=names_of(NAMES))
    assert "\n" not in failure.value.message
    return failure.value.kind.value


@pytest.mark.promise("addresses:private")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.0.0.1:8080/",
        "http://127.8.9.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://127.0.0.1./",
        "http://%31%32%37.0.0.1/",
        "http://①②⑦.0.0.1/",
        "http://127。0。0。1/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://any.localhost/",
        "http://0/",
        "http://0.0.0.0/",
        "http://[::]/",
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[::ffff:0:10.0.0.1]/",
        "http://[64:ff9b::10.0.0.1]/",
        "http://[64:ff9b:1::a00:1]/",
        "http://[2002:a00:1::]/",
        "http://[2002:7f00:1::1]/",
        "http://[2001:0:53aa:64c:0:7f9c:f5ff:fffe]/",
        "http://[2606:2800::5efe:192.168.0.1]/",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[fc00::1]/",
        "http://[fd00:ec2::254]/",
        "http://[fec0::1]/",
        "http://[ff02::1]/",
        "http://[2001:db8::1]/",
        "http://[100::1]/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://172.31.255.255/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
        "http://169.254.169.254/latest/meta-data/",
        "http://0xa9fea9fe/",
        "http://192.0.0.192/",
        "http://198.18.0.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://240.0.0.1/",
        "http://inside.example.com/",
        "http://now-and-then.example.com/",
        "http://metadata.google.internal/",
        "http://scoped.example.com/",
        "http://example.com@127.0.0.1/",
        "http://user:word@example.com/",
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://example.com/",
        "javascript:alert(1)",
        "view-source:http://example.com/",
        "chrome://settings",
    ],
)
async def test_every_route_to_a_non_public_address_is_refused(url: str) -> None:
    assert await refused(url) == "denied"


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///x",
        "http://[::1",
        "http://1.2.3.4.5/",
        "http://0x7g.1.1.256/",
        "http://a b/",
        "http://h:99999/",
        "http://xn--/",
    ],
)
async def test_an_invalid_address_is_a_bad_argument(url: str) -> None:
    assert await refused(url) == "bad_arguments"


async def test_an_unknown_name_is_not_found() -> None:
    assert await refused("http://nowhere.example.com/") == "not_found"


@pytest.mark.promise("addresses:public")
async def test_public_hosts_are_resolved_to_the_addresses_to_connect_to() -> None:
    public = AddressPolicy()
    resolve = names_of(NAMES)
    assert await resolve_public("Example.COM.", 443, public, resolve=resolve) == NAMES["example.com"]
    assert await resolve_public("93.184.216.34", 80, public, resolve=resolve) == ["93.184.216.34"]
    assert await resolve_public("[2606:2800:220:1::1]", 80, public, resolve=resolve) == ["2606:2800:220:1::1"]
    mapped = await resolve_public("::ffff:93.184.216.34", 80, public, resolve=resolve)
    assert mapped == ["::ffff:5db8:d822"]


@pytest.mark.promise("addresses:rebinding")
async def test_a_name_is_checked_again_at_every_resolution() -> None:
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    assert await resolve_public("rebind.example.com", 80, AddressPolicy(), resolve=resolve)
    with pytest.raises(ToolFailure, match="loopback"):
        await resolve_public("rebind.example.com", 80, AddressPolicy(), resolve=resolve)


@pytest.mark.promise("addresses:allowed")
async def test_a_policy_allows_hosts_by_name_and_private_networks_as_a_whole() -> None:
    async def passes(host: str, port: int, policy: AddressPolicy) -> bool:
        try:
            return bool(await resolve_public(host, port, policy, resolve=names_of(NAMES)))
        except ToolFailure:
            return False

    by_name = AddressPolicy(allowed_hosts=("127.0.0.1:8080", "*.example.com", "[::1]:80", "localhost"))
    assert await passes("127.0.0.1", 8080, by_name)
    assert await passes("0x7f.1", 8080, by_name)
    assert not await passes("127.0.0.1", 80, by_name)
    assert not await passes("127.0.0.2", 8080, by_name)
    assert await passes("inside.example.com", 80, by_name)
    assert await passes("::1", 80, by_name)
    assert not await passes("::1", 81, by_name)
    assert await passes("localhost", 1, by_name)
    assert not await passes("localhost.example.org", 1, by_name)
    private = AddressPolicy(allow_private=True)
    assert await passes("127.0.0.1", 80, private)
    assert await passes("inside.example.com", 80, private)
    assert not await passes("169.254.169.254", 80, private)
    assert not await passes("metadata.google.internal", 80, private)
    assert not await passes("0.0.0.0", 80, private)
    assert await passes("169.254.169.254", 80, AddressPolicy(allowed_hosts=("169.254.169.254",)))


@pytest.mark.promise("addresses:private")
@given(st.ip_addresses())
def test_no_address_that_the_standard_library_calls_private_passes(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert unusual(address) is not None


@given(st.ip_addresses(v=4), st.sampled_from(["{}.{}.{}.{}", "0x{:x}.0{:o}.{}.{}", "{}.{}.{}.0x{:x}"]))
def test_every_spelling_of_an_address_means_the_same(address: ipaddress.IPv4Address, spelling: str) -> None:
    written = spelling.format(*address.packed)
    assert http_target(f"http://{written}/").host == str(address)
    assert http_target(f"http://{int(address)}/").host == str(address)
