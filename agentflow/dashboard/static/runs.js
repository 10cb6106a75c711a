// Runs, and one run: seeds, tasks, tools, failures.
"use strict";
{
  const app = globalThis.agentflow;
  const { el, add, fill, chip, count, short, score } = app;

  const work = (run) => {
    const { waiting = 0, running = 0, done = 0 } = run.seeds ?? {};
    return { total: waiting + running + done, waiting, running, done };
  };
  const failed = (run) => Object.values(run.failures ?? {}).reduce((sum, number) => sum + number, 0);
  const money = (cost) => (cost === null || cost === undefined ? null : `$${cost < 1 ? cost.toPrecision(2) : cost.toFixed(2)}`);

  const isOver = (app.isOver = (state) => state === "done" || state === "stopped");

  // Table of all runs
  app.runsPage = async (main) => {
    const columns = { style: { "grid-template-columns": "1.4rem minmax(9rem,2fr) 6rem 6rem minmax(8rem,1fr) 6rem 6rem 12.5rem" } };
    const narrow = { style: { "grid-template-columns": "1.4rem minmax(0,1fr) 5.5rem 5rem" } };
    const layout = innerWidth <= 760 ? narrow : columns;
    const chosen = [];
    let drawn = "";
    const compare = el("button.primary", { type: "button", disabled: true, onclick: () => app.go(app.address("/compare", { a: chosen[0], b: chosen[1] })) }, "Compare");
    const hint = el("span.faint");
    const body = el("div");
    const draw = async () => {
      const runs = (await app.load("runs")).slice().sort((one, other) => (other.started ?? 0) - (one.started ?? 0));
      const signature = JSON.stringify(runs);
      if (signature === drawn) return undefined;
      drawn = signature;
      if (!runs.length) return fill(body, el("p.none", "There are no runs here."));
      if (runs.length === 1 && !app.cameBack) return app.replace(app.runAddress(runs[0].id)), app.route();
      const rows = runs.map((run) => {
        const { total, done } = work(run);
        const box = el("input", { type: "checkbox", "aria-label": `Choose ${run.name} to compare`, onchange: () => {
          if (box.checked) chosen.push(run.id);
          else chosen.splice(chosen.indexOf(run.id), 1);
          compare.disabled = chosen.length !== 2;
        } });
        box.checked = chosen.includes(run.id);
        return el("div.row", { role: "row", ...layout },
          el("span", { role: "cell" }, box),
          el("span", { role: "cell" }, el("a", { href: app.runAddress(run.id), title: run.folder }, run.name)),
          el("span", { role: "cell" }, run.kind), el("span", { role: "cell" }, run.trouble ? el("span.chip.error", { title: run.trouble }, "unreadable") : chip(run.state)),
          el("span.wide", { role: "cell" }, total ? [bars(done / total), ` ${count(done)} of ${count(total)}`] : "–"),
          el("span.right.wide", { role: "cell" }, failed(run) ? count(failed(run)) : ""),
          el("span.right.wide", { role: "cell" }, money(run.cost) ?? ""),
          el("span.soft.wide", { role: "cell" }, app.time(run.started)));
      });
      fill(hint, runs.length > 1 ? "Choose two runs to compare them by task." : "");
      const names = ["", "Run", "Kind", "State", "Done", "Failures", "Cost", "Started"];
      const heads = names.map((name, at) => el("span", { role: "columnheader", class: `${at >= 4 ? "wide" : ""} ${at === 5 || at === 6 ? "right" : ""}` }, name || el("span.hidden", "Compare")));
      return fill(body, el("div.table", { role: "table", "aria-label": "Runs" }, el("div.row.heads", { role: "row", ...layout }, heads), rows));
    };
    add(main, el("div.page", el("div.head", el("h1.grow", "Runs"), hint, compare), body));
    await draw();
    if (app.bundle) return;
    const timer = setInterval(() => (body.isConnected ? document.hidden || draw().catch(() => {}) : clearInterval(timer)), 5000);
  };

  const bars = (share) => el("span.bars", { "aria-hidden": "true" }, el("i", { style: { width: `${Math.round(share * 100)}%` } }));

  // One run
  app.runPage = async (main, run, query) => {
    let summary = await app.load(app.runPath(run));
    const isTraining = summary.steps > 0 || summary.kind === "training" || summary.kind === "tuning";
    const names = [["seeds", { synthesis: "Seeds", rollout: "Samples" }[summary.kind] ?? "Episodes"]];
    if (summary.kind !== "synthesis") names.push(["tasks", "By task"]);
    if (isTraining) names.push(["training", "Training"]);
    if (summary.kind === "synthesis") names.push(["status", "Actors"]);
    names.push(["tools", "Tools"], ["settings", "Settings"]);
    const current = names.some(([name]) => name === query.tab) ? query.tab : isTraining && !query.text ? "training" : "seeds";
    const figures = el("div");
    const state = el("span");
    const draw = () => (fill(state, chip(summary.state)), fill(figures, summaryFigures(summary)));
    draw();
    const panel = el("div", { role: "tabpanel", class: "panel", style: { display: "flex", "flex-direction": "column", gap: ".8rem", flex: "1", "min-height": "0" } });
    const isFixed = current === "seeds" || current === "tasks";
    const tabs = app.tabs(names, current, (tab) => app.go(app.runAddress(run, { tab })), "Parts of the run");
    add(main, el("div", { class: `page ${isFixed ? "fixed" : ""}` },
      el("div.head", el("h1.cut", { title: summary.folder }, summary.name), state, el("span.soft", summary.kind),
        el("span.faint.wide", app.time(summary.started)), el("span.grow"), exportButton(run)), figures, tabs, panel));
    const parts = { seeds: seedList, tasks: app.taskList, training: app.trainingPanel, status: app.statusPanel, tools: toolList, settings: settingList };
    const update = await parts[current](panel, run, summary, query);
    app.watch(app.runPath(run, "events"), async (changes) => {
      if (changes.summary || changes.steps) summary = await app.load(app.runPath(run)), draw();
      await update?.(changes, summary);
    }, isOver(summary.state));
    return { title: summary.name };
  };

  const summaryFigures = (run) => {
    const { total, done, running, waiting } = work(run), usage = app.usage(run.usage);
    const failures = Object.entries(run.failures ?? {}).sort((one, other) => other[1] - one[1]);
    return [
      app.figures([
        [`${{ synthesis: "seeds", rollout: "samples" }[run.kind] ?? "episodes"} done`, el("span", count(done), total === done ? null : el("span.faint", ` / ${count(total)}`))],
        running ? ["running", count(running)] : null, waiting ? ["waiting", count(waiting)] : null,
        run.steps ? ["steps", count(run.steps)] : null,
        usage.calls ? ["model calls", short(usage.calls)] : null,
        usage.calls ? ["prompt tokens", short(usage.prompt_tokens)] : null,
        usage.calls ? ["sampled tokens", short(usage.completion_tokens)] : null,
        money(run.cost) ? ["cost", money(run.cost)] : null,
      ]),
      failures.length ? el("p", { class: "bar", style: { "margin-top": ".7rem" } }, el("span.soft", "Failures"), failures.map(([kind, number]) => el("span.chip.error", `${kind.replaceAll("_", " ")} ${count(number)}`))) : null,
    ];
  };

  const STATES = ["waiting", "running", "stopped", "done"];

  const seedList = async (panel, run, summary, query) => {
    const hasScores = summary.kind !== "synthesis";
    const label = { synthesis: "seeds", rollout: "samples" }[summary.kind] ?? "episodes", isEpisode = label === "episodes";
    const wide = innerWidth > 760;
    const template = wide ? `8.5rem minmax(0,1fr) 5.6rem 5rem ${hasScores ? "5rem minmax(0,.5fr)" : "5.5rem"} 1.2rem` : "minmax(0,1fr) 4.6rem 5rem";
    const grid = { style: { "grid-template-columns": template } };
    const filter = { text: query.text ?? "", state: query.state ?? "" };
    let seeds = [], isEnd = false, loading = null, turn = 0;

    const make = (index) => {
      const seed = seeds[index];
      const address = app.seedAddress(run, seed.id);
      const end = hasScores ? score(seed.score) : seed.pairs === null ? "" : count(seed.pairs);
      const cells = wide
        ? [el("a.mono", { href: address }, seed.id), el("span", seed.text), el("span", chip(seed.failure ? "failed" : seed.state)), el("span.right", count(seed.nodes)), el("span.right", end),
           hasScores ? el("span.soft", seed.answer) : null, el("span", { title: seed.failure, class: "mark error" }, seed.failure ? "✕" : "")]
        : [el("a", { href: address }, seed.text || seed.id), el("span", chip(seed.failure ? "failed" : seed.state)), el("span.right", end || count(seed.nodes))];
      return el("div.row.link", { role: "listitem", "aria-setsize": isEnd ? seeds.length : -1, "aria-posinset": index + 1, title: seed.failure || null, ...grid }, cells);
    };
    const more = async () => {
      if (isEnd || loading) return loading;
      const own = turn;
      loading = app.seedPage(run, seeds.at(-1)?.id ?? "", filter);
      const page = await loading.finally(() => (loading = null));
      if (own !== turn) return undefined;
      seeds.push(...page);
      isEnd = page.last !== undefined ? page.last === null : page.length < 200;
      fill(shown, `${isEnd || filter.text || filter.state ? count(seeds.length) + (isEnd ? "" : " or more") : count(work(summary).total)} ${label}`);
      return rows.set(seeds.length);
    };
    const rows = new app.Rows(make, { extra: 4, role: "list", "aria-label": "Seeds", seen: (_, last) => last > seeds.length - 60 && more().catch(() => {}) });
    const restart = () => {
      seeds = [];
      isEnd = false;
      loading = null;
      turn += 1;
      app.replace(app.runAddress(run, { tab: "seeds", text: filter.text, state: filter.state }));
      return more();
    };
    let timer = 0;
    const find = el("input.grow", { type: "search", placeholder: "Filter by text or id", "aria-label": "Filter by text or id", value: filter.text, oninput: () => {
      filter.text = find.value.trim();
      clearTimeout(timer);
      timer = setTimeout(restart, 180);
    } });
    const states = el("select", { "aria-label": "State", onchange: () => ((filter.state = states.value), restart()) },
      el("option", { value: "" }, "All states"), STATES.map((name) => el("option", { value: name, selected: name === filter.state }, name)));
    const shown = el("span.faint.num", { role: "status" });
    const heads = wide ? ["Id", hasScores ? "Question" : "Content", "State", isEpisode ? "Calls" : "Nodes", hasScores ? "Score" : "Accepted", hasScores ? "Answer" : null, ""] : ["Content", "State", hasScores ? "Score" : "Accepted"];
    add(panel, el("div.bar", find, states, shown), el("div.table.fill", el("div.row.heads", { "aria-hidden": "true", ...grid },
      heads.filter((name) => name !== null).map((name) => el("span", { class: ["Nodes", "Calls", "Score", "Accepted"].includes(name) ? "right" : "", title: name === "Accepted" ? "Accepted questions or tasks, before quotas drop some of the run's" : null }, name))), rows.box));
    const step = (way) => () => {
      const focused = [...rows.shown].find(([, row]) => row.contains(document.activeElement));
      const index = Math.max(0, Math.min(seeds.length - 1, focused ? focused[0] + way : rows.range()[0]));
      rows.reveal(index);
      rows.shown.get(index)?.querySelector("a").focus({ preventScroll: true });
    };
    app.keys.set("/", () => find.focus()).set("j", step(1)).set("k", step(-1));
    await more();
    return async (changes) => {
      if (!changes.seeds?.length) return;
      const places = new Map(seeds.map((seed, index) => [seed.id, index]));
      const pages = new Set(changes.seeds.filter((id) => places.has(id)).map((id) => Math.floor(places.get(id) / 200)));
      if (changes.seeds.some((id) => !places.has(id)) && isEnd) isEnd = false;
      const own = turn;
      for (const page of pages) {
        const fresh = await app.seedPage(run, page ? seeds[page * 200 - 1].id : "", filter);
        if (own !== turn) return;
        seeds.splice(page * 200, Math.min(200, seeds.length - page * 200), ...fresh);
      }
      rows.set(seeds.length);
    };
  };

  // Samples by task, with their scores
  app.taskList = async (panel, run) => {
    add(panel, el("p.none", "Loading …"));
    const tasks = app.byTask(await app.allSeeds(run));
    const wide = innerWidth > 760;
    const grid = { style: { "grid-template-columns": wide ? "minmax(0,1fr) 5rem 9rem minmax(10rem,.5fr)" : "minmax(0,1fr) 4rem 5rem" } };
    const make = (index) => {
      const { name, text, samples, mean } = tasks[index];
      const links = samples.slice(0, 24).map((seed) => el("a", { href: app.seedAddress(run, seed.id), title: `${seed.id}: ${seed.answer || seed.failure || "no answer"}`, class: "num" }, seed.score === null ? (seed.failure ? "✕" : "·") : score(seed.score), " "));
      return el("div.row", { role: "row", ...grid }, el("span", { role: "cell" }, text || name, " ", el("span.faint.mono", text ? name : "")), el("span.right.num", { role: "cell" }, app.figure(mean)),
        el("span.wide", { role: "cell" }, mean === null ? "" : bars(Math.max(0, Math.min(1, mean)))), el("span", { role: "cell" }, links));
    };
    const rows = new app.Rows(make, { extra: 4, role: "rowgroup" });
    fill(panel, el("div.table.fill", { role: "table", "aria-label": "Scores by task" }, el("div.row.heads", { role: "row", ...grid },
      ["Task", "Mean", "", "Samples"].map((name, at) => el("span", { role: "columnheader", class: at === 1 ? "right" : at === 2 ? "wide" : "" }, name || el("span.hidden", "Bar")))), rows.box));
    rows.set(tasks.length);
  };

  app.byTask = (seeds) => {
    const tasks = new Map();
    for (const seed of seeds) {
      const name = seed.task || seed.id;
      if (!tasks.has(name)) tasks.set(name, { name, text: seed.text, samples: [] });
      tasks.get(name).samples.push(seed);
    }
    for (const task of tasks.values()) {
      const scores = task.samples.map((seed) => seed.score).filter((one) => one !== null && one !== undefined);
      task.mean = scores.length ? scores.reduce((sum, one) => sum + one, 0) / scores.length : null;
    }
    return [...tasks.values()];
  };

  const toolList = async (panel, run) => {
    const tools = await app.load(app.runPath(run, "tools"));
    if (!tools.length) return add(panel, el("p.none", "The run kept no tool schemas."));
    return add(panel, tools.map((tool) => el("details.block", el("summary", el("span.mono", tool.name), el("span.info.cut.grow", tool.description)),
      el("div.body", el("p.words", tool.description), el("pre.words", JSON.stringify(tool.schema ?? tool.parameters ?? tool, null, 2))))));
  };

  const settingList = async (panel, run, summary) => {
    const entries = [...Object.entries(summary.models ?? {}).map(([role, model]) => [`model of the ${role}`, model]), ...Object.entries(summary.settings ?? {})];
    if (!entries.length) return add(panel, el("p.none", "No settings are recorded."));
    const list = entries.flatMap(([name, value]) => [el("dt", name), el("dd.words.mono", typeof value === "string" ? value : JSON.stringify(value, null, 2))]);
    return add(panel, el("div.block", el("div.body", el("dl.args", list))));
  };

  const CALLS = { in_flight: "In flight", waiting: "Waiting", limit: "Limit at once", calls: "Calls so far", failures: "Failed" };

  // Supervised actors and calls in flight
  app.statusPanel = async (panel, run, summary) => {
    const draw = async () => {
      const found = await app.load(app.runPath(run, "status")).catch((error) => (error.status === 404 || app.bundle ? null : Promise.reject(error)));
      if (!found) return fill(panel, el("p.none", app.isOver(summary.state) ? "The run is over: it has no actors." : "The run can't be asked: it has just begun, is not on this machine, or has no control server."));
      const table = (title, entries) => {
        const names = [...new Set(entries.flatMap((entry) => Object.keys(entry)))].slice(0, 7);
        const grid = { style: { "grid-template-columns": `minmax(8rem,1.5fr) repeat(${Math.max(0, names.length - 1)}, minmax(0,1fr))` } };
        return [el("h2", title), entries.length ? el("div.table", { role: "table", "aria-label": title }, el("div.row.heads", { role: "row", ...grid }, names.map((name) => el("span", { role: "columnheader", class: name in CALLS ? "right" : "" }, CALLS[name] ?? name[0].toUpperCase() + name.slice(1)))),
          entries.map((entry) => el("div.row", { role: "row", ...grid }, names.map((name) => el("span", { role: "cell", class: name in CALLS ? "right" : "" }, name === "state" ? chip(String(entry[name])) : typeof entry[name] === "object" ? JSON.stringify(entry[name]) : entry[name] ?? ""))))) : el("p.none", "None.")];
      };
      return fill(panel, table("Actors", found.actors ?? []), table("Model calls", (found.calls ?? []).map((entry, at) => ({ model: `Model ${at + 1}`, ...entry }))));
    };
    await draw();
    if (app.bundle) return undefined;
    const timer = setInterval(() => (panel.isConnected && !document.hidden ? draw().catch(() => {}) : panel.isConnected || clearInterval(timer)), 2000);
    return undefined;
  };

  // Export by the viewer
  const FORMATS = ["native", "parquet", "trl-sft", "trl-sft-tokens", "trl-dpo", "trl-kto", "trl-prm", "trl-grpo", "openai", "sharegpt", "axolotl", "verl-rl", "verl-sft"];
  const exportButton = (run) => {
    if (app.bundle) return null;
    const format = el("select", { "aria-label": "Format" }, FORMATS.map((name) => el("option", name)));
    const take = el("select", { "aria-label": "Episodes" }, ["all", "correct", "best"].map((name) => el("option", name)));
    const answer = el("p.soft", { role: "status" });
    const start = el("button.primary", { type: "button", onclick: async () => {
      start.disabled = true;
      fill(answer, "Exporting …");
      try {
        const sent = await app.request(app.runPath(run, "export"), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ format: format.value, take: take.value }) });
        fill(answer, "Written to ", el("code", (await sent.json()).folder));
      } catch (error) {
        fill(answer, error.message);
      } finally {
        start.disabled = false;
      }
    } }, "Export");
    const dialog = el("dialog", { "aria-label": "Export" }, el("h2", "Export this run"), el("div.bar", format, take, start, el("button", { type: "button", onclick: () => dialog.close() }, "Close")), answer);
    return el("span", el("button", { type: "button", onclick: () => dialog.showModal() }, "Export"), dialog);
  };
}
