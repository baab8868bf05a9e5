// The chart of every page: lines, bands, steps or points over one axis, with limits and marks, values
// under the cursor, zoom, and a legend that toggles. Also texts, tables and heat strips. Texts go
// through textContent only. `window.vcrCharts` lists what is drawn, for tests.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const HEIGHT = 230;
let plots = [];

// ---- texts -------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const isKnown = (value) => value !== null && value !== undefined && isFinite(value);

function number(value) {
  if (!isKnown(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 10000) return Math.round(value).toLocaleString("en");
  const decimals = size >= 100 ? 1 : size >= 0.1 ? 2 : 4;
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

// As the terminal writes times.
function time(ms) {
  if (!isKnown(ms)) return "–";
  const whole = Math.round(Math.abs(ms) / 1e3), minutes = Math.round(whole / 60);
  if (Math.abs(ms) >= 6e4) {
    const [large, small, names] = whole >= 3600 ? [Math.floor(minutes / 60), minutes % 60, "hm"] : [Math.floor(whole / 60), whole % 60, "ms"];
    return (ms < 0 ? "-" : "") + large + names[0] + (small ? ` ${small}${names[1]}` : "");
  }
  const units = [[1e3, "s"], [1, "ms"], [1e-3, "us"], [1e-6, "ns"]];
  const [size, unit] = units.find(([size]) => Math.abs(ms) >= size) ?? units[1];
  const value = ms / size;
  return value.toFixed(Math.abs(value) >= 100 ? 1 : 2) + unit;
}

const share = (value) => (isKnown(value) ? (value * 100).toFixed(1) + " %" : "–");

// Texts of values, and shorter ones of ticks, by unit.
const UNITS = {
  ms: { value: time, tick: (ms) => clock(ms) },
  s: { value: (s) => time(s * 1000), tick: (s) => clock(s * 1000) },
  share: { value: share, tick: (value) => +(value * 100).toPrecision(4) + " %" },
  percent: { value: (value) => value.toFixed(1) + " %", tick: (value) => +value.toPrecision(4) + " %" },
  "": { value: number, tick: compact },
};

// A round time: 90000 is 1m30s, and 600000 is 10m.
function clock(ms) {
  if (Math.abs(ms) < 6e4) {
    const [size, unit] = Math.abs(ms) >= 1000 ? [1000, "s"] : Math.abs(ms) >= 1 || ms === 0 ? [1, ms === 0 ? "" : "ms"] : [1e-3, "us"];
    return +(ms / size).toPrecision(6) + unit;
  }
  let rest = Math.round(Math.abs(ms) / 1000), text = "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]) {
    if (rest >= size) text += Math.floor(rest / size) + unit;
    rest %= size;
  }
  return (ms < 0 ? "-" : "") + text;
}

function compact(value) {
  const size = Math.abs(value);
  const [by, unit] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  return +(value / by).toPrecision(6) + unit;
}

const short = (label) => (label.length > 40 ? label.slice(0, 39) + "…" : label);

function table(heads, rows) {
  const head = element("tr", {}, ...heads.map((text, i) => element("th", { scope: "col", class: i && !(rows[0]?.[i] instanceof Node) ? "number" : "" }, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, i) =>
    i ? element("td", { class: cell instanceof Node ? "" : "number" }, cell) : element("th", { scope: "row" }, cell))));
  return element("div", { class: "wide", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

const note = (text) => element("p", { class: "note" }, text);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- charts ------------------------------------------------------------------

// The same numbers, equal ones apart by a billionth of their range: each point of a scatter is drawn and can be clicked.
function distinct(xs) {
  const seen = new Set(), step = (Math.max(...xs) - Math.min(...xs) || 1) * 1e-9;
  return xs.map((x) => {
    while (seen.has(x)) x += step;
    seen.add(x);
    return x;
  });
}

// Points of lines that share an x axis: an x of its own for each point, and the highest y of equal ones.
const joined = (lines) => uPlot.join(lines.map(({ xs, ys }) => {
  const points = new Map();
  xs.forEach((x, i) => points.set(x, ys[i] === null ? points.get(x) ?? null : Math.max(ys[i], points.get(x) ?? -Infinity)));
  return [[...points.keys()], [...points.values()]];
}));

// Lines of a logarithmic axis: uPlot's begin at its lower end, whatever that is.
function magnitudes(u, axis, min, max) {
  const all = [];
  for (let power = Math.floor(Math.log10(min)); 10 ** power <= max; power++) {
    for (let lead = 1; lead < 10; lead++) all.push(lead * 10 ** power);
  }
  return all.filter((value) => value >= min && value <= max);
}

// Labels of it only at powers of ten, and twice and five times these.
const sparse = (format) => (u, splits) => splits.map((value) => {
  if (value === null) return null;
  const lead = value / 10 ** Math.floor(Math.log10(value) + 1e-9);
  return [1, 2, 5].some((one) => Math.abs(lead - one) < 0.01) ? format(value) : null;
});

// Steps between ticks of times in seconds: round ones.
const SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

// Limits and marks: `limits` are { axis, at, name }, and `marks` are { at, to, name, kind }.
function drawMarks(u, { limits = [], marks = [] }) {
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
  const line = (x0, y0, x1, y1) => { ctx.beginPath(); ctx.moveTo(x0, y0); ctx.lineTo(x1, y1); ctx.stroke(); };
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.lineWidth = 1.25 * ratio;
  for (const { at, to, kind } of marks) {
    const x = u.valToPos(at, "x", true);
    ctx.strokeStyle = color(kind === "scaling" ? "--accent" : "--failed");
    if (to !== undefined) {
      ctx.fillStyle = color("--warned") + "2e";
      ctx.fillRect(x, bbox.top, Math.max(u.valToPos(to, "x", true) - x, 2), bbox.height);
    } else {
      ctx.setLineDash([4 * ratio, 4 * ratio]);
      line(x, bbox.top, x, bbox.top + bbox.height);
    }
  }
  ctx.setLineDash([8 * ratio, 3 * ratio]);
  ctx.strokeStyle = ctx.fillStyle = color("--warned");
  const taken = [];
  for (const { axis, at, name } of limits) {
    const place = u.valToPos(at, axis, true), isLevel = axis === "y";
    if (isLevel) line(bbox.left, place, bbox.left + bbox.width, place);
    else line(place, bbox.top, place, bbox.top + bbox.height);
    // Names beside their lines, one below the other where they would meet.
    const width = ctx.measureText(name).width;
    const x = isLevel ? bbox.left + bbox.width - width - 4 * ratio : place + (place > bbox.left + bbox.width / 2 ? -width - 4 * ratio : 4 * ratio);
    const isHigh = isLevel && place < bbox.top + 16 * ratio;
    let y = isHigh ? place + 13 * ratio : isLevel ? place - 4 * ratio : bbox.top + 12 * ratio;
    while (taken.some((other) => Math.abs(other.y - y) < 13 * ratio && x < other.x + other.width && other.x < x + width)) y += 13 * ratio;
    taken.push({ x, y, width });
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.fillText(name, x, y);
  }
  ctx.restore();
}

// The value of a line at an index: lines share an x axis, so it may be between two points of its own.
function valueAt([xs, ...columns], column, index) {
  const ys = columns[column - 1];
  let before = index, after = index;
  while (before >= 0 && !isKnown(ys[before])) before--;
  while (after < ys.length && !isKnown(ys[after])) after++;
  if (before < 0 || after >= ys.length || before === after) return ys[before] ?? null;
  return ys[before] + ((ys[after] - ys[before]) * (xs[index] - xs[before])) / (xs[after] - xs[before]);
}

// The values under the cursor; written only where the pointer or the focus is.
function tooltip(u, tip, chart, shown) {
  const { idx, left, top } = u.cursor;
  const isHere = u.over.matches(":hover") || u.root.parentElement.matches(":focus");
  tip.hidden = !isHere || idx === null || idx === undefined || left < 0;
  if (tip.hidden) return;
  const x = u.data[0][idx];
  const rows = shown.flatMap(({ line, column, low, high }) => {
    if (u.series[column].show === false) return [];
    const value = line.points || line.step || line.gaps ? u.data[column][idx] : valueAt(u.data, column, idx);
    if (!isKnown(value)) return [];
    const at = line.points && line.names ? line.names[line.xs.indexOf(x)] : undefined;
    const range = low && isKnown(u.data[low][idx]) ? ` (${chart.y.value(u.data[low][idx])} to ${chart.y.value(u.data[high][idx])})` : "";
    const key = element("i");
    key.style.background = u.series[column].stroke(u, column);
    return [element("div", {}, key, `${at ?? line.name}: ${chart.y.value(value)}${range}`)];
  });
  const near = (chart.marks ?? []).filter(({ at, to }) => (to === undefined ? Math.abs(u.valToPos(at, "x") - left) < 6 : x >= at && x <= to));
  tip.replaceChildren(element("b", {}, (chart.x.title ? chart.x.title + " " : "") + chart.x.value(x)), ...rows, ...near.map(({ name }) => element("div", { class: "mark" }, name)));
  const right = left > u.over.clientWidth / 2;
  tip.style.left = right ? "" : left + 12 + "px";
  tip.style.right = right ? u.over.clientWidth - left + 12 + "px" : "";
  tip.style.top = Math.max(0, Math.min(top, u.over.clientHeight - tip.offsetHeight)) + "px";
}

// Draws a chart: { id, title, text, wide, group, x: { unit, title, log, range }, y: the same, lines, limits,
// marks, hasTable: whether a table says what the text says }. A line is { name, xs, ys, low, high, step, fill, points, names, links, hidden, dash, color }.
// Charts of a group share cursor and zoom.
function chart(into, spec) {
  const lines = spec.lines.filter(({ ys }) => ys.some(isKnown))
    .map((line) => (line.points ? { ...line, xs: distinct(line.xs) } : line));
  if (!lines.length) return;
  const axisOf = (axis) => ({ ...UNITS[axis?.unit ?? ""], ...axis });
  const made = { ...spec, x: axisOf(spec.x), y: axisOf(spec.y) };
  const place = element("div", { class: "plot", role: "img", tabindex: "0", "aria-label": `${spec.title}. ${spec.text}` });
  into.append(element("figure", { id: spec.id, class: spec.wide ? "whole" : "" }, element("h3", {}, spec.title), place, spec.hasTable ? "" : element("figcaption", {}, spec.text)));
  // Each line is a column, and a band two more.
  const columns = [], series = [], bands = [], shown = [];
  lines.forEach((line, i) => {
    const own = color(line.color ?? "--c" + (i % 8));
    const entry = { line, column: series.length + 1 };
    const points = { show: Boolean(line.points), size: 8, fill: own };
    if (line.ys.filter(isKnown).length === 1) points.show = true;
    series.push({
      label: line.name, stroke: own, width: line.points ? 0 : 1.75, dash: line.dash ?? (i >= 8 ? [6, 4] : undefined), points,
      spanGaps: !line.gaps, show: !line.hidden, fill: line.fill ? own + "22" : undefined,
      paths: line.step ? uPlot.paths.stepped({ align: 1 }) : line.points ? () => null : undefined,
      value: (u, value) => made.y.value(value),
    });
    columns.push(line);
    if (line.low) {
      [entry.high, entry.low] = [series.length + 1, series.length + 2];
      for (const [name, ys] of [["high", line.high], ["low", line.low]]) {
        series.push({ label: `${line.name}, ${name}`, class: "quiet", stroke: own + "55", width: 0.5, points: { show: false }, spanGaps: true });
        columns.push({ xs: line.xs, ys });
      }
      bands.push({ series: [entry.high, entry.low], fill: own + "26" });
    }
    shown.push(entry);
  });
  const columnsJoined = spec.shared ? [lines[0].xs, ...columns.map(({ ys }) => ys)] : joined(columns);
  const levels = spec.limits ?? [];
  // A logarithmic axis would else go on to the next power of ten.
  if (made.x.log) made.x.range ??= [columnsJoined[0][0], columnsJoined[0].at(-1)];
  const line = { stroke: color("--faint"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const labels = (axis) => (axis.log ? { splits: magnitudes, values: sparse(axis.tick), filter: (u, splits) => splits }
    : { values: (u, splits) => splits.map((value) => axis.tick(value)), incrs: axis.unit === "s" ? SECONDS : undefined });
  const top = Math.max(...levels.filter(({ axis }) => axis === "y").map(({ at }) => at), 0);
  const yRange = made.y.range ?? ((u, min, max) => {
    const most = (max || 0) > 0 ? max : 1;
    // A limit far above everything would flatten it.
    return [Math.min(0, min ?? 0), Math.max(most, top <= most * 4 ? top : 0) * 1.05];
  });
  const tip = element("div", { class: "tip", role: "status", hidden: "" });
  let isZooming = false;
  const plot = new uPlot({
    width: Math.max(place.clientWidth, 240), height: HEIGHT,
    cursor: { drag: { x: true, y: false }, sync: spec.group ? { key: spec.group } : undefined, points: { size: 6 } },
    legend: { show: true, live: false }, bands,
    scales: { x: { time: false, distr: made.x.log ? 3 : 1, range: made.x.range ? (u, min, max) => (isZooming ? [min, max] : made.x.range) : undefined },
      y: { distr: made.y.log ? 3 : 1, range: made.y.log ? undefined : yRange } },
    axes: [{ ...line, ...labels(made.x), space: 56, label: made.x.label, labelSize: 22 }, { ...line, ...labels(made.y), size: 62, label: made.y.label, labelSize: 20 }],
    series: [{ label: made.x.title || "x", value: (u, x) => made.x.value(x) }, ...series],
    hooks: {
      draw: [(u) => drawMarks(u, spec)],
      setCursor: [(u) => tooltip(u, tip, made, shown)],
      setSeries: [(u, index, { show }) => {
        const entry = shown.find(({ column }) => column === index);
        if (entry?.low && show !== undefined) for (const own of [entry.high, entry.low]) if (u.series[own].show !== show) u.setSeries(own, { show }, false);
      }],
      setSelect: [(u) => { isZooming = u.select.width > 0; zoom(u, spec, u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")); }],
    },
  }, columnsJoined, place);
  plot.over.append(tip);
  plot.vcrZoom = (min, max) => { isZooming = min !== null; plot.setScale("x", isZooming ? { min, max } : { min: columnsJoined[0][0], max: columnsJoined[0].at(-1) }); };
  plot.over.addEventListener("dblclick", () => zoom(plot, spec, null));
  plot.over.addEventListener("mouseleave", () => { tip.hidden = true; });
  place.addEventListener("blur", () => { tip.hidden = true; });
  place.addEventListener("keydown", (event) => walk(event, plot, spec));
  plot.over.addEventListener("click", () => {
    const linked = lines.find(({ links }) => links), index = linked?.xs.indexOf(plot.data[0][plot.cursor.idx]);
    if (linked && index >= 0 && linked.links[index]) location.href = linked.links[index];
  });
  // The legend is reached by the keyboard, too.
  place.querySelectorAll(".u-legend .u-series th").forEach((head, index) => {
    if (!index) return;
    head.tabIndex = 0;
    head.setAttribute("role", "button");
    head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); head.click(); } });
  });
  plots.push({ id: spec.id, title: spec.title, plot, group: spec.group });
}

function zoom(plot, spec, min, max) {
  if (min !== null && !(max > min)) return;
  for (const other of plots) if (other.plot === plot || (spec.group && other.group === spec.group)) other.plot.vcrZoom(min, max);
  plot.setSelect({ width: 0, height: 0 }, false);
}

// Arrow keys move the cursor, plus and minus zoom, and Escape shows everything again.
function walk(event, plot, spec) {
  const width = plot.over.clientWidth, { left } = plot.cursor, step = { ArrowLeft: -8, ArrowRight: 8 }[event.key];
  const scale = plot.scales.x, middle = left >= 0 ? plot.posToVal(left, "x") : (scale.min + scale.max) / 2;
  if (step) plot.setCursor({ left: Math.min(width - 1, Math.max(0, (left >= 0 ? left : 0) + step)), top: 20 });
  else if (event.key === "Escape") zoom(plot, spec, null);
  else if (event.key === "+" || event.key === "-") {
    const by = event.key === "+" ? 0.25 : 1;
    zoom(plot, spec, middle - (scale.max - scale.min) * by, middle + (scale.max - scale.min) * by);
  } else return;
  event.preventDefault();
}

// A strip of cells for each row: { id, title, text, rows: [{ name, values }], most, value, time }.
function heat(into, { id, title, text, rows, most, value, at }) {
  if (!rows.some((row) => row.values.some((one) => one > 0))) return;
  const strips = rows.map((row) => {
    const cells = row.values.map((one, i) => {
      const cell = element("i", { title: `${row.name}, ${at(i)}: ${value(one)}` });
      cell.style.setProperty("--heat", Math.round((one / (most || 1)) * 100) + "%");
      return cell;
    });
    const highest = Math.max(...row.values);
    return element("div", { class: "strip" }, element("span", {}, row.name), element("div", { role: "img", "aria-label": `${row.name}: at most ${value(highest)}` }, ...cells));
  });
  into.append(element("figure", { id, class: "whole heat" }, element("h3", {}, title), ...strips, element("figcaption", {}, text)));
}

// A bar to the left or right of a middle, for a change: `share` of `most`.
function diverging(change, most, tone) {
  const bar = element("span", { class: "diverging " + tone, role: "img", "aria-label": `${change >= 0 ? "+" : ""}${(change * 100).toFixed(1)} %` }, element("i"));
  const length = Math.min(Math.abs(change) / (most || 1), 1) * 50;
  bar.firstChild.style.cssText = `width:${length}%;${change < 0 ? "right" : "left"}:50%`;
  return bar;
}

// ---- pages -----------------------------------------------------------------------

// Draws whatever the page has, and again where colours or the width change.
function drawPage(draw) {
  const again = () => {
    plots.forEach(({ plot }) => plot.destroy());
    plots = [];
    draw();
    window.vcrCharts = plots;
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  // Paper is light.
  for (const [event, isPaper] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => { document.documentElement.toggleAttribute("data-paper", isPaper); again(); });
  }
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; again(); } });
  again();
  return again;
}

if (data.charts) {
  drawPage(() => {
    const into = document.getElementById("charts");
    into.replaceChildren();
    data.charts.forEach((spec) => chart(into, spec));
  });
}
