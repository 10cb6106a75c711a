// Two runs, compared by task with a paired test.
"use strict";
{
  const app = globalThis.agentflow;
  const { el, add, fill, count } = app;
  const EXACT = 14; // Up to 2^14 sign flips are counted; beyond, 20,000 are drawn with a fixed seed.
  const DRAWS = 20000;

  // Two-sided sign-flip permutation test of the mean difference.
  app.pairedTest = (differences) => {
    const moved = differences.filter((one) => one !== 0), observed = Math.abs(moved.reduce((sum, one) => sum + one, 0)) - 1e-12;
    let extreme = 0;
    if (!moved.length) return 1;
    if (moved.length <= EXACT) {
      const size = 1 << moved.length;
      for (let flips = 0; flips < size; flips++) {
        let sum = 0;
        for (let at = 0; at < moved.length; at++) sum += flips & (1 << at) ? moved[at] : -moved[at];
        if (Math.abs(sum) >= observed) extreme += 1;
      }
      return extreme / size;
    }
    let state = 0x9e3779b9;
    const bit = () => {
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      return state < 0;
    };
    for (let draw = 0; draw < DRAWS; draw++) {
      let sum = 0;
      for (const one of moved) sum += bit() ? one : -one;
      if (Math.abs(sum) >= observed) extreme += 1;
    }
    return (extreme + 1) / (DRAWS + 1);
  };

  app.pairTasks = (left, right) => {
    const others = new Map(app.byTask(right).map((task) => [task.name, task]));
    const tasks = app.byTask(left).filter((task) => others.has(task.name)).map((task) => {
      const other = others.get(task.name);
      return { name: task.name, text: task.text, a: task, b: other, difference: task.mean === null || other.mean === null ? null : other.mean - task.mean };
    });
    const scored = tasks.filter((task) => task.difference !== null), differences = scored.map((task) => task.difference);
    const mean = (numbers) => (numbers.length ? numbers.reduce((sum, one) => sum + one, 0) / numbers.length : null);
    const centre = mean(differences);
    const spread = differences.length > 1 ? Math.sqrt(differences.reduce((sum, one) => sum + (one - centre) ** 2, 0) / (differences.length - 1) / differences.length) : null;
    return { tasks, scored: scored.length, a: mean(scored.map((task) => task.a.mean)), b: mean(scored.map((task) => task.b.mean)), difference: centre, error: spread,
      better: differences.filter((one) => one > 0).length, worse: differences.filter((one) => one < 0).length, p: differences.length ? app.pairedTest(differences) : null };
  };

  app.comparePage = async (main, { a, b, ...query }) => {
    if (!a || !b) throw new Error("Choose two runs in the list of runs to compare them.");
    const page = el("div.page", el("p.none", "Loading …"));
    add(main, page);
    const [one, other, left, right] = await Promise.all([app.load(app.runPath(a)), app.load(app.runPath(b)), app.allSeeds(a), app.allSeeds(b)]);
    const found = app.pairTasks(left, right);
    const figures = found.scored ? app.figures([
      ["tasks in both", count(found.tasks.length)], ["mean of A", app.figure(found.a)], ["mean of B", app.figure(found.b)],
      ["B − A", el("span", { class: `delta ${found.difference > 0 ? "up" : found.difference < 0 ? "down" : ""}` }, app.signed(found.difference))],
      found.error === null ? null : ["95 % interval", `${app.signed(found.difference - 1.96 * found.error)} to ${app.signed(found.difference + 1.96 * found.error)}`],
      ["p-value, paired permutation test", found.p < 0.001 ? "< 0.001" : found.p.toFixed(3)], ["B better", count(found.better)], ["B worse", count(found.worse)],
    ]) : null;
    const verdict = !found.scored ? null : found.p >= 0.05 ? "No clear difference: chance alone could explain it." : `${found.difference > 0 ? "B" : "A"} scores higher, and chance alone would rarely give such a difference.`;
    const title = (letter, run) => el("a", { href: app.runAddress(run.id) }, el("span.faint", `${letter} `), run.name);
    const swap = el("button", { type: "button", onclick: () => app.go(app.address("/compare", { a: b, b: a })) }, "Swap");
    fill(page, el("div.head", el("h1", title("A", one), el("span.faint", " and "), title("B", other)), el("span.grow"), swap), verdict && el("p.soft", verdict), figures ?? el("p.none", found.tasks.length ? "These runs have no scores to compare." : "These runs have no task in common."));
    if (found.tasks.length) add(page, taskTable(a, b, found.tasks, query));
    const steps = await Promise.all([one, other].map(async (run) => ({ name: run.name, rows: run.steps ? await app.load(app.runPath(run.id, "metrics")) : [] })));
    if (steps.some(({ rows }) => rows.length)) add(page, el("h2", "Training"), el("div.legend", steps.map(({ name }, at) => el("span", el("i.swatch", { style: { background: `var(--c${at + 1})` } }), name))), app.curves(steps));
  };

  const taskTable = (a, b, tasks, query) => {
    const wide = innerWidth > 760;
    const grid = { style: { "grid-template-columns": wide ? "minmax(0,1fr) 6rem 6rem 6rem minmax(0,.45fr) minmax(0,.45fr)" : "minmax(0,1fr) 3.4rem 3.4rem 4rem" } };
    const orders = { "largest change": (one, other) => Math.abs(other.difference ?? 0) - Math.abs(one.difference ?? 0), "B worse first": (one, other) => (one.difference ?? 0) - (other.difference ?? 0), "B better first": (one, other) => (other.difference ?? 0) - (one.difference ?? 0), "name": (one, other) => (one.name < other.name ? -1 : 1) };
    let rows = [];
    // Each different answer, or score where nobody answers, once with a link to its first sample.
    const hasAnswers = tasks.some((task) => [...task.a.samples, ...task.b.samples].some((seed) => seed.answer));
    const answers = (run, task) => {
      const groups = new Map();
      for (const seed of task.samples) {
        const said = seed.answer || (seed.failure ? "failed" : hasAnswers ? "no answer" : app.score(seed.score) || seed.id);
        groups.set(said, [...(groups.get(said) ?? []), seed]);
      }
      return el("span.wide", { role: "cell", class: "wide" }, [...groups].slice(0, 6).map(([said, seeds], at) => [at ? " · " : "", el("a", { href: app.seedAddress(run, seeds[0].id), title: seeds[0].failure || said }, said), seeds.length > 1 ? el("span.faint", ` ×${seeds.length}`) : null]));
    };
    const list = new app.Rows((index) => {
      const task = rows[index], way = task.difference > 0 ? "up" : task.difference < 0 ? "down" : "";
      return el("div.row", { role: "row", ...grid }, el("span", { role: "cell", title: task.text }, task.text || task.name), el("span.right", { role: "cell" }, app.figure(task.a.mean)), el("span.right", { role: "cell" }, app.figure(task.b.mean)),
        el("span", { role: "cell", class: `right delta ${way}` }, task.difference ? app.signed(task.difference) : task.difference === 0 ? "=" : ""), answers(a, task.a), answers(b, task.b));
    }, { extra: 4, role: "rowgroup" });
    const order = el("select", { "aria-label": "Order", onchange: () => draw() }, Object.keys(orders).map((name) => el("option", { selected: name === query.order }, name)));
    const find = el("input.grow", { type: "search", placeholder: "Filter tasks", "aria-label": "Filter tasks", value: query.text ?? "", oninput: () => draw() });
    const draw = () => {
      rows = tasks.filter((task) => `${task.name} ${task.text}`.toLowerCase().includes(find.value.trim().toLowerCase())).sort(orders[order.value]);
      list.set(rows.length);
      app.replace(app.address("/compare", { a, b, text: find.value.trim(), order: order.selectedIndex ? order.value : "" }));
    };
    app.keys.set("/", () => find.focus());
    const heads = ["Task", "A", "B", "B − A", ...(hasAnswers ? ["Answers of A", "Answers of B"] : ["Episodes of A", "Episodes of B"])].map((name, at) => el("span", { role: "columnheader", class: `${at > 0 && at < 4 ? "right" : ""} ${at > 3 ? "wide" : ""}` }, name));
    const box = [el("div.bar", find, order), el("div.table.fill", { role: "table", "aria-label": "Tasks", style: { "max-height": "70vh", height: `${Math.max(12, Math.min(40, tasks.length * 2.6 + 4))}rem`, flex: "none" } }, el("div.row.heads", { role: "row", ...grid }, heads), list.box)];
    requestAnimationFrame(draw);
    return box;
  };
}
