"""State of a page's scripts, which a reload loses: variables, connections, media and workers."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_servers.browser._page_actions import DevToolsMethods, devtools_session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from playwright.async_api import Page

T = TypeVar("T")
MAX_SCRIPT_MS = 2_000
# `%s` is an object of the variables declared by `let`, `const` and `class`, which are no properties of the window.
_VARIABLES = """(lexical => {
  const hash = text => {
    let sum = 0;
    for (let index = 0; index < text.length; index++)
      sum = Math.imul(sum, 31) + text.charCodeAt(index) | 0;
    return sum;
  };
  const seen = new Map();
  let budget = 20000;
  const written = value => {
    if (typeof value === 'function')
      return Function.prototype.toString.call(value).slice(0, 10000);
    if (typeof value !== 'object' || value === null)
      return typeof value + String(value).slice(0, 100000);
    if (value instanceof Node)
      return value.nodeName;
    if (seen.has(value))
      return '#' + seen.get(value);
    if (--budget < 0)
      return '';
    seen.set(value, seen.size);
    if (value instanceof Date)
      return 'date' + value.getTime();
    const parts = value instanceof Map || value instanceof Set ? [...value].map(written) : [];
    if (!(value instanceof EventTarget))
      for (const [name, property] of Object.entries(Object.getOwnPropertyDescriptors(value)))
        if ('value' in property)
          parts.push(name + ':' + written(property.value));
    return Object.prototype.toString.call(value) + '{' + parts.join() + '}';
  };
  const variables = Object.entries(Object.getOwnPropertyDescriptors(window))
    .filter(([, property]) => 'value' in property && property.value !== window)
    .map(([name, property]) => [name, property.value]);
  return [...variables, ...Object.entries(lexical)].map(([name, value]) => [name, hash(written(value))]);
})({%s})"""
# Searched in the heap, because a page needs no variable to keep a connection open.
_CONNECTIONS = """function() {
  const described = target => {
    if (target instanceof WebSocket && target.readyState <= 1)
      return 'the open WebSocket to ' + target.url;
    if (target instanceof EventSource && target.readyState <= 1)
      return 'the open EventSource to ' + target.url;
    if (target instanceof RTCPeerConnection && target.signalingState !== 'closed' && target.localDescription)
      return 'a WebRTC connection';
    if (target instanceof HTMLMediaElement && (!target.paused || target.currentTime))
      return `${target.paused ? 'paused' : 'playing'} media at ${target.currentTime.toFixed(1)} s of ${target.currentSrc || 'a stream'}`;
    if (target instanceof AudioContext && target.state === 'running')
      return 'a running AudioContext';
    if (target instanceof SharedWorker)
      return 'a connection to a shared worker';
    return '';
  };
  const lines = [];
  // A playing element of the document need not be an object of the scripts' heap.
  for (const target of new Set([...this, ...document.querySelectorAll('audio, video')])) {
    try {
      lines.push(described(target));
    } catch {
      // Prototypes of subclasses are instances, too, without a state.
    }
  }
  return lines.filter(line => line);
}"""


async def script_variables(page: Page) -> Counter[tuple[str, int]]:
    """Return the global variables of all frames: the name and a hash of the value, which follows plain objects."""

    async def read(ask: DevToolsMethods, context: int) -> list[tuple[str, int]]:
        names = (await ask("Runtime.globalLexicalScopeNames", executionContextId=context))["names"]
        answer = await ask(
            "Runtime.evaluate",
            expression=_VARIABLES % ",".join(names),
            contextId=context,
            returnByValue=True,
            timeout=MAX_SCRIPT_MS,
        )
        return [(name, value) for name, value in answer["result"].get("value", ())]

    return Counter(await _in_contexts(page, read))


async def connections(page: Page) -> list[str]:
    """Return one line for each open connection, medium in use and worker of all frames."""

    async def read(ask: DevToolsMethods, context: int) -> list[str]:
        prototype = await ask("Runtime.evaluate", expression="EventTarget.prototype", contextId=context)
        targets = await ask("Runtime.queryObjects", prototypeObjectId=prototype["result"]["objectId"])
        answer = await ask(
            "Runtime.callFunctionOn",
            functionDeclaration=_CONNECTIONS,
            objectId=targets["objects"]["objectId"],
            returnByValue=True,
        )
        return answer["result"].get("value", [])

    return [f"the worker {worker.url}" for worker in page.workers] + await _in_contexts(page, read)


async def _in_contexts(page: Page, read: Callable[[DevToolsMethods, int], Awaitable[list[T]]]) -> list[T]:
    """Read from each context in which the page's own scripts run."""
    from playwright.async_api import Error

    results: list[T] = []
    for target in (page, *page.frames[1:]):
        contexts: list[dict[str, Any]] = []
        # A frame that shares the page's process has no session, and a frame that is navigating has no state.
        with contextlib.suppress(Error):
            async with devtools_session(
                target, {"Runtime.executionContextCreated": _add_to(contexts)}
            ) as ask:
                await ask("Runtime.enable")
                for context in contexts:
                    if context["auxData"]["isDefault"]:
                        results += await read(ask, context["id"])
    return results


def _add_to(contexts: list[dict[str, Any]]) -> Callable[[dict[str, Any]], None]:
    return lambda event: contexts.append(event["context"])
