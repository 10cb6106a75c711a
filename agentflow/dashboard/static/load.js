// One function `load(path)` for live pages and bundles, and news of a run in progress.
"use strict";
{
  const app = globalThis.agentflow;
  const given = new Map(); // Bundle: answers by path.
  const loading = new Map(); // Bundle: chunk file -> promise.

  // Requests bring the secret of the viewer as a header, which goes nowhere by itself as a cookie would. The token of a link is behind
  // `#`: it is taken out of the address and exchanged for the secret, which the browser keeps for this origin.
  let secret = null, exchange = Promise.resolve();
  app.takeLink = () => {
    const token = app.bundle ? null : new URLSearchParams(location.hash.slice(1)).get("token");
    if (!token) return;
    app.replace(location.pathname + location.search);
    exchange = fetch("/api/session", { method: "POST", credentials: "omit", headers: { authorization: `Bearer ${token}` } })
      .then(async (answer) => answer.ok && app.kept("secret", (secret = (await answer.json()).secret)))
      .catch(() => {});
  };

  const request = async (path, options = {}) => {
    await exchange;
    const authorization = `Bearer ${app.kept("secret") ?? secret ?? ""}`;
    return fetch(`/api/${path}`, { ...options, credentials: "omit", headers: { ...options.headers, authorization } });
  };

  // Answer of a path, with its refusal as an error of one line.
  app.request = async (path, options) => {
    const answer = await request(path, options).catch(() => {
      throw new Error("The viewer does not answer. Start `agentflow view` again and reload the page.");
    });
    if (answer.ok) return answer;
    const body = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(body.error ?? `The viewer refused this (status ${answer.status}).`), { status: answer.status });
  };

  const script = (file) => {
    if (!loading.has(file)) {
      loading.set(file, new Promise((resolve, reject) => {
        const tag = document.createElement("script");
        tag.src = file;
        tag.onload = () => (tag.remove(), resolve());
        tag.onerror = () => reject(new Error(`${file} is missing in this bundle.`));
        document.head.append(tag);
      }));
    }
    return loading.get(file);
  };

  const chunkOf = (path) => {
    let low = 0, high = app.chunks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (app.chunks[middle][0] <= path) low = middle + 1;
      else high = middle;
    }
    return low ? app.chunks[low - 1][1] : null;
  };

  const bundled = async (path) => {
    const file = given.has(path) ? null : chunkOf(path);
    if (file) await script(file);
    if (given.has(path)) return given.get(path);
    throw Object.assign(new Error("This bundle does not contain it."), { status: 404 });
  };

  // A path loads; an object is what a chunk of a bundle gives.
  app.load = (what) => {
    if (typeof what === "string") return app.bundle ? bundled(what) : app.request(what).then((answer) => answer.json());
    for (const [path, json] of Object.entries(what)) given.set(path, json);
    return undefined;
  };

  // Path with parameters in the given order; those without a value are left out.
  app.path = (base, query = {}) => {
    const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    return base + (pairs.length ? "?" + pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&") : "");
  };
  app.runPath = (run, rest = "", query = {}) => app.path(`r/${encodeURIComponent(run)}${rest && "/" + rest}`, query);
  app.seedPath = (run, seed, rest, query = {}) => app.runPath(run, `s/${encodeURIComponent(seed)}/${rest}`, query);

  // Images and files: an address can't bring the secret, so their bytes are fetched. Images are fetched when they come into sight.
  const IMAGES = { "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp" };
  const KEPT = 200; // Images whose bytes stay in memory.
  const images = new Map();
  const fetched = async (path) => URL.createObjectURL(await (await app.request(path)).blob());
  const sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) sight.unobserve(target), target.dispatchEvent(new Event("sight"));
  }, { rootMargin: "100%" });
  app.image = (run, digest, mime, alt) => {
    if (!Object.hasOwn(IMAGES, mime) || !/^[0-9a-f]{16,128}$/.test(digest)) return null;
    if (app.bundle) return app.el("img", { src: `blobs/${digest}.${IMAGES[mime]}`, alt, loading: "lazy", decoding: "async" });
    const image = app.el("img", { alt, decoding: "async" }), path = app.runPath(run, `blob/${digest}`);
    image.addEventListener("sight", async () => {
      if (!images.has(path)) images.set(path, fetched(path));
      try {
        image.src = await images.get(path);
      } catch {
        images.delete(path);
        image.dispatchEvent(new Event("error"));
      }
      for (const [old, address] of images) if (images.size > KEPT) images.delete(old), address.then(URL.revokeObjectURL, () => {});
    });
    sight.observe(image);
    return image;
  };
  app.save = async (path, name) => {
    const address = await fetched(path);
    app.el("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  };

  // All answers of a bundle, chunk by chunk: its search.
  app.everything = async function* () {
    for (const [, file] of app.chunks) await script(file), yield* given.entries();
  };

  // Pages of seeds, 200 each. A bundle holds only pages without a filter, so the filter is applied here.
  app.seedPage = async (run, after, filter = {}) => {
    if (!app.bundle) return app.load(app.runPath(run, "seeds", { after, text: filter.text, state: filter.state }));
    const page = await app.load(app.runPath(run, "seeds", { after }));
    const text = (filter.text ?? "").toLowerCase();
    const fits = (seed) => (!filter.state || seed.state === filter.state) && `${seed.id} ${seed.text} ${seed.answer}`.toLowerCase().includes(text);
    return Object.assign(page.filter(fits), { last: page.length === 200 ? page.at(-1).id : null });
  };

  app.allSeeds = async (run, filter = {}, limit = 20000) => {
    const seeds = [];
    for (let after = ""; after !== null && seeds.length < limit; ) {
      const page = await app.seedPage(run, after, filter);
      seeds.push(...page);
      after = page.last !== undefined ? page.last : page.length === 200 ? page.at(-1).id : null;
    }
    return seeds;
  };

  // News of a run. `tell` gets the changes. A lost connection is opened again and continues at the last cursor.
  // A run that is over (`isOver`) has no light until it has news, because somebody continued it.
  const RETRY_MS = 3000;
  let watching = null;
  const state = (name, words) => {
    const light = document.querySelector(".live");
    if (!light) return;
    light.dataset.state = name;
    light.querySelector(".words").textContent = words;
    light.title = { live: "Connected: news appears by itself", lost: "Connection lost; trying again" }[name] ?? "";
  };
  const events = async function* (body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      const whole = (text + value).split("\n\n");
      text = whole.pop();
      for (const event of whole) yield Object.fromEntries(event.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
    }
  };
  const follow = async (path, tell, isOver, signal) => {
    for (let cursor = ""; !signal.aborted; await new Promise((resolve) => setTimeout(resolve, RETRY_MS))) {
      try {
        const answer = await request(path, { signal, headers: cursor ? { "last-event-id": cursor } : {} });
        if (!answer.ok) return signal.aborted || state("", "");
        isOver ? state("", "") : state("live", "live");
        for await (const { event, id, data } of events(answer.body)) {
          if (signal.aborted) return;
          if (event === "trouble") state("lost", "offline");
          if (event !== "change") continue;
          [cursor, isOver] = [id, false];
          state("live", "live");
          queueMicrotask(() => tell(JSON.parse(data)));
        }
      } catch {
        // The connection was lost.
      }
      if (!signal.aborted) state("lost", "offline");
    }
  };
  app.watch = (path, tell, isOver = false) => {
    watching?.abort();
    watching = null;
    if (app.bundle) return state("", "bundle");
    if (!path) return state("", "");
    watching = new AbortController();
    follow(path, tell, isOver, watching.signal);
    return undefined;
  };
}
