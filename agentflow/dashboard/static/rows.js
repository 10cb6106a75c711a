// Virtual rows: only those in sight are in the document.
"use strict";
{
  const app = globalThis.agentflow;
  const MARGIN = 12;
  const LONGEST = 12e6; // Browsers limit the height of an element; beyond it rows are mapped by proportion.

  app.Rows = class {
    // `make(index)` returns the element of a row; `seen(first, last)` is told what is in sight.
    constructor(make, { seen = null, extra = 0, ...attributes } = {}) {
      this.make = make;
      this.seen = seen;
      this.extra = extra;
      this.count = 0;
      this.shown = new Map();
      this.space = app.el("div.space", { role: "presentation" });
      this.box = app.el("div.rows", { tabindex: "0", ...attributes }, this.space);
      this.box.addEventListener("scroll", () => this.later(), { passive: true });
      this.observer = new ResizeObserver(() => this.later());
      this.observer.observe(this.box);
    }

    get height() {
      return (this.row ??= parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) + this.extra);
    }

    later() {
      this.waiting ??= requestAnimationFrame(() => ((this.waiting = null), this.draw()));
    }

    set(count) {
      this.count = count;
      this.row = undefined;
      this.space.style.height = `${Math.min(LONGEST, count * this.height)}px`;
      this.redraw();
    }

    redraw() {
      for (const row of this.shown.values()) row.remove();
      this.shown.clear();
      this.draw();
    }

    get scale() {
      return Math.max(1, (this.count * this.height) / LONGEST);
    }

    range() {
      const fits = Math.ceil(this.box.clientHeight / this.height);
      const first = Math.floor((this.box.scrollTop * this.scale) / this.height);
      return [Math.max(0, Math.min(first, this.count - 1)), Math.min(this.count - 1, first + fits)];
    }

    draw() {
      if (!this.box.isConnected) return;
      const [first, last] = this.range();
      const from = Math.max(0, first - MARGIN), to = Math.min(this.count - 1, last + MARGIN);
      for (const [index, row] of this.shown) if (index < from || index > to) row.remove(), this.shown.delete(index);
      const offset = this.scale === 1 ? 0 : this.box.scrollTop - this.box.scrollTop * this.scale;
      for (let index = from; index <= to; index++) {
        let row = this.shown.get(index);
        if (!row) this.shown.set(index, (row = this.make(index))), this.space.append(row);
        row.style.top = `${index * this.height + offset}px`;
      }
      this.seen?.(from, to);
    }

    refresh(index) {
      const old = this.shown.get(index);
      if (!old) return;
      const row = this.make(index);
      row.style.top = old.style.top;
      old.replaceWith(row);
      this.shown.set(index, row);
    }

    reveal(index) {
      const top = (index * this.height) / this.scale, room = this.box.clientHeight;
      if (top < this.box.scrollTop + this.height) this.box.scrollTop = top - 3 * this.height;
      else if (top + 2 * this.height > this.box.scrollTop + room) this.box.scrollTop = top + 4 * this.height - room;
      this.draw();
    }
  };
}
