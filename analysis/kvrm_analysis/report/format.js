"use strict";
// Numbers and axes as text; nodes without markup, so that nothing from a trace is ever parsed.

const SVG = "http://www.w3.org/2000/svg";

function node(parent, tag, attributes = {}, text = null) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function shape(parent, tag, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

const grouped = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function number(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1e4 ? whole.format(value) : grouped.format(value);
}

// A power of ten, or a few of them, beside a tick.
function short(value) {
  const exact = Number(value.toPrecision(10));
  if (exact >= 1e6 || exact < 1e-3) return exact.toExponential().replace("e+", "e");
  return exact >= 1e4 ? `${exact / 1000}K` : number(exact);
}

// Round values over [low, high], about `wanted` of them.
function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

// Powers of ten over [low, high]; with 2 and 5 between them where the axis is short.
function logTicks(low, high, wanted) {
  const decades = Math.log10(high / low);
  const inside = decades > 2.5 ? [1] : decades > 0.7 ? [1, 2, 5] : null;
  if (inside === null) return ticks(low, high, wanted).filter((each) => each > 0);
  const every = Math.max(1, Math.ceil(decades / Math.max(1, wanted)));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    if (inside.length === 1 && power % every) continue;
    for (const each of inside) found.push(each * 10 ** power);
  }
  return found.filter((each) => each >= low * 0.999 && each <= high * 1.001);
}

// Which x an index stands for, and how an x is written. Equal steps; with `log`, the logarithms of `values`, or of the
// middles of classes between `edges`.
class Axis {
  constructor(about) {
    Object.assign(this, about);
    if (this.log) this.logarithmic();
    else {
      const half = this.words ? this.step / 2 : 0;
      const last = this.first + this.step * (this.count - 1);
      this.whole = this.nines || this.words ? [this.first - half, last + half] : [0, this.step * this.count];
    }
  }

  logarithmic() {
    if (this.edges) this.borders = this.edges.map(Math.log10);
    this.places = this.edges ? this.borders.slice(1).map((high, at) => (this.borders[at] + high) / 2) : this.values.map(Math.log10);
    const ends = this.borders || this.places;
    this.whole = [ends[0], ends[ends.length - 1]];
    if (this.whole[0] === this.whole[1]) this.whole = [this.whole[0] - 0.5, this.whole[1] + 0.5];
    this.step = (this.whole[1] - this.whole[0]) / this.count;
  }

  at(index) { return this.places ? this.places[index] : this.first + this.step * index; }

  // Where the class of an index begins; that of `count` is the end.
  edge(index) { return this.borders ? this.borders[index] : this.first + this.step * (index - 0.5); }

  nearest(x) {
    if (!this.places) return Math.max(0, Math.min(this.count - 1, Math.round((x - this.first) / this.step)));
    return this.places.reduce((best, place, at) => (Math.abs(place - x) < Math.abs(this.places[best] - x) ? at : best), 0);
  }

  // First and last index that are seen over a range of x.
  within([low, high]) {
    if (!this.places) return [this.nearest(low + this.step / 2), this.nearest(high - this.step / 2)];
    const seen = this.places.map((place, at) => [place, at]).filter(([place]) => place >= low - 1e-9 && place <= high + 1e-9);
    return seen.length ? [seen[0][1], seen[seen.length - 1][1]] : [this.nearest(low), this.nearest(low)];
  }

  // A value of the unit as an x, and an x as it is written.
  place(value) { return this.log ? Math.log10(value) : value; }

  written(x) { return number(this.log ? Number((10 ** x).toPrecision(4)) : x); }

  percent(nines) { return 100 * (1 - 10 ** -nines); }

  text(index) {
    if (this.words) return this.words[index];
    if (this.texts) return this.texts[index];
    if (this.nines) return `p${Number(this.percent(this.at(index)).toFixed(3))}`;
    if (this.log) return `${this.before ? `${this.before} ` : ""}${number(this.values[index])} ${this.unit}`;
    return `${number(this.at(index))} ${this.unit}`;
  }

  // The same at the head of a line of the table of values, whose column names the unit.
  head(index) { return this.words || this.texts || this.nines || this.log ? this.text(index) : number(this.at(index)); }

  ticks([low, high], wanted) {
    if (this.words) {
      const every = Math.max(1, Math.ceil((high - low) / Math.max(1, wanted)));
      return this.words.map((text, at) => [at, text]).filter(([at]) => at >= low && at <= high && at % every === 0);
    }
    if (this.nines) {
      const percents = high - low > 1.5 ? [0, 50, 90, 99, 99.9, 99.99] : [0, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 99.95, 99.99];
      return percents.map((each) => [-Math.log10(1 - each / 100), String(each)]).filter(([at]) => at >= low - 1e-9 && at <= high + 1e-9);
    }
    if (this.log) return logTicks(10 ** low, 10 ** high, wanted).map((each) => [Math.log10(each), short(each)]);
    return ticks(low, high, wanted).map((at) => [at, number(Number(at.toPrecision(12)))]);
  }
}
