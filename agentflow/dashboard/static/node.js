// A node: siblings side by side, action, observation with citations, verdict, model calls with prompts.
"use strict";
{
  const app = globalThis.agentflow;
  const { el, add, fill, chip, count } = app;
  const FIRST = 20000; // Characters of a text that are shown at once.

  // Long text: its beginning, and a button for more. `rest(from)` loads what the server left out, `save()` saves all of it.
  app.longText = (text, { tag = "pre.words", spans = [], chars = 0, rest = null, save = null } = {}) => {
    const box = el("div"), body = el(tag), bar = el("div.bar");
    let whole = String(text ?? ""), known = app.points(whole), shown = 0;
    const far = spans.reduce((end, span) => Math.max(end, span.end), 0);
    const more = async (size) => {
      if (shown >= whole.length && known < chars) {
        const stretch = await rest(known);
        whole += stretch;
        known += app.points(stretch);
      }
      let end = Math.min(whole.length, shown + size);
      if (end < whole.length && /[\ud800-\udbff]/.test(whole[end - 1])) end += 1;
      appendSpans(body, whole, shown, end, spans);
      shown = end;
      const total = known < chars ? chars : whole.length, step = Math.min(total - shown, Math.max(FIRST * 5, Math.min(FIRST * 10, shown)));
      fill(bar);
      if (!step) return;
      const button = el("button", { type: "button", onclick: () => {
        button.disabled = true;
        more(step).catch((error) => fill(bar, error.message));
      } }, `Show ${count(step)} more`);
      add(bar, button, el("span.faint", `${count(shown)} of ${count(total)} characters`), save ? el("button", { type: "button", onclick: () => save().catch((error) => app.toast(error.message)) }, "Save all") : null);
    };
    more(Math.min(Math.max(FIRST, far + 500), 400000));
    return add(box, body, bar);
  };

  const appendSpans = (body, text, from, to, spans) => {
    const edges = [from, to];
    for (const span of spans) for (const edge of [span.start, span.end]) if (edge > from && edge < to) edges.push(edge);
    edges.sort((one, other) => one - other);
    for (let place = 0; place + 1 < edges.length; place++) {
      const [start, end] = [edges[place], edges[place + 1]];
      if (start === end) continue;
      const over = spans.filter((span) => span.start <= start && span.end >= end);
      const piece = text.slice(start, end);
      add(body, over.length ? el("mark", { title: over.map((span) => span.title).join("\n"), data: { cite: over.map((span) => span.name).join(" ") } }, piece) : piece);
    }
  };

  const block = (title, info, body, { name = title, open = true } = {}) => {
    const node = el("details.block", { open, data: { name } }, el("summary", el("span", title), el("span.info.grow.cut", info ?? "")));
    return add(node, el("div.body", body));
  };

  const copyButton = (text) => el("button.plain", { type: "button", title: text, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      app.toast("Copied.");
    } catch {
      app.toast("The browser does not allow copying here.");
    }
  } }, "Copy id");

  app.nodeView = async (outline, at, { choose, results, address }) => {
    const { run, seed } = outline, { spot } = at;
    const [node, siblings] = await Promise.all([app.load(app.seedPath(run, seed, "node", { spot })), spot === "" ? [] : outline.siblings(spot)]);
    for (let above = app.parentOf(spot); spot !== "" && above !== ""; above = app.parentOf(above)) if (!outline.known.has(above)) await outline.siblings(above);
    const children = node.children ? await outline.children(spot) : [];
    const parts = [pathBar(outline, spot, choose)];
    if (siblings.length > 1) parts.push(cards(outline, siblings, spot, choose, "Siblings"));
    parts.push(spot === "" ? seedBlock(node, results) : actionBlock(node));
    if (spot !== "" || node.citations?.length || node.parts?.some((part) => part.text !== results?.text)) parts.push(observation(run, seed, node, spot));
    if (node.calls?.length) parts.push(...calls(run, seed, node, at, address));
    if (children.length) parts.push(el("h2", { style: { "margin-top": ".6rem" } }, app.plural(children.length, "next action")), cards(outline, children, null, choose, "Next actions"));
    if (node.stalled) parts.push(el("p.soft", `Fewer next actions than wanted: ${node.stalled}`));
    const made = el("article.measure", { "aria-label": spot === "" ? app.rootName(run) : `Node ${spot}` }, parts);
    return { node: made, signature: JSON.stringify([node, siblings, children, at.call]) };
  };

  const link = (choose, outline, spot, given, ...children) =>
    el(given.tag ?? "a", { href: app.seedAddress(outline.run, outline.seed, { spot }), ...given, tag: null, onclick: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      choose(spot);
    } }, children);

  const pathBar = (outline, spot, choose) => {
    const steps = spot === "" ? [] : spot.split("-");
    const links = [link(choose, outline, "", { "aria-current": spot === "" ? "location" : null }, app.rootName(outline.run))];
    for (let depth = 1; depth <= steps.length; depth++) {
      const own = steps.slice(0, depth).join("-");
      const about = outline.known.get(own);
      links.push(el("span", { "aria-hidden": "true" }, "›"), link(choose, outline, own, { "aria-current": own === spot ? "location" : null }, about ? `${steps[depth - 1]} ${about.tool}` : steps[depth - 1]));
    }
    return el("nav.path", { "aria-label": "Path" }, links);
  };

  const cards = (outline, nodes, current, choose, label) => {
    const list = el("div.siblings", { role: "group", "aria-label": label }, nodes.map((about) => link(choose, outline, about.spot,
      { tag: "a.card", "aria-current": about.spot === current ? "true" : null },
      el("div.line", app.mark(app.MARKS[outline.shape.marks[outline.shape.at.get(about.spot)]]?.[0], about.spot), el("span.cut", about.tool || about.spot), about.images ? el("span.faint", `▣ ${about.images}`) : null, about.children ? el("span.faint.num", { title: app.plural(about.children, "child") }, `▾ ${about.children}`) : null),
      el("p", about.intent || about.arguments), el("p.seen", about.failure ? `${about.failure}: ${about.line}` : about.line))));
    requestAnimationFrame(() => {
      const card = list.querySelector('[aria-current="true"]');
      if (card) list.scrollLeft = card.offsetLeft - list.offsetLeft - (list.clientWidth - card.clientWidth) / 2;
    });
    return list;
  };

  const seedBlock = (node, results) => [
    el("h1", { style: { "overflow-wrap": "anywhere" } }, app.longText(results?.text || (node.parts ?? []).map((part) => part.text).join("\n"), { tag: "span.words" })),
    results?.answers?.length ? el("p.soft", app.plural(results.answers.length, "result"), ", press ", el("kbd", "r")) : null,
  ];

  const value = (given) => app.longText(typeof given === "string" ? given : JSON.stringify(given, null, 2));

  const ISOLATION = { fork: "It ran in a fork of its parent's sandbox.", replay: "It ran in a fresh sandbox after the path was replayed.", shared: "It ran in a shared sandbox: its tool has no state." };

  const actionBlock = (node) => {
    const entries = Object.entries(node.arguments ?? {});
    const list = entries.length ? el("dl.args", entries.flatMap(([name, given]) => [el("dt", name), el("dd", value(given))])) : el("p.faint", "No arguments");
    // Model calls of a training are not judged; their reason is the advantage.
    const isCall = node.tool === "call" && !entries.length, isAnswer = node.tool === "answer" && !entries.length;
    const verdict = isCall ? el("span.soft", node.reason) : node.verdict ? [chip(node.verdict), node.reason ? el("span.soft", node.reason) : null, node.judge ? el("span.faint", `judged by ${node.judge === "rule" ? "a rule" : "the model"}`) : null] : [chip("waiting", "not judged yet")];
    return [
      el("div.head", el("h1.mono", { style: { "overflow-wrap": "anywhere" } }, node.tool), verdict, el("span.grow"), el("span.faint", { title: ISOLATION[node.isolation] ?? "" }, node.isolation ? `isolation: ${node.isolation}` : ""),
        node.diverged ? el("span.chip.repeats", { title: "It returned something else when it was replayed" }, "diverged") : null, node.id ? copyButton(node.id) : null),
      node.failure ? el("div.block", { style: { "border-left": "3px solid var(--error)" } }, el("div.body", chip("error", node.failure.kind), " ", node.failure.message)) : null,
      node.trouble ? el("p", chip("error", "program"), " ", node.trouble) : null,
      node.intent ? el("p.words", { style: { "font-size": "1.08rem" } }, node.intent) : null,
      node.reasoning ? block("Reasoning of the planner", app.plural(node.reasoning.length, "character"), app.longText(node.reasoning, { tag: "div.words" }), { name: "reasoning", open: node.reasoning.length < 1500 }) : null,
      isCall || isAnswer ? null : block("Call", "", list),
    ];
  };

  const observation = (run, seed, node, spot) => {
    const cites = node.citations ?? [];
    const body = [];
    let base = 0, number = 0;
    const pictures = el("div.pictures");
    for (const [place, part] of (node.parts ?? []).entries()) {
      if (part.blob) {
        number += 1;
        pictures.append(picture(run, part, cites.filter((cite) => cite.image ? cite.image === part.blob : cite.region?.picture === number && !cite.quote), number));
        continue;
      }
      const chars = Math.max(part.chars ?? 0, app.points(part.text)), start = base;
      const spans = cites.map((cite, index) => ({ cite, index })).filter(({ cite }) => !cite.image && !cite.region && cite.end > start && cite.start < start + chars)
        .map(({ cite, index }) => ({ start: app.unit(part.text, Math.max(0, cite.start - start)), end: app.unit(part.text, cite.end - start), title: cite.question, name: index }));
      const asked = { spot, part: String(place) };
      const rest = async (from) => (await app.load(app.seedPath(run, seed, "text", { ...asked, from }))).text;
      const save = app.bundle ? null : () => app.save(app.seedPath(run, seed, "whole", asked), [seed, spot, "observation.txt"].filter(Boolean).join("-"));
      if (chars) body.push(app.longText(part.text, { spans, chars, rest, save }));
      base += chars + 1;
    }
    if (pictures.childElementCount) body.push(pictures);
    if (!body.length) body.push(el("p.faint", "Empty"));
    const characters = Math.max(0, base - 1);
    const made = [block(spot === "" ? "Content" : node.tool === "call" ? "Answer of the model" : "Observation", [characters ? app.plural(characters, "character") : "", number ? app.plural(number, "image") : ""].filter(Boolean).join(", "), body)];
    if (cites.length) {
      const known = new Set();
      const list = el("div.cites", cites.map((cite, index) => {
        const same = JSON.stringify([cite.pair, cite.start, cite.end, cite.image, cite.region]);
        if (known.has(same)) return null;
        known.add(same);
        return el("div.cite", el("button.plain", { type: "button", onclick: () => aim(made[0], index) }, el("mark", cite.quote.slice(0, 200))), el("span.soft", cite.question));
      }));
      made.push(block("Cited by", app.plural(known.size, "citation"), list));
    }
    return made;
  };

  const aim = (box, index) => {
    for (const old of box.querySelectorAll(".aim")) old.classList.remove("aim");
    const found = [...box.querySelectorAll("[data-cite]")].filter((mark) => mark.dataset.cite.split(" ").includes(String(index)));
    for (const mark of found) mark.classList.add("aim");
    box.open = true;
    found[0]?.scrollIntoView({ block: "center" });
  };

  const picture = (run, part, cites, number) => {
    const image = app.image(run, part.blob, part.mime, `Image ${number} of the observation`);
    if (!image) return el("p.soft", `${part.mime || "bytes"}, `, el("span.mono", part.blob.slice(0, 16)), " (not shown)");
    image.addEventListener("error", () => image.replaceWith(el("p.body.soft", "The image can't be shown.")));
    const regions = cites.filter((cite) => cite.region).map(({ region, quote, question }) =>
      el("div.region", { title: `${quote}\n${question}`, style: { left: `${region.left * 100}%`, top: `${region.top * 100}%`, width: `${(region.right - region.left) * 100}%`, height: `${(region.bottom - region.top) * 100}%` } }));
    return el("div.picture", image, regions);
  };

  const purpose = ({ key, role }, spot) => {
    if (spot === undefined) return `${role}, ${key.split("/")[0]}`;
    if (key.startsWith(`plan/${app.parentOf(spot) || "root"}/`) && spot !== "") return `${role} chose this action`;
    return key.startsWith(`plan/${spot || "root"}/`) ? `${role} chose the next actions` : key === `node/${spot}` ? `${role} judged this node` : role;
  };

  // Calls of a node, or of the results of a seed
  const calls = (run, seed, shown, at, address) =>
    shown.calls.map((call) => {
      const usage = call.usage ?? {};
      const info = [call.key, usage.prompt_tokens || usage.completion_tokens ? `${count(usage.prompt_tokens)} prompt and ${count(usage.completion_tokens)} sampled tokens` : "", call.seconds !== null && call.seconds !== undefined ? app.span(call.seconds) : "", call.failure ? call.failure.kind : ""];
      const body = el("div.body");
      const box = el("details.block", { data: { name: `call ${call.key}` } }, el("summary", el("span", `Model call: ${purpose(call, shown.spot)}`), el("span.info.grow.cut.mono", info.filter(Boolean).join(" · "))), body);
      let isLoaded = false;
      box.addEventListener("toggle", async () => {
        if (box.open && at.call !== call.key) (at.call = call.key), app.replace(address());
        else if (!box.open && at.call === call.key) (at.call = ""), app.replace(address());
        if (!box.open || isLoaded) return;
        isLoaded = true;
        try {
          const detail = await app.load(app.seedPath(run, seed, "call", { key: call.key })), whole = detail.call;
          fill(body, whole.failure ? el("p", chip("error", whole.failure.kind), " ", whole.failure.message) : null,
            whole.reasoning ? [el("h2.small", "Reasoning"), app.longText(whole.reasoning, { tag: "div.words" })] : null,
            whole.text ? [el("h2.small", "Answer"), app.longText(pretty(whole.text))] : null,
            el("h2.small", { style: { margin: ".4rem 0" } }, detail.prompt?.length ? "Prompt" : `No prompt: ${detail.missing}`), el("div.cites", (detail.prompt ?? []).map((message) => el("div.message", el("div.who", message.role), app.longText(message.text, { tag: "div.words" }),
            (message.images ?? []).map(({ hash, mime }, at) => picture(run, { blob: hash, mime }, [], at + 1))))));
        } catch (error) {
          fill(body, el("p.faint", error.message));
        }
      });
      if (at.call === call.key) box.open = true;
      return box;
    });

  const pretty = (text) => {
    if (text.length > 200000 || !/^\s*[[{]/.test(text)) return text;
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return text;
    }
  };

  const questionCalls = (run, seed, results, at, address) => {
    const body = el("div.body"), box = el("details.block", { data: { name: "calls" } }, el("summary", "Model calls for these results"), body);
    box.addEventListener("toggle", async () => {
      if (!box.open || body.firstChild) return;
      try {
        const found = await app.load(app.seedPath(run, seed, "calls"));
        fill(body, found.length ? calls(run, seed, { calls: found }, at, address) : el("p.faint", "They are with the nodes."));
      } catch (error) {
        fill(body, el("p.faint", error.message));
      }
    });
    box.open = Boolean(at.call);
    return box;
  };

  // Results of a seed: pairs, tasks or the answer
  app.resultView = (run, seed, results, at, { choose, address }) => {
    if (!results) return el("p.none", "The results of this seed can't be read.");
    const usage = app.usage(results.usage);
    const figures = [["state", results.state.replace("_", " ")], results.seconds ? ["duration", app.span(results.seconds)] : null, usage.calls ? ["model calls", count(usage.calls)] : null,
      usage.calls ? ["prompt tokens", app.short(usage.prompt_tokens)] : null, usage.calls ? ["sampled tokens", app.short(usage.completion_tokens)] : null];
    const pair = (answer) => el("section.pair", { "aria-label": answer.id },
      el("div.bar", answer.kind ? chip("kind", answer.kind) : null, answer.score !== null && answer.score !== undefined ? el("span", { class: `chip ${answer.score > 0 ? "new" : "error"}` }, `score ${app.score(answer.score)}`) : null, answer.hops ? el("span.faint", app.plural(answer.hops, "hop")) : null,
        answer.pass_rate !== null && answer.pass_rate !== undefined ? el("span.faint", `pass rate ${Math.round(answer.pass_rate * 100)} %`) : null, el("span.faint.mono.cut", answer.id)),
      el("div.q", app.longText(answer.question, { tag: "div.words" })), el("div.a", answer.answer || !answer.steps?.length ? app.longText(answer.answer || "(no answer)", { tag: "div.words" }) : null),
      answer.references?.length ? el("p.soft", "Reference: ", answer.references.join(" · ")) : null, answer.reason ? el("p.soft", answer.reason) : null,
      answer.steps?.length ? el("ol", answer.steps.map((step) => el("li.soft", step))) : null,
      answer.spots?.length ? el("p.bar", el("span.faint", "Evidence"), answer.spots.map((spot) => el("a.mono", { href: app.seedAddress(run, seed, { spot }), onclick: (event) => {
        event.preventDefault();
        choose(spot);
      } }, spot || "seed"))) : null);
    const answers = results.answers ?? [], rejected = results.rejected ?? [];
    return el("div.measure", el("h1", { style: { "overflow-wrap": "anywhere" } }, app.longText(results.text, { tag: "span.words" })), app.figures(figures),
      results.failure ? el("div.problem", { style: { margin: "0" } }, `${results.failure.kind}: ${results.failure.message}`) : null, results.ending ? el("p.soft", `Ended: ${results.ending}`) : null,
      answers.length ? answers.map(pair) : el("p.none", results.state === "done" ? "This seed gave nothing." : "No results yet: the seed is unfinished."),
      rejected.length ? block("Rejected questions", count(rejected.length), el("dl.cites", rejected.map(([question, reason]) => el("div", el("dt", question), el("dd.faint", reason)))), { open: false }) : null,
      questionCalls(run, seed, results, at, address));
  };
}
