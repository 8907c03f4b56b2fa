"use strict";
// One chart: drawn as SVG, read by pointer and by keys. The page owns what charts share: hidden runs, zoom, cursor.

const HEIGHT = 216;
const MARGIN = { left: 54, right: 10, top: 16, bottom: 34 };
const BAR = 24;

class Plot {
  constructor(figure, spec, page) {
    Object.assign(this, { figure, spec, page, chosen: 0, log: Boolean(spec.log), cursor: null, number: page.plots.length });
    this.axis = page.axes[spec.axis] || null;
    const head = figure.querySelector(".head");
    this.switches(head);
    this.frame = node(figure, "div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart" });
    this.box = node(this.frame, "div", { class: "tipbox", hidden: "" });
    this.key = node(figure, "div", { class: "key" });
    if (spec.kind !== "bars") this.values();
    this.listen();
    new ResizeObserver(() => { if (this.frame.clientWidth !== this.width) this.draw(); }).observe(this.frame);
  }

  get measure() { return this.spec.measures[this.chosen]; }

  get stacked() { return this.spec.kind === "stack" || this.spec.kind === "bars"; }

  // The lines to be drawn: {name, y, colour, dash, width}.
  get lines() {
    const { runs, hidden } = this.page;
    return this.measure.lines.filter((line) => line.run === undefined || !hidden.has(line.run)).map((line, at) => {
      if (line.run === undefined && this.stacked) return { ...line, colour: (line.colour + 1) % 7, dash: 0, thick: 1.8 };
      // A trace is no run: none of their colours, and told apart by its dashes.
      if (line.run === undefined) return { ...line, colour: "x", dash: at % 3, thick: 1.8 };
      const { name, colour, dash } = runs[line.run];
      return { ...line, name, colour, dash, thick: runs.length > 1 ? 2.8 - (1.4 * line.run) / (runs.length - 1) : 1.8 };
    });
  }

  // A run's own stack can be hidden with the run: then another one is shown.
  get shown() { return this.spec.measures.map((each, at) => at).filter((at) => !this.page.hidden.has(this.spec.measures[at].run)); }

  switches(head) {
    const { measures } = this.spec;
    this.buttons = [];
    if (measures.length > 1 || !this.stacked) {
      const group = node(head, "div", { class: "measures", role: "group", "aria-label": `${this.spec.title}: what is shown` });
      measures.forEach((measure, at) => {
        const button = node(group, "button", { type: "button", "aria-pressed": String(at === 0) }, measure.name);
        if (measure.field) button.dataset.field = measure.field;
        button.addEventListener("click", () => { this.chosen = at; this.draw(); });
        this.buttons.push(button);
      });
      if (measures.length === 1) group.hidden = true;
      if (!this.stacked && this.spec.kind !== "heat") {
        const scale = node(group, "button", { type: "button", "aria-pressed": String(this.log) }, "log");
        scale.setAttribute("aria-label", "logarithmic scale");
        scale.addEventListener("click", () => {
          this.log = !this.log;
          scale.setAttribute("aria-pressed", String(this.log));
          this.draw();
        });
        group.hidden = false;
        this.buttons.forEach((button) => { if (measures.length === 1) button.hidden = true; });
      }
    }
  }

  values() {
    this.details = node(this.figure, "details", { class: "values" });
    node(this.details, "summary", {}, "Values as a table");
    this.table = node(this.details, "div", { class: "wide", tabindex: "0", role: "region", "aria-label": `${this.spec.title}: values` });
    this.details.addEventListener("toggle", () => this.fill());
  }

  fill() {
    if (!this.details || !this.details.open) return;
    this.table.replaceChildren();
    const table = node(this.table, "table");
    const head = node(node(table, "thead"), "tr");
    node(head, "th", { scope: "col" }, `${this.axis.label}${this.axis.unit ? `, ${this.axis.unit}` : ""}`);
    const { lines, domain } = this;
    for (const line of lines) node(head, "th", { scope: "col" }, `${line.name}, ${this.measure.unit}`);
    const body = node(table, "tbody");
    for (let index = 0; index < this.axis.count; index += 1) {
      const x = this.axis.at(index);
      if (x < domain[0] || x > domain[1] || lines.every((line) => line.y[index] === null)) continue;
      const row = node(body, "tr");
      node(row, "th", { scope: "row" }, this.axis.head(index));
      for (const line of lines) node(row, "td", {}, number(line.y[index]));
    }
  }

  get domain() { return this.page.domains[this.spec.axis] || this.axis.whole; }

  draw() {
    if (!this.shown.includes(this.chosen)) this.chosen = this.shown[0] ?? 0;
    this.buttons.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === this.chosen));
      button.hidden = this.spec.measures.length === 1 || !this.shown.includes(at);
    });
    this.width = this.frame.clientWidth || 640;
    if (this.svg) this.svg.remove();
    if (this.spec.kind === "bars") this.drawBars();
    else this.drawLines();
    this.describe();
    this.fill();
    this.drawKey();
    this.point(this.cursor, false);
  }

  canvas(height) {
    this.svg = shape(this.frame, "svg", { viewBox: `0 0 ${this.width} ${height}`, "aria-hidden": "true", focusable: "false" });
    this.inner = { left: MARGIN.left, top: MARGIN.top, width: this.width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    return this.svg;
  }

  x(value) {
    const [low, high] = this.domain;
    return this.inner.left + ((value - low) / (high - low)) * this.inner.width;
  }

  y(value) {
    const [low, high] = this.range;
    const share = this.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return this.inner.top + this.inner.height * (1 - share);
  }

  // Least and greatest of what is seen now, with room.
  measureRange(lines) {
    const [low, high] = this.domain;
    let least = Infinity, most = -Infinity;
    for (const line of lines) {
      line.top.forEach((value, index) => {
        const x = this.axis.at(index);
        if (value === null || x < low - this.axis.step || x > high + this.axis.step || (this.log && value <= 0)) return;
        least = Math.min(least, value);
        most = Math.max(most, value);
      });
    }
    if (most === -Infinity) return null;
    if (this.log) return most > least * 1.05 ? [least / 1.08, most * 1.08] : [least / 1.5, most * 1.5];
    return most > 0 ? [0, most * 1.06] : least < 0 ? [least * 1.06, 0] : [0, 1];
  }

  drawLines() {
    const { axis, domain } = this;
    const svg = this.canvas(HEIGHT);
    const { left, top, width, height } = this.inner;
    const lines = this.lines.map((line) => ({ ...line, top: line.y, floor: null }));
    if (this.stacked) {
      lines.forEach((line, at) => {
        line.floor = at ? lines[at - 1].top : line.y.map(() => 0);
        line.top = line.y.map((value, index) => (value === null ? (at ? line.floor[index] : null) : value + (line.floor[index] ?? 0)));
      });
    }
    this.range = this.measureRange(lines);
    const clip = `clip-${this.number}`;
    shape(shape(shape(svg, "defs"), "clipPath", { id: clip }), "rect", { x: left, y: top - 3, width, height: height + 4 });
    const inside = `url(#${clip})`;
    this.shade(svg);
    if (this.range === null) {
      shape(svg, "text", { class: "empty", x: left + width / 2, y: top + height / 2, "text-anchor": "middle" },
        lines.length ? "no values here" : "every run is hidden");
    } else {
      const [low, high] = this.range;
      for (const value of (this.log ? logTicks : ticks)(low, high, height / (this.log ? 30 : 42))) {
        const y = this.y(value);
        shape(svg, "line", { class: "gridline", x1: left, x2: left + width, y1: y, y2: y });
        shape(svg, "text", { x: left - 7, y: y + 4, "text-anchor": "end" }, number(Number(value.toPrecision(10))));
      }
    }
    for (const [value, text] of axis.ticks(domain, width / (axis.words ? 92 : 72))) {
      const x = this.x(value);
      shape(svg, "line", { class: "axis", x1: x, x2: x, y1: top + height, y2: top + height + 4 });
      const anchor = x + 4 * text.length > this.width ? "end" : "middle";
      shape(svg, "text", { x: anchor === "end" ? this.width : x, y: top + height + 16, "text-anchor": anchor }, text);
    }
    shape(svg, "line", { class: "axis", x1: left, x2: left + width, y1: top + height, y2: top + height });
    shape(svg, "text", { class: "unit", x: left + width, y: HEIGHT - 4, "text-anchor": "end" }, `${axis.label}${axis.unit ? `, ${axis.unit}` : ""}`);
    shape(svg, "text", { class: "unit", x: 0, y: 9 }, `${this.measure.unit}${this.log ? ", log scale" : ""}`);
    if (this.range !== null) for (const line of lines) this.drawLine(svg, line, inside);
    this.mark(svg);
    this.drawn = lines;
    this.cross = shape(svg, "line", { class: "cross", y1: top, y2: top + height, visibility: "hidden" });
    this.dots = shape(svg, "g");
    this.selection = shape(svg, "rect", { class: "select", y: top, height, visibility: "hidden" });
  }

  // Stretches of x: bursts on the axis that the runs share, or the chart's own, which have names.
  shade(svg) {
    const { left, top, width, height } = this.inner;
    for (const [from, to, name] of this.spec.shaded || (this.spec.axis === "time" ? this.page.shaded : [])) {
      const start = Math.max(this.x(this.axis.place(from)), left), end = Math.min(this.x(this.axis.place(to)), left + width);
      if (end <= start) continue;
      shape(svg, "rect", { class: `shade ${name || ""}`, x: start, y: top, width: end - start, height });
      if (name && end - start > 7 * name.length) shape(svg, "text", { class: "named", x: start + 4, y: top + 12 }, name);
    }
  }

  // Single values of x that have names.
  mark(svg) {
    const { left, top, width, height } = this.inner;
    for (const [value, name] of this.spec.marks || []) {
      const x = this.x(this.axis.place(value));
      if (x < left || x > left + width) continue;
      shape(svg, "line", { class: "cross", x1: x, x2: x, y1: top, y2: top + height });
      const before = x - left > width / 2;
      shape(svg, "text", { class: "named", x: before ? x - 4 : x + 4, y: top + 12, "text-anchor": before ? "end" : "start" }, name);
    }
  }

  // Each value over the whole of its class, [x, y] corners; gaps where there is none.
  stairs(line) {
    const { axis } = this;
    return line.top.flatMap((value, index) => {
      if (value === null || (this.log && value <= 0)) return [null];
      const y = this.y(value).toFixed(1);
      return [[this.x(axis.edge(index)).toFixed(1), y], [this.x(axis.edge(index + 1)).toFixed(1), y]];
    });
  }

  drawStairs(svg, line, inside) {
    const points = this.stairs(line);
    const base = this.y(this.range[0]).toFixed(1);
    let path = "", filled = "";
    points.forEach((point, at) => {
      if (point === null) return;
      const begins = !points[at - 1], ends = !points[at + 1];
      path += `${begins ? "M" : "L"}${point.join(" ")}`;
      filled += `${begins ? `M${point[0]} ${base}` : ""}L${point.join(" ")}${ends ? `V${base}Z` : ""}`;
    });
    shape(svg, "path", { class: `filled c${line.colour}`, d: filled, "clip-path": inside, "fill-opacity": line.dash ? 0.08 : 0.2 });
    shape(svg, "path", { class: `line c${line.colour} d${line.dash}`, d: path, "clip-path": inside, "stroke-width": line.thick });
  }

  drawLine(svg, line, inside) {
    if (this.spec.kind === "stairs") {
      this.drawStairs(svg, line, inside);
      return;
    }
    const { top } = line;
    const points = top.map((value, index) => {
      // No logarithm has a 0: where a share falls to it, the line ends at the foot of the chart.
      const falls = this.log && this.spec.falls && value === 0 && index > 0 && top[index - 1] > 0;
      if (value === null || (this.log && value <= 0 && !falls)) return null;
      return [this.x(this.axis.at(index)).toFixed(1), this.y(falls ? this.range[0] : value).toFixed(1)];
    });
    if (this.stacked || this.spec.kind === "area") {
      const floor = line.top.map((value, index) => (this.log ? this.range[0] : line.floor ? line.floor[index] ?? 0 : 0));
      const known = points.map((point, index) => [point, index]).filter(([point]) => point !== null);
      if (!known.length) return;
      const back = known.map(([point, index]) => `${point[0]} ${this.y(floor[index]).toFixed(1)}`).reverse();
      const path = `M${known.map(([point]) => point.join(" ")).join("L")}L${back.join("L")}Z`;
      shape(svg, "path", { class: `filled c${line.colour}`, d: path, "clip-path": inside, "fill-opacity": this.stacked ? 0.85 : 0.25 });
      if (this.stacked) return;
    }
    let path = "";
    points.forEach((point, index) => {
      if (point === null) return;
      const begins = index === 0 || points[index - 1] === null;
      path += `${begins ? "M" : "L"}${point.join(" ")}`;
      if (begins && (index === points.length - 1 || points[index + 1] === null)) path += "h0.01";
    });
    shape(svg, "path", { class: `line c${line.colour} d${line.dash}`, d: path, "clip-path": inside, "stroke-width": line.thick });
    if (this.spec.kind === "points") {
      const dots = shape(svg, "g", { "clip-path": inside });
      for (const point of points) if (point) shape(dots, "circle", { class: `filled c${line.colour}`, cx: point[0], cy: point[1], r: 2.6 });
    }
  }

  // A bar a run, of the parts that its steps have.
  drawBars() {
    const { runs, hidden } = this.page;
    this.rows = runs.map((run, at) => at).filter((at) => !hidden.has(at));
    const height = MARGIN.top + MARGIN.bottom + BAR * Math.max(1, this.rows.length);
    const svg = this.canvas(height);
    svg.classList.add("bars");
    const { lines } = this;
    const totals = this.rows.map((at) => lines.reduce((sum, line) => sum + (line.y[at] ?? 0), 0));
    const names = Math.min(this.width * 0.3, 22 + 6.4 * Math.max(...runs.map((run) => run.name.length)));
    const room = this.width - names - 76;
    const scale = room / Math.max(...totals, 1e-9);
    this.rows.forEach((at, row) => {
      const y = MARGIN.top + BAR * row;
      const name = shape(svg, "text", { class: "unit", x: names - 8, y: y + BAR / 2 + 4, "text-anchor": "end" }, runs[at].name);
      if (name.getComputedTextLength() > names - 8) name.setAttribute("textLength", names - 10);
      let x = names;
      lines.forEach((line) => {
        const width = (line.y[at] ?? 0) * scale;
        shape(svg, "rect", { class: `filled c${line.colour}`, x, y: y + 3, width, height: BAR - 6, "fill-opacity": 0.85 });
        x += width;
      });
      shape(svg, "text", { class: "value", x: x + 6, y: y + BAR / 2 + 4 }, `${number(totals[row])} ms`);
    });
    this.drawn = lines;
  }

  swatch(parent, line) {
    const drawn = shape(parent, "svg", { class: "swatch", viewBox: "0 0 24 11", "aria-hidden": "true" });
    shape(drawn, "line", { class: `c${line.colour} d${line.dash}`, x1: 1, x2: 23, y1: 6, y2: 6 });
  }

  drawKey() {
    this.key.replaceChildren();
    if (!this.stacked && this.measure.lines.some((line) => line.run !== undefined)) return;
    if (!this.stacked && this.measure.lines.length < 2) return;
    for (const line of this.drawn) {
      const entry = node(this.key, "span");
      if (this.stacked) node(entry, "i", { class: `c${line.colour}`, "aria-hidden": "true" });
      else this.swatch(entry, line);
      node(entry, "span", {}, line.name);
    }
  }

  describe() {
    const what = `${this.spec.title}: ${this.measure.name}, ${this.measure.unit}.`;
    const how = this.axis ? "Left and right arrows read values, plus and minus zoom, Escape shows everything." : "Up and down arrows read values.";
    this.frame.setAttribute("aria-label", `${what} ${this.drawn.length} series. ${how}`);
  }

  get size() { return this.axis ? this.axis.count : this.rows.length; }

  // Show the values at an index; null hides them.
  point(index, box) {
    this.cursor = index !== null && index < this.size ? index : null;
    this.box.hidden = this.cursor === null || !box;
    if (this.axis) this.crosshair();
    if (!this.box.hidden) this.tell();
  }

  crosshair() {
    this.dots.replaceChildren();
    const x = this.cursor === null ? null : this.axis.at(this.cursor);
    const seen = x !== null && this.range !== null && x >= this.domain[0] && x <= this.domain[1];
    this.cross.setAttribute("visibility", seen ? "visible" : "hidden");
    if (!seen) return;
    this.cross.setAttribute("x1", this.x(x));
    this.cross.setAttribute("x2", this.x(x));
    for (const line of this.drawn) {
      const value = line.top[this.cursor];
      if (value === null || line.y[this.cursor] === null || (this.log && value <= 0)) continue;
      shape(this.dots, "circle", { class: `filled c${line.colour}`, cx: this.x(x), cy: this.y(value), r: 3.4 });
    }
  }

  heading() {
    if (!this.axis) return `${this.page.runs[this.rows[this.cursor]].name}`;
    return this.axis.text(this.cursor) + (this.axis.bin ? ` · bin of ${this.axis.bin}` : "");
  }

  reading() {
    const at = this.axis ? this.cursor : this.rows[this.cursor];
    return this.drawn.map((line) => [line, line.y[at]]);
  }

  tell() {
    const table = document.createElement("table");
    node(table, "caption", {}, this.heading());
    const body = node(table, "tbody");
    for (const [line, value] of this.reading()) {
      const row = node(body, "tr");
      this.swatch(node(row, "td"), line);
      node(row, "td", { class: "text" }, line.name);
      node(row, "td", {}, value === null || value === undefined ? "–" : `${number(value)} ${this.measure.unit.replace(" a step", "")}`);
    }
    this.box.replaceChildren(table);
    const x = this.axis ? this.x(this.axis.at(this.cursor)) : this.width / 2;
    const left = x + 14 + this.box.offsetWidth > this.width ? Math.max(0, x - 14 - this.box.offsetWidth) : x + 14;
    this.box.style.left = `${left}px`;
    this.box.style.top = this.axis ? "18px" : `${MARGIN.top + BAR * (this.cursor + 1)}px`;
  }

  listen() {
    const { frame } = this;
    const position = (event) => {
      const bounds = frame.getBoundingClientRect();
      return [event.clientX - bounds.left, event.clientY - bounds.top];
    };
    const value = (px) => this.domain[0] + ((px - this.inner.left) / this.inner.width) * (this.domain[1] - this.domain[0]);
    let start = null;
    frame.addEventListener("pointermove", (event) => {
      const [px, py] = position(event);
      if (!this.axis) {
        const row = Math.floor((py - MARGIN.top) / BAR);
        this.point(row >= 0 && row < this.rows.length ? row : null, true);
        return;
      }
      if (start !== null) this.select(start, px);
      this.page.point(this, this.axis.nearest(value(px)));
    });
    frame.addEventListener("pointerleave", () => { if (start === null) this.page.point(this, null); });
    frame.addEventListener("pointerdown", (event) => {
      if (!this.axis || event.button !== 0 || event.pointerType === "touch") return;
      start = position(event)[0];
      frame.setPointerCapture(event.pointerId);
    });
    frame.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [from, to] = [start, position(event)[0]].sort((a, b) => a - b);
      start = null;
      this.selection.setAttribute("visibility", "hidden");
      if (to - from > 6) this.page.zoom(this.spec.axis, [value(from), value(to)]);
    });
    frame.addEventListener("pointercancel", () => { start = null; this.selection.setAttribute("visibility", "hidden"); });
    frame.addEventListener("dblclick", () => { if (this.axis) this.page.zoom(this.spec.axis, null); });
    frame.addEventListener("blur", () => this.page.point(this, null));
    frame.addEventListener("keydown", (event) => this.pressed(event));
  }

  select(from, to) {
    const { left, width } = this.inner;
    const [low, high] = [from, to].sort((a, b) => a - b).map((px) => Math.max(left, Math.min(left + width, px)));
    this.selection.setAttribute("x", low);
    this.selection.setAttribute("width", high - low);
    this.selection.setAttribute("visibility", "visible");
  }

  pressed(event) {
    const step = event.shiftKey ? 10 : 1;
    const moves = this.axis ? { ArrowLeft: -step, ArrowRight: step } : { ArrowUp: -1, ArrowDown: 1 };
    const [first, last] = this.axis ? this.axis.within(this.domain) : [0, this.rows.length - 1];
    let target = null;
    if (event.key in moves) target = this.cursor === null ? first : this.cursor + moves[event.key];
    else if (event.key === "Home") target = first;
    else if (event.key === "End") target = last;
    else if (this.axis && (event.key === "+" || event.key === "=" || event.key === "-")) this.scale(event.key === "-" ? 2 : 0.5);
    else if (event.key === "Escape" || event.key === "0") {
      if (this.axis) this.page.zoom(this.spec.axis, null);
      this.page.point(this, null);
    } else return;
    event.preventDefault();
    if (target === null) return;
    this.page.point(this, Math.max(first, Math.min(last, target)));
    this.page.say(`${this.heading()}: ${this.reading().map(([line, value]) => `${line.name} ${number(value)}`).join(", ")}; ${this.measure.unit}`);
  }

  // Zoom about the cursor, or the middle.
  scale(factor) {
    const [low, high] = this.domain;
    const centre = this.cursor === null ? (low + high) / 2 : this.axis.at(this.cursor);
    this.page.zoom(this.spec.axis, [centre - (centre - low) * factor, centre + (high - centre) * factor]);
  }
}
