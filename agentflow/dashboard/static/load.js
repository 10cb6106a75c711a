// One function `load(path)` for live pages and bundles, and news of a run in progress.
"use strict";
{
  const app = globalThis.agentflow;
  const given = new Map(); // Bundle: answers by path.
  const loading = new Map(); // Bundle: chunk file -> promise.

  const fetched = async (path) => {
    let answer;
    try {
      answer = await fetch(`/api/${path}`, { credentials: "same-origin", headers: { accept: "application/json" } });
    } catch {
      throw new Error("The viewer does not answer. Start `agentflow view` again and reload the page.");
    }
    const body = await answer.json().catch(() => ({}));
    if (answer.ok) return body;
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
    if (typeof what === "string") return app.bundle ? bundled(what) : fetched(what);
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

  const IMAGES = { "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp" };
  app.isImage = (mime) => Object.hasOwn(IMAGES, mime);
  app.blobAddress = (run, digest, mime) => {
    if (!/^[0-9a-f]{16,128}$/.test(digest)) return null;
    return app.bundle ? `blobs/${digest}.${IMAGES[mime]}` : `/api/r/${encodeURIComponent(run)}/blob/${digest}`;
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

  // News of a run. `tell` gets the changes; the browser connects again by itself and continues at the last cursor.
  // A run that is over (`isOver`) has no light until it has news, because somebody continued it.
  let source = null;
  const state = (name, words) => {
    const light = document.querySelector(".live");
    if (!light) return;
    light.dataset.state = name;
    light.querySelector(".words").textContent = words;
    light.title = { live: "Connected: news appears by itself", lost: "Connection lost; trying again" }[name] ?? "";
  };
  app.watch = (path, tell, isOver = false) => {
    source?.close();
    source = null;
    if (app.bundle) return state("", "bundle");
    if (!path) return state("", "");
    const own = (source = new EventSource(`/api/${path}`));
    own.onopen = () => (isOver ? state("", "") : state("live", "live"));
    own.onerror = () => state(own.readyState === EventSource.CLOSED ? "" : "lost", own.readyState === EventSource.CLOSED ? "" : "offline");
    own.addEventListener("change", (event) => {
      isOver = false;
      state("live", "live");
      if (own === source) tell(JSON.parse(event.data));
    });
    own.addEventListener("trouble", () => state("lost", "offline"));
    return undefined;
  };
}
