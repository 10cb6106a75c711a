// Tokens of a seed: rows of exact tokens with mask, log-probability, version and advantage.
"use strict";
{
  const app = globalThis.agentflow;
  const { el, add, fill, count } = app;
  const FIRST = 3000; // Tokens that are drawn at once.
  const CLASS = { prompt: "context", context: "context", other: "other", sampled: "other", trained: "trained", left_out: "left_out" };
  const WORDS = { prompt: "prompt", context: "context", other: "another voice", sampled: "sampled, not in a loss", trained: "trained", left_out: "sampled, left out of the loss" };

  // Tokens of one row, in drawing units: each sampled token, and prompts in stretches.
  const units = function* (row) {
    for (const piece of row.pieces) {
      const isScored = piece.logprobs?.length === piece.ids.length && piece.ids.length > 0;
      const stretch = isScored ? 1 : 64;
      for (let from = 0; from < piece.ids.length; from += stretch) yield { piece, from, to: Math.min(piece.ids.length, from + stretch), isScored };
    }
  };

  const textOf = (piece, from, to) => (piece.texts?.length ? piece.texts.slice(from, to).join("") || "" : piece.ids.slice(from, to).map((id) => `‹${id}›`).join(""));

  const shade = (node, { piece, from }) => {
    const logprob = piece.logprobs[from];
    node.style.setProperty("--p", Math.max(0.1, Math.min(0.6, 0.6 + logprob / 10)).toFixed(2));
    if (logprob < -3) node.classList.add("unlikely");
  };

  const describe = ({ piece, from, to, isScored }) => {
    const kind = WORDS[piece.kind] ?? piece.kind;
    const parts = [isScored ? `token ${piece.ids[from]}` : app.plural(to - from, "token"), kind];
    if (isScored) {
      const logprob = piece.logprobs[from];
      parts.push(`log-probability ${logprob.toFixed(3)} (${(Math.exp(logprob) * 100).toFixed(logprob < -4.6 ? 3 : 1)} %)`);
      const own = piece.trainer_logprobs?.[from];
      if (Number.isFinite(own)) parts.push(`trainer ${own.toFixed(3)}, ratio ${Math.exp(own - logprob).toFixed(3)}`);
    }
    if (piece.advantage !== null && piece.advantage !== undefined) parts.push(`advantage ${app.signed(piece.advantage)}`);
    if (piece.version) parts.push(`version ${piece.version}`);
    if (piece.call) parts.push(/^\d+$/.test(piece.call) ? `call ${piece.call}` : piece.call);
    return parts.join(" · ");
  };

  const rowView = (row, place, status) => {
    const text = el("div.tokens", { tabindex: "0", role: "group", "aria-label": row.title || `Row ${place + 1}` });
    const bar = el("div.bar"), source = units(row);
    let last = null;
    const known = new WeakMap();
    const more = () => {
      for (let drawn = 0; drawn < FIRST; drawn++) {
        const { value: unit, done } = source.next();
        if (done) return bar.remove();
        const isWorse = unit.piece.kind === "trained" && (unit.piece.advantage ?? 0) < 0;
        const node = el("span", { class: isWorse ? "worse" : CLASS[unit.piece.kind] ?? "context" }, textOf(unit.piece, unit.from, unit.to));
        if (unit.isScored) shade(node, unit);
        if (last && last !== unit.piece && unit.piece.version !== last.version && unit.piece.version && last.version) node.classList.add("edge");
        last = unit.piece;
        known.set(node, unit);
        text.append(node);
      }
      return fill(bar, el("button", { type: "button", onclick: more }, "Show more tokens"));
    };
    const tell = (node) => known.has(node) && fill(status, describe(known.get(node)));
    text.addEventListener("pointerover", (event) => tell(event.target));
    text.addEventListener("pointerdown", (event) => tell(event.target));
    text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const nodes = text.children, at = Math.max(0, Math.min(nodes.length - 1, (text.at ?? -1) + step));
      nodes[text.at]?.classList.remove("aim");
      nodes[at].classList.add("aim");
      nodes[at].scrollIntoView({ block: "nearest" });
      text.at = at;
      tell(nodes[at]);
    });
    more();
    const sampled = row.pieces.reduce((sum, piece) => sum + (piece.logprobs?.length ?? 0), 0), all = row.pieces.reduce((sum, piece) => sum + piece.ids.length, 0);
    const trained = row.pieces.reduce((sum, piece) => sum + (piece.kind === "trained" ? piece.ids.length : 0), 0);
    const versions = [...new Set(row.pieces.map((piece) => piece.version).filter(Boolean))], advantages = [...new Set(row.pieces.map((piece) => piece.advantage).filter((one) => one !== null && one !== undefined))];
    const info = [row.agent, row.title ? "" : app.plural(all, "token"), `${count(sampled)} sampled`, `${count(trained)} trained`, versions.length ? `version ${versions.join(", ")}` : "", advantages.length ? `advantage ${advantages.slice(0, 3).map((one) => app.signed(one)).join(", ")}` : ""];
    return el("details.block", { open: place < 4 }, el("summary", el("span.cut", row.title || `Row ${place + 1}`), el("span.info.grow.cut", info.filter(Boolean).join(" · "))), el("div.body", row.note ? el("p.faint", row.note) : null, text, bar));
  };

  app.tokenView = async (run, seed) => {
    const rows = await app.load(app.seedPath(run, seed, "tokens"));
    if (!rows.length) return el("div.measure", el("h1.hidden", "Tokens"), el("p.none", "No exact tokens are known for this seed: its models did not report them."));
    const status = el("p", { role: "status", class: "mono soft", style: { position: "sticky", top: "-1rem", background: "var(--ground)", padding: ".5rem 0", "z-index": "1", "min-height": "2.6em" } }, "Point at a token to see its log-probability, advantage and version. Keys: ← and →.");
    const legend = [["trained", "trained, advantage ≥ 0: darker is likelier"], ["worse", "trained, advantage below 0"], ["left_out", "sampled, left out of the loss"]].map(([name, text]) => el("span", el("i", { class: `swatch ${name}` }), text));
    const box = el("div.measure", el("h1.hidden", "Tokens"), el("div.legend", legend, el("span", el("u", "underlined"), "unlikely: log-probability below −3"), el("span", el("i.swatch.version"), "other version of the weights from here")), status);
    let next = 0;
    const bar = el("div.more");
    const more = () => {
      for (const row of rows.slice(next, next + 20)) bar.before(rowView(row, next++, status));
      fill(bar, next < rows.length ? el("button", { type: "button", onclick: more }, `Show ${Math.min(20, rows.length - next)} of ${rows.length - next} more rows`) : null);
    };
    add(box, bar);
    more();
    return box;
  };
}
