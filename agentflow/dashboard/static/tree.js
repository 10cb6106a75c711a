// A seed: the outline of its tree, and the panel of the chosen node.
"use strict";
{
  const app = globalThis.agentflow;
  const { el, add, fill, count } = app;

  app.MARKS = {
    n: ["new", "●"], r: ["repeats", "◐"], e: ["empty", "○"], x: ["error", "✕"], o: ["off_topic", "◇"], ".": ["waiting", "·"],
  };
  const LETTER = Object.fromEntries(Object.entries(app.MARKS).map(([letter, [name]]) => [name, letter]));
  app.mark = (verdict, spot) => {
    if (spot === "") return el("span.mark.root", { title: "seed" }, "◆");
    const [name, shape] = app.MARKS[LETTER[verdict] ?? "."];
    return el("span", { class: `mark ${name}`, title: name.replace("_", " ") }, shape, el("span.hidden", name.replace("_", " ")));
  };

  const isParent = (spots, parent, index, cut) => spots[parent]?.length === cut && spots[index].startsWith(spots[parent]);

  // Shape of a tree: nodes by number, in the order of the skeleton; `rows` are those in sight of the outline, in preorder.
  app.TreeShape = class {
    constructor({ spots, marks }) {
      this.spots = spots;
      this.marks = marks;
      this.at = new Map(spots.map((spot, index) => [spot, index]));
      const size = spots.length;
      this.parent = new Int32Array(size).fill(-1);
      this.first = new Int32Array(size).fill(-1);
      this.next = new Int32Array(size).fill(-1);
      this.depth = new Int32Array(size);
      const last = new Int32Array(size).fill(-1);
      // Children have the order of their parents, so the parent is usually that of the node before, or the next one.
      for (let index = 0, parent = 0; index < size; index++) {
        if (spots[index] === "") continue;
        const cut = Math.max(0, spots[index].lastIndexOf("-"));
        for (let tries = 0; tries < 8 && !isParent(spots, parent, index, cut); tries++) parent++;
        if (!isParent(spots, parent, index, cut)) parent = this.at.get(spots[index].slice(0, cut)) ?? 0;
        this.parent[index] = parent;
        this.depth[index] = this.depth[parent] + 1;
        if (last[parent] < 0) this.first[parent] = index;
        else this.next[last[parent]] = index;
        last[parent] = index;
      }
    }

    *children(index) {
      for (let child = this.first[index]; child >= 0; child = this.next[child]) yield child;
    }

    siblings(index) {
      return this.parent[index] < 0 ? [index] : [...this.children(this.parent[index])];
    }

    // Nodes in preorder; below a closed node none; with a filter the matching nodes and their ancestors.
    preorder(closed, letters) {
      const size = this.spots.length;
      let kept = null;
      if (letters.size) {
        kept = new Uint8Array(size);
        for (let index = size - 1; index >= 0; index--) {
          if (letters.has(this.marks[index]) && index > 0) kept[index] = 1;
          if (kept[index] && this.parent[index] >= 0) kept[this.parent[index]] = 1;
        }
        kept[0] = 1;
      }
      const rows = new Int32Array(size);
      let used = 0;
      for (let index = size ? 0 : -1; index >= 0; ) {
        const isKept = !kept || kept[index];
        if (isKept) rows[used++] = index;
        if (isKept && this.first[index] >= 0 && !closed.has(this.spots[index])) {
          index = this.first[index];
          continue;
        }
        while (index >= 0 && this.next[index] < 0) index = this.parent[index];
        if (index >= 0) index = this.next[index];
      }
      return rows.subarray(0, used);
    }
  };

  class Outline {
    constructor(run, seed, pick) {
      Object.assign(this, { run, seed, pick, closed: new Set(), letters: new Set(), known: new Map(), asked: new Set(), fresh: new Set(), selected: "", text: "" });
      this.list = new app.Rows((place) => this.row(place), { role: "tree", "aria-label": "Nodes", seen: (first, last) => this.want(first, last) });
      this.box = this.list.box;
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.box.addEventListener("click", (event) => this.click(event));
      this.total = el("span.counts.num", { role: "status" });
      this.filters = el("div.filters", { role: "group", "aria-label": "Show only" });
    }

    // Show a skeleton without moving what the reader looks at.
    set(skeleton) {
      const old = this.shape, top = this.box.scrollTop;
      const anchor = old && this.rows.length ? old.spots[this.rows[Math.min(this.rows.length - 1, Math.floor(top / this.list.height))]] : null;
      const offset = top % this.list.height;
      this.shape = new app.TreeShape(skeleton);
      this.planned = new Set(skeleton.planned ?? []);
      if (old) {
        const changed = skeleton.spots.filter((spot, index) => skeleton.marks[index] !== old.marks[old.at.get(spot)]);
        for (const spot of changed) {
          if (!old.at.has(spot)) this.fresh.add(spot);
          this.forget(spot);
        }
        setTimeout(() => this.fresh.clear(), 2500);
      }
      this.arrange();
      const place = anchor !== null && top > 0 ? this.place(anchor) : -1;
      if (place >= 0) (this.box.scrollTop = place * this.list.height + offset), this.list.draw();
      this.drawFilters();
    }

    forget(spot) {
      this.asked.delete(parentOf(spot));
    }

    arrange() {
      this.rows = this.shape.preorder(this.closed, this.letters);
      this.list.set(this.rows.length);
      this.aim();
    }

    place(spot) {
      const index = this.shape.at.get(spot);
      return index === undefined ? -1 : this.rows.indexOf(index);
    }

    drawFilters() {
      const numbers = {};
      for (let index = 1; index < this.shape.marks.length; index++) numbers[this.shape.marks[index]] = (numbers[this.shape.marks[index]] ?? 0) + 1;
      const buttons = Object.entries(app.MARKS).filter(([letter]) => numbers[letter]).map(([letter, [name, shape]]) =>
        el("button", { type: "button", "aria-pressed": String(this.letters.has(letter)), title: `Show only: ${name.replace("_", " ")}`, onclick: () => {
          if (!this.letters.delete(letter)) this.letters.add(letter);
          this.arrange();
          this.drawFilters();
          this.filtered();
        } }, el("span", { class: `mark ${name}`, "aria-hidden": "true" }, shape), ` ${count(numbers[letter])} ${name.replace("_", " ")}`));
      fill(this.filters, buttons.length > 1 || this.letters.size ? buttons : []);
      fill(this.total, app.plural(this.shape.spots.length - 1, "node"));
    }

    row(place) {
      const { shape } = this, index = this.rows[place], spot = shape.spots[index];
      const about = this.known.get(spot), mark = app.MARKS[shape.marks[index]]?.[0], isOpen = !this.closed.has(spot);
      const hasChildren = shape.first[index] >= 0;
      const depth = shape.depth[index];
      const siblings = this.box.contains(document.activeElement) || this.list.count < 5000 ? shape.siblings(index) : null;
      return el("div.node-row", {
        id: `node-${place}`, role: "treeitem", class: `node-row${this.fresh.has(spot) ? " fresh" : ""}`, data: { spot },
        "aria-level": depth + 1, "aria-selected": String(spot === this.selected), "aria-expanded": hasChildren ? String(isOpen) : null,
        "aria-setsize": siblings?.length ?? null, "aria-posinset": siblings ? siblings.indexOf(index) + 1 : null,
      }, depth > 0 ? el("span.guides", { style: { "--depth": depth } }) : null, el("span.fold", { "aria-hidden": "true" }, hasChildren ? (isOpen ? "▾" : "▸") : ""), app.mark(mark, spot),
        el("span.tool.cut", spot === "" ? app.rootName(this.run) : about ? about.tool : spot), el("span.text.cut", spot === "" ? this.text : about ? about.intent || about.arguments || about.line : ""),
        about?.images ? el("span.badge", { title: app.plural(about.images, "image") }, `▣ ${about.images}`) : null,
        this.planned.has(spot) && !hasChildren ? el("span.badge", { title: "Its next actions are chosen and have no result yet" }, "…") : null,
        !isOpen && hasChildren ? el("span.badge.num", `+${count([...shape.children(index)].length)}`) : null);
    }

    // Load what the rows in sight say, by parent, once the reader rests on them.
    want(first, last) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        const parents = new Set();
        for (let place = first; place <= last && place < this.rows.length; place++) {
          const spot = this.shape.spots[this.rows[place]];
          if (spot !== "" && !this.asked.has(parentOf(spot))) parents.add(parentOf(spot));
        }
        for (const parent of parents) this.children(parent).catch(() => {});
      }, this.known.size ? 60 : 0);
    }

    async children(parent) {
      this.asked.add(parent);
      try {
        const found = await app.load(app.seedPath(this.run, this.seed, "children", { spot: parent }));
        const spots = new Set(found.map((node) => node.spot));
        for (const node of found) this.known.set(node.spot, node);
        for (const [place] of this.list.shown) if (spots.has(this.shape.spots[this.rows[place]])) this.list.refresh(place);
        this.aim();
        return found;
      } catch (error) {
        this.asked.delete(parent);
        throw error;
      }
    }

    async siblings(spot) {
      const parent = parentOf(spot);
      const spots = this.shape.siblings(this.shape.at.get(spot)).map((index) => this.shape.spots[index]);
      if (!this.asked.has(parent) || spots.some((one) => !this.known.has(one))) await this.children(parent);
      return spots.map((one) => this.known.get(one)).filter(Boolean);
    }

    aim() {
      const place = this.place(this.selected);
      for (const [at, row] of this.list.shown) row.setAttribute("aria-selected", String(at === place));
      if (place >= 0 && this.list.shown.has(place)) this.box.setAttribute("aria-activedescendant", `node-${place}`);
      else this.box.removeAttribute("aria-activedescendant");
    }

    select(spot) {
      this.selected = spot;
      let isHidden = false;
      for (let parent = spot; parent !== ""; ) isHidden = this.closed.delete((parent = parentOf(parent))) || isHidden;
      if (this.place(spot) < 0 && this.letters.size) this.letters.clear(), this.drawFilters(), (isHidden = true);
      if (isHidden) this.arrange();
      const place = this.place(spot);
      if (place >= 0) this.list.reveal(place);
      this.aim();
    }

    fold(spot, isClosed = !this.closed.has(spot)) {
      if (isClosed) this.closed.add(spot);
      else this.closed.delete(spot);
      this.arrange();
    }

    click(event) {
      const row = event.target.closest(".node-row");
      if (!row) return;
      if (event.target.closest(".fold") && row.hasAttribute("aria-expanded")) this.fold(row.dataset.spot);
      else this.pick(row.dataset.spot, true);
    }

    // Keys of a tree: arrows, Home, End, page keys.
    key(event) {
      const place = this.place(this.selected), spot = this.selected, index = this.shape.at.get(spot);
      const page = Math.max(1, Math.floor(this.box.clientHeight / this.list.height) - 1), last = this.rows.length - 1;
      const steps = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: last, PageDown: place + page, PageUp: place - page };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in steps) this.pick(this.shape.spots[this.rows[Math.max(0, Math.min(last, steps[event.key]))]]);
      else if (event.key === "ArrowRight" && index !== undefined && this.shape.first[index] >= 0) {
        if (this.closed.has(spot)) this.fold(spot, false);
        else this.pick(this.shape.spots[this.shape.first[index]]);
      } else if (event.key === "ArrowLeft" && index !== undefined) {
        if (this.shape.first[index] >= 0 && !this.closed.has(spot)) this.fold(spot, true);
        else if (spot !== "") this.pick(parentOf(spot));
      } else if (event.key === "Enter") this.pick(spot, true);
      else return;
      event.preventDefault();
    }
  }

  const parentOf = (spot) => spot.slice(0, Math.max(0, spot.lastIndexOf("-")));
  app.parentOf = parentOf;

  app.seedView = async (main, run, seed, query) => {
    const at = { spot: query.spot ?? "", tab: query.tab ?? "node", call: query.call ?? "" };
    const [skeleton, results] = await Promise.all([
      app.load(app.seedPath(run, seed, "skeleton")),
      app.load(app.seedPath(run, seed, "results")).catch(() => null),
    ]);
    const frame = el("div", { class: `seed${query.spot === undefined && !query.tab ? "" : " open"}` });
    const view = el("div.view", { tabindex: "-1", role: "tabpanel" });
    const tabBar = el("div.views");
    const outline = new Outline(run, seed, (spot, isOpened) => choose(spot, isOpened));
    outline.text = results?.text ?? "";
    const split = el("div.split", { role: "separator", tabindex: "0", "aria-orientation": "vertical", "aria-label": "Width of the outline", "aria-valuenow": 32, "aria-valuemin": 15, "aria-valuemax": 70 });
    add(main, add(frame, el("div.side", el("div.bar", outline.filters, outline.total), outline.box), split, el("div.detail", tabBar, view)));
    resizable(frame, split);
    let state = { results, drawn: null };

    // On a narrow screen only an address with a node or a tab shows the panel instead of the outline.
    const address = () => app.seedAddress(run, seed, { spot: at.spot, tab: at.tab !== "node" ? at.tab : !at.spot && frame.classList.contains("open") ? "node" : "", call: at.call, show: [...outline.letters].join("") });
    outline.filtered = () => app.replace(address());
    const names = [["node", "Node"], ["results", "Results"], ["tokens", "Tokens"]];
    const pickTab = (tab) => {
      at.tab = at.tab === tab && tab !== "node" ? "node" : tab;
      app.replace(address());
      drawTabs();
      return draw();
    };
    const drawTabs = () => {
      const back = el("button.plain.back", { type: "button", onclick: () => frame.classList.remove("open") }, "‹ Tree");
      fill(tabBar, back, app.tabs(names, at.tab, (tab) => tab !== at.tab && pickTab(tab), "Views of the seed"));
    };
    let turn = 0;
    const draw = async (isSame = false) => {
      const own = ++turn, top = view.scrollTop;
      try {
        const made = at.tab === "tokens" ? await app.tokenView(run, seed, at) : at.tab === "results" ? app.resultView(run, seed, state.results, at, { choose: (spot) => (pickTab("node"), choose(spot)), address }) : await app.nodeView(outline, at, { choose, results: state.results, address });
        if (own !== turn) return;
        if (isSame && made.signature && made.signature === state.drawn) return;
        state.drawn = made.signature ?? null;
        const opened = isSame ? [...view.querySelectorAll("details")].map((one) => [one.dataset.name, one.open]) : [];
        fill(view, made.node ?? made);
        for (const [name, isOpen] of opened) {
          const same = name && [...view.querySelectorAll("details")].find((one) => one.dataset.name === name);
          if (same && same.open !== isOpen) same.open = isOpen;
        }
        view.scrollTop = isSame ? top : 0;
      } catch (error) {
        if (own === turn) fill(view, app.problem(error)), (state.drawn = null);
      }
    };
    const choose = (spot, isOpened = false) => {
      if (outline.shape.at.get(spot) === undefined) return app.toast(`There is no node ${spot}.`);
      if (isOpened) frame.classList.add("open");
      const isOther = spot !== at.spot;
      at.spot = spot;
      if (isOther) at.call = "";
      outline.select(spot);
      app.replace(address());
      if (at.tab === "node") return draw(!isOther);
      if (isOther && at.tab === "results") return pickTab("node");
      return undefined;
    };

    const move = (step) => () => {
      const { shape } = outline, index = shape.at.get(at.spot);
      const siblings = shape.siblings(index), target = siblings[siblings.indexOf(index) + step];
      if (target !== undefined) choose(shape.spots[target]);
    };
    const failure = (step) => () => {
      const { shape } = outline, rows = shape.preorder(new Set(), new Set()), start = rows.indexOf(shape.at.get(at.spot));
      for (let walked = 1; walked <= rows.length; walked++) {
        const index = rows[(start + step * walked + rows.length * 2) % rows.length];
        if (shape.marks[index] === "x") return choose(shape.spots[index]);
      }
      return app.toast("No node of this tree failed.");
    };
    app.keys.set("j", move(1)).set("k", move(-1)).set("n", failure(1)).set("N", failure(-1));
    app.keys.set("h", () => at.spot !== "" && choose(parentOf(at.spot)));
    app.keys.set("l", () => {
      const child = outline.shape.first[outline.shape.at.get(at.spot)];
      if (child >= 0) choose(outline.shape.spots[child]);
    });
    app.keys.set("t", () => pickTab("tokens")).set("r", () => pickTab("results")).set("g", () => choose(""));
    app.keys.set("o", () => outline.fold(at.spot));
    app.keys.set("/", () => app.searchDialog(run));
    app.keys.set("Escape", () => (outline.box.focus(), frame.classList.remove("open")));

    for (const letter of query.show ?? "") if (letter in app.MARKS) outline.letters.add(letter);
    outline.set(skeleton);
    if (!outline.shape.at.has(at.spot)) app.toast(`There is no node ${at.spot}.`), (at.spot = "");
    outline.select(at.spot);
    drawTabs();
    draw();
    let pending = null, again = null;
    const update = async (changes) => {
      if (changes.seeds?.length && !changes.seeds.includes(seed) && !changes.spots?.length) return;
      const fresh = await app.load(app.seedPath(run, seed, "skeleton"));
      for (const spot of changes.spots ?? []) outline.forget(spot);
      outline.set(fresh);
      if (fresh.state === "done" && skeleton.state !== "done") state.results = await app.load(app.seedPath(run, seed, "results")).catch(() => state.results);
      skeleton.state = fresh.state;
      if (at.tab !== "tokens") await draw(true);
    };
    app.watch(app.runPath(run, "events", { seed, cursor: skeleton.cursor }), (changes) => {
      if (!changes.spots?.length && !changes.seeds?.length) return;
      if (pending) return void (again = changes);
      const next = (news) => {
        pending = update(news).catch(() => {}).finally(() => {
          pending = null;
          if (again) [news, again] = [again, null], next(news);
        });
      };
      next(changes);
    }, app.isOver(skeleton.state));
    return { title: seed, focus: outline.box };
  };

  const resizable = (frame, split) => {
    const set = (percent) => {
      const width = Math.max(15, Math.min(70, percent));
      frame.style.setProperty("--outline", `${width}%`);
      split.setAttribute("aria-valuenow", Math.round(width));
      app.kept("outline", String(width));
    };
    const kept = Number(app.kept("outline"));
    if (kept) set(kept);
    split.addEventListener("pointerdown", (event) => {
      split.setPointerCapture(event.pointerId);
      const move = (moved) => set((100 * (moved.clientX - frame.getBoundingClientRect().left)) / frame.clientWidth);
      split.addEventListener("pointermove", move);
      split.addEventListener("pointerup", () => split.removeEventListener("pointermove", move), { once: true });
    });
    split.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
      if (step) event.preventDefault(), set(Number(split.getAttribute("aria-valuenow")) + step);
    });
  };
}
