// Elements, text, formats, addresses and keys: used by every other script of the page.
"use strict";
{
  const app = (globalThis.agentflow ??= {});

  // Characters that move, hide or reorder other text: C0 and C1 controls, bidirectional controls, zero-width marks.
  const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/u;
  const CONTROLS = new RegExp(CONTROL.source, "gu");

  function symbol(char) {
    const code = char.codePointAt(0);
    if (code < 0x20 || code === 0x7f) return `^${String.fromCharCode(code ^ 0x40)}`;
    return `\u2039U+${code.toString(16).toUpperCase().padStart(4, "0")}\u203a`;
  }

  // Text with controls as visible symbols. All text of a run goes through here and `textContent`.
  app.visible = (text) => {
    const plain = String(text ?? "").replaceAll("\r\n", "\n");
    return CONTROL.test(plain) ? plain.replace(CONTROLS, symbol) : plain;
  };

  const SVG = "http://www.w3.org/2000/svg";
  const SVG_TAGS = new Set(["svg", "path", "circle", "line", "text", "g", "rect"]);

  // Create an element. Strings become text; `on…` are listeners, `data` and `style` objects, false and null are left out.
  app.el = (tag, given = {}, ...children) => {
    const [name, ...classes] = tag.split(".");
    const node = SVG_TAGS.has(name) ? document.createElementNS(SVG, name) : document.createElement(name || "div");
    if (classes.length) node.setAttribute("class", classes.join(" "));
    const isPlain = given !== null && typeof given === "object" && !(given instanceof Node) && !Array.isArray(given);
    for (const [key, value] of Object.entries(isPlain ? given : {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "data") Object.assign(node.dataset, value);
      else if (key === "style") for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
      else if (key === "title" || key === "aria-label") node.setAttribute(key, app.visible(value));
      else node.setAttribute(key, value === true ? "" : String(value));
    }
    app.add(node, ...(isPlain ? children : [given, ...children]));
    return node;
  };

  app.add = (node, ...children) => {
    for (const child of children.flat(3)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : document.createTextNode(app.visible(child)));
    }
    return node;
  };

  app.fill = (node, ...children) => app.add((node.replaceChildren(), node), ...children);

  // Numbers and times
  const whole = new Intl.NumberFormat("en");
  app.count = (number) => (number === null || number === undefined ? "–" : whole.format(number));
  app.short = (number) => {
    if (number === null || number === undefined) return "–";
    for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e4, "k"]])
      if (Math.abs(number) >= size) return (number / (unit === "k" ? 1e3 : size)).toPrecision(3).replace(/\.0+$/, "") + unit;
    return whole.format(number);
  };
  app.figure = (number) => {
    if (number === null || number === undefined || !Number.isFinite(number)) return "–";
    if (Number.isInteger(number)) return app.short(number);
    const size = Math.abs(number);
    return size !== 0 && size < 1e-3 ? number.toExponential(2).replace(/\.?0+e/, "e") : size >= 1e4 ? app.short(Math.round(number)) : String(Number(number.toPrecision(4)));
  };
  app.score = (number) => (number === null || number === undefined ? "" : String(Math.round(number * 1000) / 1000));
  app.signed = (number, digits = 3) => (number >= 0 ? "+" : "\u2212") + Math.abs(number).toFixed(digits);
  app.plural = (number, word) => `${app.count(number)} ${word}${number === 1 ? "" : "s"}`;
  app.time = (seconds) => {
    if (!seconds) return "";
    const at = new Date(seconds * 1000);
    return at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  };
  app.span = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    return seconds < 3600 ? `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s` : `${(seconds / 3600).toFixed(1)} h`;
  };

  // Offsets count Unicode code points; JavaScript's count UTF-16 units.
  const ASTRAL = /[\ud800-\udbff][\udc00-\udfff]/;
  app.points = (text) => {
    let points = text.length;
    if (ASTRAL.test(text)) for (let unit = 0; unit < text.length; unit++) if (text.codePointAt(unit) > 0xffff) unit += 1, points -= 1;
    return points;
  };
  app.unit = (text, point) => {
    if (!ASTRAL.test(text)) return Math.min(point, text.length);
    let unit = 0;
    for (let left = point; left > 0 && unit < text.length; left--) unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
    return unit;
  };

  app.usage = (usage) => {
    const total = { calls: 0, prompt_tokens: 0, completion_tokens: 0 };
    for (const one of Object.values(usage ?? {})) for (const key of Object.keys(total)) total[key] += one[key] ?? 0;
    return total;
  };

  app.figures = (entries) =>
    app.el("dl.figures", entries.filter(Boolean).map(([name, value]) => app.el("div", app.el("dt", name), app.el("dd", value))));

  app.chip = (kind, text = kind) => app.el("span.chip", { class: `chip ${/^\w+$/.test(kind) ? kind : ""}` }, text.replaceAll("_", " "));

  // Tabs with arrow keys; `pick` is told the name.
  app.tabs = (names, current, pick, label) => {
    const buttons = names.map(([name, text]) =>
      app.el("button", { role: "tab", type: "button", "aria-selected": String(name === current), tabindex: name === current ? "0" : "-1", data: { name }, onclick: () => pick(name) }, text));
    const list = app.el("div.tabs", { role: "tablist", "aria-label": label }, buttons);
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const at = buttons.indexOf(document.activeElement);
      if (!step || at < 0) return;
      const next = buttons[(at + step + buttons.length) % buttons.length];
      event.preventDefault();
      next.focus();
      pick(next.dataset.name);
      list.ownerDocument.querySelector(`[role="tab"][data-name="${next.dataset.name}"]`)?.focus();
    });
    return list;
  };

  app.toast = (text) => {
    document.querySelector(".toast")?.remove();
    const note = app.el("div.toast", { role: "status" }, text);
    document.body.append(note);
    setTimeout(() => note.remove(), 3500);
  };

  app.problem = (error) => app.el("div.problem", { role: "alert" }, error?.message ?? String(error));

  // Addresses: paths over HTTP, behind `#` in a bundle.
  app.address = (path, query = {}) => {
    const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const text = path + (pairs.length ? "?" + pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&") : "");
    return app.bundle ? `#${text}` : text;
  };
  app.runAddress = (run, query) => app.address(`/r/${encodeURIComponent(run)}`, query);
  app.seedAddress = (run, seed, query) => app.address(`/r/${encodeURIComponent(run)}/s/${encodeURIComponent(seed)}`, query);
  app.here = () => {
    const text = app.bundle ? location.hash.slice(1) || "/" : location.pathname + location.search;
    const at = text.indexOf("?");
    const parts = (at < 0 ? text : text.slice(0, at)).split("/").filter(Boolean).map(decoded);
    return { parts, query: Object.fromEntries(new URLSearchParams(at < 0 ? "" : text.slice(at + 1))) };
  };
  const decoded = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  app.replace = (address) => history.replaceState(null, "", address);
  app.go = (address) => {
    history.pushState(null, "", address);
    app.route();
  };

  // Keys: a page registers what it offers; typing in a field is left alone.
  app.keys = new Map();
  app.keyHelp = [];
  const isField = (node) => node instanceof HTMLInputElement || node instanceof HTMLSelectElement || node instanceof HTMLTextAreaElement;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target) || document.querySelector("dialog[open]")) return;
    const action = app.keys.get(event.key);
    if (!action) return;
    event.preventDefault();
    action();
  });

  // Setting of the reader: kept by the browser where it allows that.
  app.kept = (name, value) => {
    try {
      if (value === undefined) return localStorage.getItem(`agentflow.${name}`);
      localStorage.setItem(`agentflow.${name}`, value);
    } catch {
      return null;
    }
    return value;
  };
}
