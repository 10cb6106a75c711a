// Training curves, drawn as SVG.
"use strict";
{
  const app = globalThis.agentflow;
  const { el, add, fill } = app;
  const WIDTH = 360, HEIGHT = 170, LEFT = 40, RIGHT = 8, TOP = 10, BOTTOM = 20;

  const niceTicks = (low, high, wanted = 4) => {
    if (low === high) return [low];
    const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
    const ticks = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
    return ticks;
  };

  const smooth = (points, weight) => {
    let kept = null;
    return points.map(([x, y]) => [x, (kept = kept === null ? y : kept * weight + y * (1 - weight))]);
  };

  // At most `limit` points; of each stretch the lowest and the highest remain.
  const thinned = (points, limit = 700) => {
    if (points.length <= limit) return points;
    const size = Math.ceil((points.length * 2) / limit), kept = [];
    for (let from = 0; from < points.length; from += size) {
      const part = points.slice(from, from + size);
      const low = part.reduce((one, other) => (other[1] < one[1] ? other : one)), high = part.reduce((one, other) => (other[1] > one[1] ? other : one));
      kept.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
    }
    return kept;
  };

  // `series`: [{name, points: [[step, value]], colour}]. `pointed(step)` is told the step under the pointer.
  app.chart = (title, series, { weight = 0, pointed = null } = {}) => {
    const drawn = series.filter((one) => one.points.length);
    const all = drawn.flatMap((one) => one.points);
    if (!all.length) return null;
    let [x0, x1, y0, y1] = all.reduce(([a, b, c, d], [x, y]) => [Math.min(a, x), Math.max(b, x), Math.min(c, y), Math.max(d, y)], [Infinity, -Infinity, Infinity, -Infinity]);
    if (y0 === y1) (y0 -= Math.abs(y0) * 0.1 || 0.5), (y1 += Math.abs(y1) * 0.1 || 0.5);
    if (x0 === x1) x1 = x0 + 1;
    const sx = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT), sy = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0)) * (HEIGHT - BOTTOM - TOP);
    const line = (points) => thinned(points).map(([x, y], at) => `${at ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
    const grid = niceTicks(y0, y1).map((tick) => [el("line.grid", { x1: LEFT, x2: WIDTH - RIGHT, y1: sy(tick), y2: sy(tick) }), el("text", { x: LEFT - 5, y: sy(tick) + 3, "text-anchor": "end" }, app.figure(Number(tick.toPrecision(6))))]);
    const steps = niceTicks(x0, x1, 5).filter(Number.isInteger).map((tick, at) => el("text", { x: sx(tick), y: HEIGHT - 5, "text-anchor": "middle" }, at ? app.short(tick) : `step ${app.short(tick)}`));
    const curves = drawn.map(({ points, colour }) => {
      const stroke = `var(--c${colour})`;
      if (points.length === 1) return el("circle", { cx: sx(points[0][0]), cy: sy(points[0][1]), r: 3, style: { fill: stroke } });
      const isSmoothed = weight > 0 && points.length > 8;
      return [isSmoothed ? el("path.raw", { d: line(points), style: { stroke } }) : null, el("path.smooth", { d: line(isSmoothed ? smooth(points, weight) : points), style: { stroke } }),
        points.length <= 24 ? points.map(([x, y]) => el("circle", { cx: sx(x), cy: sy(y), r: 1.8, style: { fill: stroke } })) : null];
    });
    const cursor = el("line.cursor", { y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    const latest = drawn.map((one) => app.figure(one.points.at(-1)[1])).join(" · ");
    const value = el("span.num", latest);
    const svg = el("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: last ${latest}, from ${app.figure(y0)} to ${app.figure(y1)}` }, grid, steps, curves, cursor);
    const at = (step) => {
      if (step === null) return cursor.setAttribute("visibility", "hidden"), fill(value, latest);
      const near = drawn.map(({ points }) => points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best)));
      cursor.setAttribute("visibility", "visible");
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, sx(Math.max(x0, Math.min(x1, step))));
      return fill(value, `step ${near[0][0]}: `, near.map((point) => app.figure(point[1])).join(" · "));
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * WIDTH;
      (pointed ?? at)(Math.round(x0 + ((x - LEFT) / (WIDTH - LEFT - RIGHT)) * (x1 - x0)));
    });
    svg.addEventListener("pointerleave", () => (pointed ?? at)(null));
    return Object.assign(el("figure.chart", el("figcaption", el("span.cut", { title }, title), value), svg), { at });
  };

  app.figureNames = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row.figures)))];
  app.seriesOf = (rows, name) => rows.filter((row) => Number.isFinite(row.figures[name])).map((row) => [row.step, row.figures[name]]);

  const FIRST = /reward|score|accuracy|return|valid/i, SECOND = /loss|kl|entropy|grad|clip|length|token/i;
  const rank = (name) => (FIRST.test(name) ? 0 : SECOND.test(name) ? 1 : 2);

  // A figure that never changes comes last.
  const isFlat = (lines) => {
    const values = lines.flatMap(({ points }) => points.map((point) => point[1]));
    return values.length > 1 && values.every((value) => value === values[0]) ? 1 : 0;
  };

  // Panel of curves over the steps of one or more runs: [{name, rows}].
  app.curves = (runs, filter = "", weight = 0.6) => {
    const charts = [];
    const pointed = (step) => charts.forEach((chart) => chart.at(step));
    const names = [...new Set(runs.flatMap(({ rows }) => app.figureNames(rows)))].filter((name) => name.toLowerCase().includes(filter.toLowerCase()));
    const series = new Map(names.map((name) => [name, runs.map(({ name: run, rows }, at) => ({ name: run, points: app.seriesOf(rows, name), colour: (at % 6) + 1 }))]));
    const order = new Map(names.map((name) => [name, rank(name) + 3 * isFlat(series.get(name))]));
    names.sort((one, other) => order.get(one) - order.get(other) || (one < other ? -1 : 1));
    const shown = names.slice(0, 120).map((name) => app.chart(name, series.get(name), { weight, pointed })).filter(Boolean);
    charts.push(...shown);
    return shown.length ? el("div.charts", shown) : el("p.none", names.length ? "No finite figures yet." : "No figure has this name.");
  };

  app.trainingPanel = async (panel, run, summary, query) => {
    let rows = await app.load(app.runPath(run, "metrics"));
    const box = el("div");
    const find = el("input.grow", { type: "search", placeholder: "Filter figures", "aria-label": "Filter figures", value: query.text ?? "", oninput: () => {
      app.replace(app.runAddress(run, { tab: "training", text: find.value.trim() }));
      draw();
    } });
    const weight = el("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: 0.6, oninput: () => draw() });
    const draw = () => fill(box, rows.length ? app.curves([{ name: run, rows }], find.value.trim(), Number(weight.value)) : el("p.none", "No training step was made yet."));
    add(panel, el("div.bar", find, el("label.bar.soft", "Smoothing ", weight)), box);
    app.keys.set("/", () => find.focus());
    draw();
    return async (changes) => {
      if (!changes.steps) return;
      rows = await app.load(app.runPath(run, "metrics"));
      draw();
    };
  };
}
