// The staircase: event time reached (upwards) against the time of day (to the right), drawn as SVG.

const SVG = "http://www.w3.org/2000/svg";
const MOST_SAMPLES = 4000;
const PALETTE = ["#2f7ed8", "#e08a1e", "#2e9e6b", "#9b59b6", "#16a3b8", "#c2527f", "#7a8b1f", "#6b6fe0", "#b0713a", "#4f8f8a"];

export function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const byName = new Intl.Collator("en", { numeric: true }).compare;
const topicOf = (partition) => partition.slice(0, partition.lastIndexOf("."));

export function formatTime(ms) {
  return new Date(ms).toISOString().replace("T", " ").replace(/\.000Z$|Z$/, "");
}

export function formatSpan(ms) {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)}s`;
  const parts = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = parts.findIndex(([, size]) => seconds >= size);
  let rest = Math.round(seconds), text = "";
  for (const [unit, size] of parts.slice(first, first + 2)) {
    const number = Math.floor(rest / size);
    rest -= number * size;
    if (number) text += number + unit;
  }
  return text;
}

// Steps that people read easily, for an axis of times.
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5,
  1728e5, 6048e5, 12096e5, 2592e6, 7776e6, 31536e6];

function ticks(from, to, most) {
  const year = STEPS.at(-1);
  const step = STEPS.find((size) => (to - from) / size <= most) ?? Math.ceil((to - from) / most / year) * year;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { step, found };
}

function axisTime(ms, step) {
  const iso = new Date(ms).toISOString();
  if (step >= 864e5) return iso.slice(0, 10);
  if (step >= 6e4) return `${iso.slice(5, 10)} ${iso.slice(11, 16)}`;
  return step >= 1000 ? iso.slice(11, 19) : iso.slice(11, 23);
}

export class Staircase {
  constructor(place, legend) {
    this.place = place;
    this.legend = legend;
    this.samples = [];
    this.window = 120;
    this.blocked = new Set();
    this.facts = new Map();
    this.reading = null;
    this.goesOn = false;
    this.skew = 0; // the server's clock minus ours, in milliseconds
    this.colours = new Map();
    this.svg = element("svg", { "aria-hidden": "true" });
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    place.append(this.svg, this.tip);
    place.addEventListener("pointermove", (event) => this.read(event.offsetX));
    place.addEventListener("pointerleave", () => this.read(null));
    place.addEventListener("keydown", (event) => this.onKey(event));
    place.addEventListener("blur", () => this.read(null));
    new ResizeObserver(() => this.ask()).observe(place);
  }

  clear() {
    this.samples = [];
    this.blocked = new Set();
    this.facts = new Map();
    this.reading = null;
    this.drawn = null;
    this.tip.hidden = true;
    this.legend.replaceChildren();
    delete this.legend.dataset.shown;
    this.colours.clear();
    this.ask();
  }

  get last() {
    return this.samples.length ? this.samples.at(-1).t : 0;
  }

  add(samples) {
    for (const sample of samples) if (sample.t > this.last) this.samples.push(sample);
    if (this.samples.length > MOST_SAMPLES) {
      // The older half keeps every second sample: the shape stays, the memory does not grow.
      const half = this.samples.length >> 1;
      this.samples = this.samples.filter((_, index) => index > half || index % 2 === 0);
    }
    this.ask();
  }

  // Draw soon: many changes are one drawing.
  ask() {
    if (this.asked) return;
    this.asked = true;
    setTimeout(() => requestAnimationFrame(() => { this.asked = false; this.draw(); }), 100);
  }

  colour(name) {
    if (!this.colours.has(name)) this.colours.set(name, PALETTE[this.colours.size % PALETTE.length]);
    return this.colours.get(name);
  }

  shown() {
    if (!this.window || !this.samples.length) return this.samples;
    const from = this.now() - this.window * 1000;
    const first = this.samples.findIndex((sample) => sample.t > from);
    return this.samples.slice(first < 0 ? -1 : Math.max(0, first - 1)); // with the one whose lines reach into the window
  }

  // The time up to which the lines go: nothing is sent while nothing changes, and then they go on.
  now() {
    return this.goesOn ? Math.max(this.last, Date.now() + this.skew) : this.last;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.place;
    let samples = this.shown();
    if (this.goesOn && samples.length) samples = [...samples, { ...samples.at(-1), t: this.now() }];
    this.svg.replaceChildren();
    if (!width || !samples.length) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const size = parseFloat(getComputedStyle(this.place).fontSize);
    const longest = Math.max(5, ...[...this.blocked].slice(0, 6).map((name) => name.length));
    const right = Math.min(width / 4, 16 + longest * size * 0.64);
    const box = { left: 8 + size * 7, right: width - right, top: 14, bottom: height - size * 2, size };
    let low = Infinity, high = -Infinity;
    for (const sample of samples) {
      high = Math.max(high, sample.limit);
      for (const value of Object.values(sample.p)) low = Math.min(low, value);
      for (const [least] of Object.values(sample.topics ?? {})) low = Math.min(low, least);
    }
    if (low === Infinity || low === high) low = high - 1000;
    high += (high - low) * 0.06;
    const to = samples.at(-1).t, from = Math.min(this.window ? to - this.window * 1000 : samples[0].t, to - 1000);
    const begin = Math.max(from, Math.min(samples[0].t, to - 10000));
    const scale = {
      x: (t) => box.left + (Math.max(t, begin) - begin) / (to - begin) * (box.right - box.left),
      y: (value) => box.bottom - (value - low) / (high - low) * (box.bottom - box.top),
      t: (x) => begin + (x - box.left) / (box.right - box.left) * (to - begin),
    };
    this.drawn = { samples, scale, box };
    this.drawAxes(box, scale, low, high, begin, to);
    this.drawBands(samples, scale);
    this.drawLines(samples, scale, box);
    this.drawReading();
  }

  drawAxes(box, scale, low, high, from, to) {
    const rows = ticks(low, high, Math.max(3, (box.bottom - box.top) / (box.size * 4.6)));
    for (const value of rows.found) {
      const y = scale.y(value);
      this.svg.append(element("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }),
        element("text", { x: box.left - 8, y: y + box.size / 3, "text-anchor": "end" }, axisTime(value, rows.step)));
    }
    const columns = ticks(from, to, Math.max(3, (box.right - box.left) / (box.size * 11)));
    for (const t of columns.found) {
      const clock = new Date(t).toLocaleTimeString([], { hour12: false });
      this.svg.append(element("text", { x: scale.x(t), y: box.bottom + box.size * 1.5, "text-anchor": "middle" }, clock));
    }
  }

  drawBands(samples, scale) {
    for (const topic of new Set(samples.flatMap((sample) => Object.keys(sample.topics ?? {})))) {
      const parts = samples.filter((sample) => sample.topics?.[topic]);
      const along = (index) => steps(parts.map((sample) => [scale.x(sample.t), scale.y(sample.topics[topic][index])]));
      const upper = along(1), lower = along(0).reverse();
      const path = `M${[...upper, ...lower].map((point) => point.join(" ")).join("L")}Z`;
      this.svg.append(element("path", { class: "band", fill: this.colour(topic), d: path, "data-topic": topic }));
      this.line("stairs", along(0), { stroke: this.colour(topic), "data-topic": topic });
    }
  }

  drawLines(samples, scale, box) {
    const names = [...new Set(samples.flatMap((sample) => Object.keys(sample.p)))].sort(byName);
    for (const name of names) this.colour(topicOf(name)); // also for those that are drawn as blocked now
    const labels = [];
    for (const name of names) {
      const blocked = this.blocked.has(name);
      const look = blocked ? { "data-partition": name } : { stroke: this.colour(topicOf(name)), "data-partition": name, opacity: 0.75 };
      for (const part of runs(samples, (sample) => name in sample.p)) {
        const points = steps(part.map((sample) => [scale.x(sample.t), scale.y(sample.p[name])]));
        this.line(blocked ? "stairs blocked" : "stairs", points, look);
      }
      if (blocked) labels.push([name, scale.y(samples.findLast((sample) => name in sample.p).p[name])]);
    }
    const limit = samples.map((sample) => [scale.x(sample.t), scale.y(sample.limit)]);
    this.line("limit", steps(limit), {});
    this.svg.append(element("text", { class: "limit-name", x: box.right + 6, y: limit.at(-1)[1] + box.size / 3 }, "limit"));
    const line = box.size * 1.3;
    let free = limit.at(-1)[1] + box.size / 3 + line;
    for (const [name, y] of labels.sort((a, b) => a[1] - b[1]).slice(0, 6)) {
      free = Math.max(free, Math.min(y + box.size / 3, box.bottom));
      this.svg.append(element("text", { class: "blocked", x: box.right + 6, y: free }, name));
      free += line;
    }
    const shown = JSON.stringify([...this.colours.keys()]);
    if (this.legend.dataset.shown === shown) return;
    this.legend.dataset.shown = shown;
    this.legend.replaceChildren(...[...this.colours].map(([topic, colour]) => {
      const item = document.createElement("li");
      item.append(element("svg", {}, element("line", { x1: 0, x2: 18, y1: 6, y2: 6, stroke: colour, "stroke-width": 3 })), topic);
      return item;
    }));
  }

  line(kind, points, attributes) {
    if (points.length) this.svg.append(element("path", { class: kind, d: `M${points.map((p) => p.join(" ")).join("L")}`, ...attributes }));
  }

  // -- the reading line, by pointer or by keys ------------------------------------------------------------------------------

  onKey(event) {
    if (!this.drawn) return;
    const { samples } = this.drawn;
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -samples.length, End: samples.length }[event.key];
    if (event.key === "Escape") this.read(null);
    if (!move) return;
    event.preventDefault();
    const now = this.reading === null ? samples.length - 1 : this.index(this.reading);
    this.reading = samples[Math.min(samples.length - 1, Math.max(0, now + move))].t;
    this.drawReading();
  }

  read(x) {
    this.reading = x === null || !this.drawn ? null : this.drawn.scale.t(x);
    this.drawReading();
  }

  index(t) {
    const { samples } = this.drawn;
    let found = samples.length - 1;
    while (found > 0 && samples[found].t > t) found--;
    return found;
  }

  drawReading() {
    this.svg.querySelector(".reading")?.remove();
    if (this.reading === null || !this.drawn) {
      this.tip.hidden = true;
      return;
    }
    const { samples, scale, box } = this.drawn;
    const sample = samples[this.index(this.reading)];
    const x = Math.min(box.right, Math.max(box.left, scale.x(sample.t)));
    this.svg.append(element("line", { class: "reading", x1: x, x2: x, y1: box.top, y2: box.bottom }));
    const rows = [["limit", formatTime(sample.limit), ""]];
    const behind = Object.entries(sample.p).sort((a, b) => a[1] - b[1] || byName(a[0], b[0]));
    for (const [name, value] of behind.slice(0, 8)) {
      rows.push([name, value < sample.limit ? `${formatSpan(sample.limit - value)} behind` : "at the limit", this.facts.get(name) ?? ""]);
    }
    if (behind.length > 8) rows.push([`and ${behind.length - 8} more`, "", ""]);
    for (const [topic, [least]] of Object.entries(sample.topics ?? {})) {
      rows.push([topic, least < sample.limit ? `last: ${formatSpan(sample.limit - least)} behind` : "all at the limit", ""]);
    }
    const head = document.createElement("p");
    head.textContent = new Date(sample.t).toLocaleTimeString([], { hour12: false });
    const table = document.createElement("table");
    for (const row of rows) for (const [index, cell] of row.entries()) (index ? table.rows[table.rows.length - 1] : table.insertRow()).insertCell().textContent = cell;
    this.tip.replaceChildren(head, table);
    this.tip.hidden = false;
    const left = x + 16 + this.tip.offsetWidth > this.place.clientWidth ? x - 16 - this.tip.offsetWidth : x + 16;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }
}

// Return the runs of neighbouring samples that pass: with many partitions, one has a line only while it is among the last.
function runs(samples, passes) {
  const found = [[]];
  for (const sample of samples) {
    if (passes(sample)) found.at(-1).push(sample);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((run) => run.length);
}

// Turn points into stairs, and leave out those that fall onto the same pixel column.
function steps(points) {
  const result = [];
  for (const [x, y] of points) {
    const before = result.at(-1);
    const at = [Math.round(x * 10) / 10, Math.round(y * 10) / 10];
    if (before && before[1] === at[1] && result.length > 1 && result.at(-2)[1] === at[1]) {
      before[0] = at[0];
      continue;
    }
    if (before && before[1] !== at[1]) result.push([at[0], before[1]]);
    result.push(at);
  }
  return result;
}
