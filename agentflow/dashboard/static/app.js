// Frame, routes, search, help and theme.
"use strict";
{
  const app = globalThis.agentflow;
  const { el, add, fill } = app;

  const setTheme = (theme) => {
    const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  };
  setTheme(app.kept("theme"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(app.kept("theme")));
  const switchTheme = () => setTheme(app.kept("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark") ?? (document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

  const KEYS = [
    ["j k", "next or previous sibling"], ["h l", "parent or first child"], ["↑ ↓", "row above or below, in the outline"], ["← →", "close or open, in the outline"], ["o", "close or open the node"],
    ["g", "go to the root"], ["n N", "next or previous failure"], ["t", "tokens"], ["r", "results"], ["/", "search"], ["Esc", "back to the outline"], ["u", "up one page"], ["d", "dark or light"], ["?", "these keys"],
  ];
  const help = el("dialog", { "aria-label": "Keys" }, el("h2", "Keys"), el("ul.keys", KEYS.map(([keys, text]) => el("li", el("span.soft", text), el("span", keys.split(" ").map((key) => [el("kbd", key), " "]))))),
    el("div.bar", { style: { "margin-top": "1rem" } }, el("button", { type: "button", onclick: () => help.close() }, "Close")));

  const MARK = "M4.5 9h3c2.400 0 2-5 4.500-5M7.500 9c2.400 0 2 5 4.500 5";
  const logo = el("svg", { viewBox: "0 0 18 18", fill: "none", stroke: "currentColor", "stroke-width": "1.8", "stroke-linecap": "round", "aria-hidden": "true" },
    el("path", { d: MARK }), el("circle", { cx: 3, cy: 9, r: 1.7, fill: "currentColor" }), el("circle", { cx: 14, cy: 4, r: 1.7 }), el("circle", { cx: 14, cy: 14, r: 1.7 }));
  const crumbs = el("ol.crumbs");
  const search = el("button", { type: "button", title: "Search (/)", "aria-label": "Search", onclick: () => app.searchDialog(app.here().parts[1]) }, "⌕", el("span.wide", " Search "), el("kbd.wide", "/"));
  const main = el("main", { id: "main" });
  add(document.body, el("header.top", el("a.brand", { href: app.address("/"), "aria-label": "AgentFlow: all runs" }, logo, el("b", "AgentFlow")), el("nav", { "aria-label": "Place", style: { flex: "1", "min-width": "0" } }, crumbs),
    el("div.tools", el("span.live", { role: "status" }, el("span.words")), search,
      el("button", { type: "button", title: "Dark or light (d)", "aria-label": "Switch between dark and light", onclick: switchTheme }, "◐"),
      el("button", { type: "button", title: "Keys (?)", "aria-label": "Show the keys", onclick: () => help.showModal() }, "?"))), main, help);

  const names = new Map(), kinds = new Map();
  app.rootName = (run) => (kinds.get(run) === "synthesis" ? "Seed" : "Task");
  const drawCrumbs = (parts, run, seed) => {
    const items = [el("a", { href: app.address("/"), onclick: () => (app.cameBack = true) }, "Runs")];
    if (parts[0] === "compare") items.push(el("span", "Compare"));
    if (run) items.push(el("a.cut", { href: app.runAddress(run) }, names.get(run) ?? run));
    if (seed) items.push(el("span.cut", seed));
    fill(crumbs, items.map((item, at) => el("li", at === items.length - 1 ? (item.setAttribute("aria-current", "page"), item) : item)));
    document.title = app.visible([seed, run && (names.get(run) ?? run), "AgentFlow"].filter(Boolean).join(" · "));
  };

  let turn = 0;
  app.route = async () => {
    app.takeLink();
    const own = ++turn, { parts, query } = app.here();
    const isSeed = parts[0] === "r" && parts[2] === "s", run = parts[0] === "r" ? parts[1] : null, seed = isSeed ? parts[3] : null;
    const box = el("div", { style: { display: "grid", "min-height": "0", "min-width": "0" } });
    app.watch(null);
    app.keys.clear();
    app.keys.set("?", () => help.showModal()).set("d", switchTheme).set("/", () => app.searchDialog(run)).set("u", () => app.go(seed ? app.runAddress(run) : ((app.cameBack = true), app.address("/"))));
    drawCrumbs(parts, run, seed);
    search.hidden = !run;
    fill(main, box);
    try {
      if (run && !names.has(run)) {
        const summary = await app.load(app.runPath(run));
        names.set(run, summary.name);
        kinds.set(run, summary.kind);
      }
      if (own !== turn) return;
      drawCrumbs(parts, run, seed);
      const page = seed ? app.seedView(box, run, seed, query) : run ? app.runPage(box, run, query) : parts[0] === "compare" ? app.comparePage(box, query) : parts.length ? Promise.reject(new Error("There is no such page.")) : app.runsPage(box);
      const made = await page;
      if (own === turn) made?.focus?.focus({ preventScroll: true });
    } catch (error) {
      if (own === turn) fill(box, app.problem(error));
    }
  };

  // Search in a run: on the server, or in the chunks of a bundle
  app.searchDialog = (run) => {
    if (!run) return;
    const input = el("input", { type: "search", placeholder: "Search this run", "aria-label": "Search this run", style: { width: "100%" } });
    const found = el("div.found", { role: "region", "aria-label": "Found", tabindex: "0" }, el("p.faint", "Text of seeds, actions and observations."));
    const dialog = el("dialog", { "aria-label": "Search" }, input, found);
    let timer = 0, asked = 0;
    const look = async () => {
      const text = input.value.trim(), own = ++asked;
      if (text.length < 2) return;
      fill(found, el("p.faint", "Searching …"));
      try {
        const hits = app.bundle ? await searchBundle(run, text) : await app.load(app.runPath(run, "search", { text, limit: 50 }));
        if (own !== asked) return;
        fill(found, hits.length ? hits.map((hit) => el("a", { href: app.seedAddress(run, hit.seed, { spot: hit.spot }) }, el("div.faint", `${hit.seed}${hit.spot ? ` · ${hit.spot}` : ""} · ${hit.place}`), el("div", marked(hit.excerpt, text)))) : el("p.faint", "Nothing was found."));
      } catch (error) {
        if (own === asked) fill(found, el("p.faint", error.message));
      }
    };
    input.addEventListener("input", () => (clearTimeout(timer), (timer = setTimeout(look, 200))));
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", (event) => (event.target === dialog || event.target.closest("a")) && dialog.close());
    dialog.addEventListener("keydown", (event) => {
      const links = [input, ...found.querySelectorAll("a")], step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      links[Math.max(0, Math.min(links.length - 1, links.indexOf(document.activeElement) + step))].focus();
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  };

  const marked = (excerpt, text) => {
    const at = excerpt.toLowerCase().indexOf(text.toLowerCase());
    return at < 0 ? [excerpt] : [excerpt.slice(0, at), el("mark.find", excerpt.slice(at, at + text.length)), excerpt.slice(at + text.length)];
  };

  const searchBundle = async (run, text) => {
    const hits = new Map(), wanted = text.toLowerCase(), prefix = app.runPath(run, "s/");
    for await (const [path, json] of app.everything()) {
      const match = path.startsWith(prefix) && /^([^/]+)\/node(?:\?spot=(.*))?$/.exec(path.slice(prefix.length));
      if (!match || hits.has(path)) continue;
      const places = { action: `${json.tool} ${JSON.stringify(json.arguments)} ${json.intent}`, observation: (json.parts ?? []).map((part) => part.text).join("\n") };
      for (const [place, whole] of Object.entries(places)) {
        const at = whole.toLowerCase().indexOf(wanted);
        if (at >= 0 && !hits.has(path)) hits.set(path, { seed: decodeURIComponent(match[1]), spot: decodeURIComponent(match[2] ?? ""), place, excerpt: whole.slice(Math.max(0, at - 60), at + 120) });
      }
      if (hits.size >= 50) break;
    }
    return [...hits.values()];
  };

  // Links inside the page change it without a reload.
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || app.bundle || link.hasAttribute("download")) return;
    const address = new URL(link.href);
    if (address.origin !== location.origin) return;
    event.preventDefault();
    app.go(address.pathname + address.search);
  });
  addEventListener("popstate", () => app.route());
  app.route();
}
