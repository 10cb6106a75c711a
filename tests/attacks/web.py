"""Web: addresses that lead inside, in every notation, by redirects, by names, and in pages of the browser."""

from collections.abc import Iterable

from tests.attacks._table import Attack, attacks
from tests.mcp_servers.browser._browsing import Browsing
from tests.mcp_servers.web._site import Site
from tests.mcp_servers.web._tools import web_tools
from tests.mcp_servers.web.test_reaching import INSIDE, TRICKY

CATEGORY = "web"
REFUSED = "(denied|bad_arguments|not_found); dialled 0"

_MORE = [
    "http://127.127.127.127/", "http://127.0.0.1:22/", "http://0x7f.0x0.0x0.0x1/", "http://0x7F000001/", "http://0177.0.0x0.1/",
    "http://127.000.000.001/", "http://127.0.0.1%00.public.example/", "http://127.0.0.1%2f@public.example/", "http://127.0.0.1%23.public.example/",
    "http://127.0.0.1;public.example/", "http://localhost%00/", "http://localhost:80/", "http://localhost.:6379/", "http://LoCaLhOsT:11211/",
    "http://[::ffff:0:127.0.0.1]/", "http://[0000::1]/", "http://[::1%25lo]/", "http://[::1]:22/", "http://[0:0:0:0:0:ffff:7f00:0001]/",
    "http://[::ffff:169.254.169.254]/", "http://[::ffff:a9fe:a9fe]/", "http://[::169.254.169.254]/", "http://[2002:a9fe:a9fe::]/",
    "http://[64:ff9b:1::7f00:1]/", "http://[2001:0:7f00:1::]/", "http://[fd20:ce::254]/", "http://[fec0::1]/", "http://[2001:db8::1]/",
    "http://[100::1]/", "http://169.254.169.254./", "http://169.254.0xa9fe/", "http://169.16689662/", "http://0xa9.0xfe.0xa9.0xfe/",
    "http://169.254.169.254/latest/api/token", "http://169.254.170.2/v2/credentials", "http://169.254.169.253/", "http://192.0.0.192/opc/v2/instance/",
    "http://192.168.0.1/", "http://192.168.255.255/", "http://10.255.255.255/", "http://172.31.0.1/", "http://172.17.0.1:2375/",
    "http://198.18.0.1/", "http://198.51.100.1/", "http://203.0.113.1/", "http://192.0.2.1/", "http://240.0.0.1/", "http://239.255.255.250:1900/",
    "http://0.0.0.1/", "http://00000.0/", "http://0x0/", "http://1.2.3.4.5/", "http://127.0.0.1 /", "http://127.0.0.1\t/", "http://127.0.0.1\n.public.example/",
    "http:/127.0.0.1/", "http:127.0.0.1/", "http:////127.0.0.1/", "http://@127.0.0.1/", "http://:@127.0.0.1/", "http://public.example:80@127.0.0.1/",
    "http://public.example%40127.0.0.1/", "http://public.example?@127.0.0.1\\/", "https://127.0.0.1/", "HTTPS://LOCALHOST/", "ws://127.0.0.1/",
    "wss://127.0.0.1/", "ssh://127.0.0.1/", "telnet://127.0.0.1/", "ldap://127.0.0.1/", "smb://127.0.0.1/x", "tftp://127.0.0.1/x", "jar:http://127.0.0.1!/",
    "netdoc:///etc/passwd", "file://localhost/etc/passwd", "file:/etc/passwd", "blob:http://127.0.0.1/x", "about:blank", "view-source:http://127.0.0.1/",
    "unix:///var/run/docker.sock", "http+unix://%2Fvar%2Frun%2Fdocker.sock/", "http://xn--/", "http://a.b.c.localhost/", "http://ip6-localhost.localhost/",
]  # fmt: skip


def _table(urls: Iterable[str], kind: str) -> list[Attack]:
    return attacks(CATEGORY, {f"{kind} {url!r}": (f"{kind} {url!r}", url, REFUSED) for url in urls})


_RELATIVE = ("//127.0.0.1/", "http:127.0.0.1/", "http:/127.0.0.1/")
"""Relative to a public page, these stay on its host."""

ATTACKS: list[Attack] = [
    *_table(_MORE, "visit"),
    *_table(
        (url for url in _MORE if url.isprintable() and url.isascii() and url not in _RELATIVE), "redirect"
    ),
]
EXISTING: list[Attack] = attacks(
    CATEGORY, {f"visit {url!r}": (f"visit {url!r}", url, REFUSED) for url in TRICKY}, soak=True
)
"""Addresses that the tests of the tools try, too."""


_OWN_PAGES = ("about:blank", "data:text/html,hello")
"""Addresses of pages that a browser has without a network."""

IN_BROWSER: list[Attack] = attacks(
    CATEGORY,
    {
        f"open {url!r}": (f"open {url!r} in the browser", url, REFUSED)
        for url in dict.fromkeys((*_MORE, *TRICKY))
        if url not in _OWN_PAGES
    },
    soak=True,
)
"""Addresses to open in the browser."""


async def open_in_browser(browsing: Browsing, table: Iterable[Attack]) -> dict[str, str]:
    """Open each address in a browser that may visit one site; return the outcomes by id."""
    seen: dict[str, str] = {}
    for attack in table:
        asked = len(browsing.site.requests)
        result = await browsing.call("navigate", url=attack.code)
        outcome = "opened" if result.error is None else result.error.kind.value
        seen[attack.id] = f"{outcome}; dialled {len(browsing.site.requests) - asked}"
    return seen


async def observe(site: Site, table: Iterable[Attack]) -> dict[str, str]:
    """Visit each address, or a public page that redirects to it; return the outcomes by id."""
    site.names |= INSIDE
    seen: dict[str, str] = {}
    async with web_tools(site) as web:
        for number, attack in enumerate(table):
            url = attack.code
            public = f"public{number}.example"
            if attack.id.startswith(f"{CATEGORY}: redirect"):
                site.add(f"{public}/", status=302, Location=url)
                url = f"http://{public}/"
            before = len(site.dialled)
            result = await web.call("visit", urls=url)
            outcome = "visited" if result.error is None else result.error.kind.value
            dialled = len(site.dialled) - before - (url != attack.code)
            seen[attack.id] = f"{outcome}; dialled {dialled}"
    return seen
