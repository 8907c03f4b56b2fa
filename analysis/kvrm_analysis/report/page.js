"use strict";
// What the charts share, and the controls around them.

class Page {
  constructor(data) {
    Object.assign(this, { runs: data.runs, shaded: data.shaded, hidden: new Set(), domains: {}, plots: [] });
    this.axes = Object.fromEntries(Object.entries(data.axes).map(([name, about]) => [name, new Axis(about)]));
    this.live = document.getElementById("live");
    this.reset = document.getElementById("reset");
    this.reset.addEventListener("click", () => this.zoom(null, null));
    for (const spec of data.charts) {
      const figure = document.getElementById(`chart-${spec.id}`);
      if (figure) this.plots.push(new Plot(figure, spec, this));
    }
    this.legend();
    this.fold();
    this.theme();
    this.print();
    this.redraw();
    document.getElementById("unscripted").remove();
  }

  redraw(axis = null) { for (const plot of this.plots) if (axis === null || plot.spec.axis === axis) plot.draw(); }

  legend() {
    for (const button of document.querySelectorAll("button.run")) {
      button.addEventListener("click", () => this.toggle(button));
    }
  }

  // Show or hide a run, in charts and tables; shift or alt: it alone.
  toggle(button) {
    const at = Number(button.dataset.run);
    if (this.hidden.has(at)) this.hidden.delete(at);
    else this.hidden.add(at);
    button.setAttribute("aria-pressed", String(!this.hidden.has(at)));
    for (const cell of document.querySelectorAll(`[data-column="${at}"]`)) cell.hidden = this.hidden.has(at);
    this.redraw();
    this.say(`${this.runs[at].name} ${this.hidden.has(at) ? "hidden" : "shown"}`);
  }

  // The table of results begins short: a button shows the rest.
  fold() {
    const table = document.querySelector(".results");
    const button = document.getElementById("fold");
    const show = (all) => {
      table.classList.toggle("short", !all);
      button.setAttribute("aria-expanded", String(all));
      button.textContent = all ? "Show the headline alone" : `Show all ${table.querySelectorAll("tbody tr:not(.group)").length} rows`;
    };
    button.hidden = false;
    button.addEventListener("click", () => show(table.classList.contains("short")));
    show(false);
  }

  zoom(axis, domain) {
    if (axis === null) this.domains = {};
    else if (domain === null) delete this.domains[axis];
    else {
      const [low, high] = this.axes[axis].whole;
      const least = this.axes[axis].step * 4;
      let [from, to] = [Math.max(low, domain[0]), Math.min(high, domain[1])];
      if (to - from < least) {
        const centre = Math.min(high - least / 2, Math.max(low + least / 2, (from + to) / 2));
        [from, to] = [centre - least / 2, centre + least / 2];
      }
      if (to - from >= (high - low) * 0.999) delete this.domains[axis];
      else this.domains[axis] = [from, to];
    }
    this.reset.disabled = Object.keys(this.domains).length === 0;
    this.redraw(axis);
    const range = axis === null ? null : this.domains[axis];
    const written = (x) => this.axes[axis].written(x);
    this.say(range ? `zoomed to ${written(range[0])} to ${written(range[1])} ${this.axes[axis].unit}` : "everything shown");
  }

  // The cursor of one chart is seen in every chart of its axis; values beside the first alone.
  point(plot, index) {
    for (const each of this.plots) if (each === plot || (plot.axis && each.axis === plot.axis)) each.point(index, each === plot);
  }

  say(text) {
    clearTimeout(this.later);
    this.later = setTimeout(() => { this.live.textContent = text; }, 80);
  }

  theme() {
    const buttons = document.querySelectorAll("[data-theme-choice]");
    for (const button of buttons) {
      button.addEventListener("click", () => {
        const choice = button.dataset.themeChoice;
        if (choice) document.documentElement.dataset.theme = choice;
        else delete document.documentElement.dataset.theme;
        for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      });
    }
  }

  // Charts are drawn for the width that they have on paper.
  print() {
    window.matchMedia("print").addEventListener("change", () => this.redraw());
    window.addEventListener("beforeprint", () => this.redraw());
    window.addEventListener("afterprint", () => this.redraw());
  }
}

// Definitions beside what they define, on hover and focus; the text is that of the glossary.
class Definitions {
  constructor() {
    this.tip = document.getElementById("tip");
    const show = (event) => {
      const term = event.target.closest?.("[data-field]");
      if (term) this.show(term);
    };
    document.addEventListener("pointerover", show);
    document.addEventListener("focusin", show);
    document.addEventListener("pointerout", (event) => { if (event.target.closest?.("[data-field]")) this.hide(); });
    document.addEventListener("focusout", () => this.hide());
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") this.hide(); });
    document.addEventListener("scroll", () => this.place(), { passive: true, capture: true });
  }

  show(term) {
    const entry = document.getElementById(`def-${term.dataset.field}`);
    if (!entry) return;
    this.tip.replaceChildren();
    node(this.tip, "div", {}, entry.textContent);
    const statistic = term.dataset.statistic && document.getElementById(`def-${term.dataset.statistic}`);
    if (statistic) node(this.tip, "div", { class: "soft" }, `${term.dataset.statistic}: ${statistic.textContent}`);
    this.tip.hidden = false;
    this.term = term;
    this.place();
  }

  place() {
    if (this.tip.hidden) return;
    const bounds = this.term.getBoundingClientRect();
    this.tip.style.left = `${Math.max(8, Math.min(bounds.left, window.innerWidth - this.tip.offsetWidth - 12))}px`;
    const below = bounds.bottom + 8;
    this.tip.style.top = `${below + this.tip.offsetHeight > window.innerHeight ? bounds.top - this.tip.offsetHeight - 8 : below}px`;
  }

  hide() { this.tip.hidden = true; }
}

new Definitions();
window.kvrm = new Page(JSON.parse(document.getElementById("data").textContent));
