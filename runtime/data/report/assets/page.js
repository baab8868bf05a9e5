// Draws a run, or two in comparison, from the JSON of the page. Texts go through
// textContent only. `window.vcrCharts` lists what is drawn, for tests.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const PHASES = ["arrival", "queue", "prefill", "transfer", "decode"];
const LATENCIES = { ttft: "Time to first token", itl: "Inter-token latency", e2e: "End-to-end latency" };
const HEIGHT = 230;
const runSelect = document.getElementById("run");
const otherSelect = document.getElementById("other");
const drawn = document.getElementById("drawn");
let plots = [];

// ---- texts -------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function number(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
}

function time(ms) {
  if (ms === null || ms === undefined || !isFinite(ms)) return "–";
  const size = Math.abs(ms);
  if (size >= 1000) return number(ms / 1000) + "s";
  return size >= 1 || size === 0 ? number(ms) + "ms" : number(ms * 1000) + "us";
}

const inUnit = (unit) => (unit === "ms" ? time : number);

function table(heads, rows) {
  const head = element("tr", {}, ...heads.map((text, i) => element("th", { scope: "col", class: i ? "number" : "" }, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, i) =>
    i ? element("td", { class: cell instanceof Node ? "" : "number" }, cell) : element("th", { scope: "row" }, cell))));
  return element("div", { class: "wide" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

function section(id, title, ...children) {
  const made = element("section", { id, "aria-labelledby": id + "-title" }, element("h2", { id: id + "-title" }, title), ...children);
  drawn.append(made);
  return made;
}

const note = (text) => element("p", { class: "note" }, text);

// ---- charts ------------------------------------------------------------------

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A figure whose chart is described by `text` for those who do not see it.
function chart(into, id, title, text, options, columns, series) {
  const place = element("div", { role: "img", "aria-label": title + ". " + text });
  into.append(element("figure", { id, class: options.wide ? "whole" : "" }, element("h3", {}, title), place, element("figcaption", {}, text)));
  const axis = { stroke: color("--faint"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const draw = {
    width: Math.max(place.clientWidth, 280), height: HEIGHT, cursor: { drag: { x: true, y: false } },
    legend: { show: true, live: false },
    ...options,
    scales: { x: { time: false, ...options.x }, y: { range: (u, min, max) => [Math.min(0, min ?? 0), (max || 1) * 1.05], ...options.y } },
    axes: [{ ...axis, ...options.xAxis }, { ...axis, size: 64, ...options.yAxis }],
    series: [{}, ...series.map((own, i) => ({
      stroke: color("--c" + (i % 8)), width: 1.75, dash: i >= 8 ? [6, 4] : undefined, points: { show: false }, spanGaps: true, ...own,
    }))],
  };
  const plot = new uPlot(draw, columns, place);
  plots.push({ id, title, plot });
}

function linear(values) { return values.map((value) => number(value)); }

// Lines of a logarithmic axis: uPlot's begin at its lower end, whatever that is.
function magnitudes(u, axis, min, max) {
  const all = [];
  for (let power = Math.floor(Math.log10(min)); 10 ** power <= max; power++) {
    for (let lead = 1; lead < 10; lead++) all.push(lead * 10 ** power);
  }
  return all.filter((value) => value >= min && value <= max);
}

// Labels of it only at powers of ten, and twice and five times these.
function sparse(format) {
  return (u, splits) => splits.map((value) => {
    if (value === null) return null;
    const lead = value / 10 ** Math.floor(Math.log10(value) + 1e-9);
    return [1, 2, 5].some((one) => Math.abs(lead - one) < 0.01) ? format(value) : null;
  });
}

// Points of a step function or a line that several share an x axis with.
const joined = (pairs) => uPlot.join(pairs.map(([xs, ys]) => {
  // An x of its own for each point, and the highest y of equal ones.
  const points = new Map();
  xs.forEach((x, i) => points.set(x, Math.max(ys[i], points.get(x) ?? -Infinity)));
  return [[...points.keys()], [...points.values()]];
}));

const short = (label) => (label.length > 40 ? label.slice(0, 39) + "…" : label);
const nameOf = (distribution, prefix) => short(prefix ?? distribution.workload ?? "all requests");

function quantile(distribution, percent) {
  return distribution.quantiles[data.percents.indexOf(percent)];
}

// Whether bins grow, as they do between values that are far apart.
const isRatio = (bounds) => (bounds[2] - bounds[1]) / (bounds[1] - bounds[0]) > 1.01;

function drawDistributions(runs) {
  const all = section("distributions", "Latencies");
  for (const [metric, title] of Object.entries(LATENCIES)) {
    const own = runs.map((run) => run.charts.distributions.filter((one) => one.metric === metric));
    // Of two runs only the totals are compared.
    const lines = runs.length === 1 ? own[0].map((one) => [one, null])
      : own.flatMap((list, i) => list.filter((one) => !one.workload).map((one) => [one, runs[i].label]));
    if (!lines.length) {
      all.append(element("h3", {}, title), note("No samples, or none that were kept."));
      continue;
    }
    const format = inUnit(lines[0][0].unit);
    const text = lines.map(([one, prefix]) =>
      `${nameOf(one, prefix)}: p50 ${format(quantile(one, 50))}, p99 ${format(quantile(one, 99))} of ${number(one.count)}`).join("; ");
    const pair = element("div", { class: "pair" });
    all.append(pair);
    const values = lines.flatMap(([one]) => [one.quantiles[0], one.quantiles.at(-1)]);
    const least = Math.min(...values), most = Math.max(...values);
    const isLog = least > 0 && most / least >= 20;
    const x = { distr: isLog ? 3 : 1, range: least === most ? [least * 0.9, most * 1.1 || 1] : [least, most] };
    const xAxis = isLog ? { splits: magnitudes, values: sparse(format), filter: (u, splits) => splits } : { values: (u, splits) => splits.map(format) };
    // Equal samples are a point.
    const labels = lines.map(([one, prefix]) =>
      ({ label: nameOf(one, prefix), points: { show: one.quantiles[0] === one.quantiles.at(-1), size: 8 } }));
    chart(pair, metric + "-cdf", title + ": share of samples at most as long", text,
      { x, xAxis, wide: runs.length > 1, y: { range: [0, 1] }, yAxis: { values: (u, splits) => splits.map((share) => Math.round(share * 100) + " %") } },
      joined(lines.map(([one]) => [one.quantiles, data.percents.map((percent) => percent / 100)])), labels);
    // Bins of two runs differ, so each has a chart.
    const groups = runs.length === 1 ? [lines] : lines.map((line) => [line]);
    groups.forEach((group, i) => {
      const bounds = group[0][0].histogram.bounds;
      const wide = bounds[0] === bounds.at(-1) ? [bounds[0] * 0.99, bounds[0] * 1.01 || 1] : bounds;
      const columns = [wide, ...group.map(([one]) => [...one.histogram.counts, one.histogram.counts.at(-1)])];
      const titles = group.map(([one, prefix], series) => {
        const own = color("--c" + ((i + series) % 8));
        return { label: nameOf(one, prefix), paths: uPlot.paths.stepped({ align: 1 }), stroke: own, fill: own + "22" };
      });
      const suffix = runs.length === 1 ? "" : ", " + group[0][1];
      chart(pair, `${metric}-histogram${i ? "-" + i : ""}`, title + ": samples of each length" + suffix,
        bounds.length < 3 ? `all are ${format(bounds[0])}`
          : `${bounds.length - 1} ${isRatio(bounds) ? "bins of equal ratio" : "bins"} from ${format(bounds[0])} to ${format(bounds.at(-1))}`,
        { x, xAxis, yAxis: { values: (u, splits) => linear(splits) } }, columns, titles);
    });
    const percents = [0, 50, 90, 95, 99, 99.9, 100];
    all.append(table(["", "samples", "mean", ...percents.map((p) => (p === 0 ? "min" : p === 100 ? "max" : "p" + p))],
      lines.map(([one, prefix]) => [nameOf(one, prefix), number(one.count), format(one.mean), ...percents.map((p) => format(quantile(one, p)))])));
  }
}

// ---- time lines ----------------------------------------------------------------

// A total as a rate per second: the first sample has none before it.
const rates = (totals, interval) => totals.map((total, i) => (i ? Math.max(0, total - totals[i - 1]) / (interval / 1000) : null));
const times = (count, interval, offset = 0) => Array.from({ length: count }, (_, i) => ((i + offset) * interval) / 1000);

const COURSES = [
  ["running", "Running requests", (line) => line.running, number],
  ["waiting", "Waiting requests", (line) => line.waiting, number],
  ["kv", "KV blocks in use", (line) => line.kv_usage, (share) => number(share * 100) + " %"],
  ["prefill", "Prefill throughput, tokens/s", (line, interval) => rates(line.prefill_tokens, interval), number],
  ["decode", "Decode throughput, tokens/s", (line, interval) => rates(line.decode_tokens, interval), number],
  ["preemptions", "Preemptions so far", (line) => line.preemptions, number],
];

function sumOf(timeline, read, isShare) {
  const lines = timeline.engines.map((line) => read(line, timeline.interval_ms));
  const engines = timeline.engines.map((line) => line.engines);
  const count = engines.reduce((sum, own) => sum + own, 0) || 1;
  return (lines[0] ?? []).map((_, i) => {
    const sum = lines.reduce((sum, line, engine) => sum + (line[i] ?? 0) * (isShare ? engines[engine] : 1), 0);
    return isShare ? sum / count : sum;
  });
}

function eventsOf(run) {
  const events = run.charts.incidents.map((one) => ({ at: one.at_ms, text: `${one.engine}: ${one.what}` }));
  events.push(...run.scaling.map((one) => ({ at: one.at_ms, text: `${one.pool}: from ${one.from} to ${one.to} engines` })));
  return events.sort((a, b) => a.at - b.at);
}

// Vertical lines where engines failed or their number changed.
function marks(events) {
  return { draw: [(u) => {
    u.ctx.save();
    u.ctx.strokeStyle = color("--failed");
    u.ctx.setLineDash([4, 4]);
    for (const { at } of events) {
      const x = u.valToPos(at / 1000, "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }] };
}

function course(into, id, title, lines, format, events, longest) {
  const text = lines.map(([name, , ys]) => {
    const known = ys.filter((y) => y !== null);
    const mean = known.reduce((sum, y) => sum + y, 0) / (known.length || 1);
    return `${name}: mean ${format(mean)}, at most ${format(known.reduce((a, b) => Math.max(a, b), 0))}`;
  }).join("; ");
  chart(into, id, title, text,
    { x: { range: [0, longest] }, xAxis: { values: (u, splits) => splits.map((s) => number(s) + "s") },
      yAxis: { values: (u, splits) => splits.map(format) }, hooks: marks(events) },
    joined(lines.map(([, xs, ys]) => [xs, ys])), lines.map(([label]) => ({ label })));
}

function drawTimelines(runs) {
  const all = section("timelines", "Over time");
  const pair = element("div", { class: "pair" });
  all.append(pair);
  const longest = Math.max(...runs.map((run) => run.duration_ms)) / 1000 || 1;
  const events = runs.length === 1 ? eventsOf(runs[0]) : [];
  const loads = runs.filter((run) => run.charts.load);
  if (loads.length) {
    const lines = loads.flatMap((run) => {
      const { interval_ms: interval, arrived, ended } = run.charts.load;
      const xs = times(arrived.length, interval, 0.5);
      const perSecond = (counts) => counts.map((count) => count / (interval / 1000 || 1));
      const prefix = runs.length === 1 ? "" : short(run.label) + ": ";
      return [[prefix + "arriving", xs, perSecond(arrived)], [prefix + "ending", xs, perSecond(ended)]];
    });
    course(pair, "load", "Requests/s", lines, number, events, longest);
  }
  const known = runs.filter((run) => run.charts.timeline?.engines.length);
  if (known.length) {
    for (const [id, title, read, format] of COURSES) {
      const lines = known.flatMap((run) => {
        const timeline = run.charts.timeline;
        const xs = times(timeline.engines[0].running.length, timeline.interval_ms);
        if (runs.length > 1) return [[short(run.label), xs, sumOf(timeline, read, id === "kv")]];
        const several = (line) => (line.engines > 1 ? ` (${id === "kv" ? "mean" : "sum"} of ${line.engines})` : "");
        return timeline.engines.map((line) => [short(line.name) + several(line), xs, read(line, timeline.interval_ms)]);
      });
      course(pair, id, title, lines, format, events, longest);
    }
  } else {
    all.append(note("The states of engines over time are not known: the folder has no charts.json, or its engines are somebody else's."));
  }
  if (events.length) {
    const shown = events.slice(0, 200);
    all.append(element("h3", {}, "Faults and scaling"), table(["Time", "Event"], shown.map((one) => [time(one.at), element("span", {}, one.text)])));
    if (shown.length < events.length) all.append(note(`and ${events.length - shown.length} more`));
  }
}

// ---- requests --------------------------------------------------------------------

const keys = () => element("ul", { class: "keys" }, ...PHASES.map((phase, i) => element("li", {}, element("i", { class: "p" + i }), phase)));

function bar(parts, whole, kind) {
  const made = element("div", { class: "bar " + kind, role: "img", "aria-label": parts.map(([i, ms]) => `${PHASES[i]} ${time(ms)}`).join(", ") });
  for (const [i, ms] of parts) {
    const part = element("span", { class: "p" + i, title: `${PHASES[i]} ${time(ms)}` });
    part.style.width = (whole ? (ms / whole) * 100 : 0) + "%";
    made.append(part);
  }
  return made;
}

function drawPhases(runs) {
  const bars = runs.flatMap((run) => run.charts.phases.filter((one) => runs.length === 1 || !one.workload)
    .map((one) => [runs.length === 1 ? one.workload ?? "all requests" : run.label, one]));
  const all = section("phases", "Where the time of requests went");
  if (!bars.length) return all.append(note("No request completed."));
  const sums = bars.map(([, one]) => one.mean_ms.reduce((a, b) => a + b, 0));
  const longest = Math.max(...sums);
  all.append(keys(), table(["", "requests", ...PHASES, "mean of all", ""], bars.map(([name, one], i) => [
    name, number(one.requests), ...one.mean_ms.map(time), time(sums[i]),
    bar(one.mean_ms.map((ms, phase) => [phase, ms]).filter(([, ms]) => ms > 0), longest, "phases")])));
}

function drawSlowest(runs) {
  const all = section("slowest", "Slowest requests");
  for (const run of runs) {
    if (runs.length > 1) all.append(element("h3", {}, run.label));
    const lines = run.charts.slowest;
    if (!lines.length) { all.append(note("No request ended.")); continue; }
    const longest = lines[0].total_ms;
    all.append(keys(), table(["Request", "workload", "status", "engine", "prompt", "output", "preempted", "retried", "TTFT", "total", "life"],
      lines.map((one) => [
        String(one.id), element("span", {}, one.workload), element("span", {}, one.status), element("span", {}, one.engines.join(" → ")),
        number(one.prompt_tokens), number(one.output_tokens), number(one.preemptions), number(one.retries), time(one.ttft_ms), time(one.total_ms),
        bar(one.phases.map(([phase, from, to]) => [PHASES.indexOf(phase), to - from]), longest, "life")])));
  }
}

function drawEngines(runs) {
  const all = section("engines", "Engines and links");
  for (const run of runs) {
    if (runs.length > 1) all.append(element("h3", {}, run.label));
    const share = (value) => number(value * 100) + " %";
    const shown = run.engines.slice(0, 256);
    if (shown.length) {
      all.append(table(["Engine", "steps", "busy", "tokens computed", "preemptions", "KV peak", "cache hits", "crashes"], shown.map((one) => [
        `${one.pool} ${one.engine}${one.rank === undefined ? "" : "." + one.rank}`, number(one.steps), share(one.utilisation),
        number(one.computed_tokens), number(one.preemptions), share(one.kv_peak_usage), share(one.prefix_hit_ratio), number(one.crashes)])));
    }
    if (shown.length < run.engines.length) all.append(note(`and ${run.engines.length - shown.length} more`));
    if (run.links.length) {
      all.append(table(["Link", "moved", "busy"], run.links.map((one, i) => ["link " + i, number(one.bytes / 1e9) + " GB", share(one.utilisation)])));
    }
  }
}

// ---- comparison --------------------------------------------------------------------

// Metrics that come first, in this order.
const FIRST = ["ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms", "prefill_ms", "transfer_ms"];

function drawComparison([one, other]) {
  const rows = [];
  const change = (a, b) => (a ? `${b >= a ? "+" : ""}${number(((b - a) / a) * 100)} %` : "–");
  const add = (name, a, b, format) => {
    if (a !== undefined && b !== undefined) rows.push([name, format(a), format(b), change(a, b)]);
  };
  const all = (read) => [...new Set([...Object.keys(read(one)), ...Object.keys(read(other))])];
  const place = (name) => (FIRST.indexOf(name) + 1 || FIRST.length + 1);
  for (const name of all((run) => run.metrics.trends).sort((a, b) => place(a) - place(b))) {
    const format = name.endsWith("_ms") ? time : number;
    for (const statistic of ["mean", "p50", "p90", "p99", "max"]) {
      add(`${name.replace(/_ms$/, "")} ${statistic}`, one.metrics.trends[name]?.[statistic], other.metrics.trends[name]?.[statistic], format);
    }
  }
  for (const name of ["completed", "output_tokens", "generated_tokens"]) {
    add(name + " per second", one.metrics.rates_per_s[name], other.metrics.rates_per_s[name], number);
  }
  for (const name of all((run) => run.metrics.gauges)) {
    add(name.replace(/_ms$/, ""), one.metrics.gauges[name], other.metrics.gauges[name], name.endsWith("_ms") ? time : number);
  }
  for (const name of all((run) => run.metrics.counters)) add(name, one.metrics.counters[name], other.metrics.counters[name], number);
  section("comparison", "Comparison", table(["", short(one.label), short(other.label), "change"], rows));
}

// ---- the page ------------------------------------------------------------------------

function draw() {
  plots.forEach(({ plot }) => plot.destroy());
  plots = [];
  drawn.replaceChildren();
  const one = data.runs[runSelect.value];
  if (!one) return;
  const other = data.runs[otherSelect.value];
  const runs = other && other !== one ? [one, other] : [one];
  if (runs.length > 1) drawComparison(runs);
  drawDistributions(runs);
  drawTimelines(runs);
  drawPhases(runs);
  drawSlowest(runs);
  drawEngines(runs);
  window.vcrCharts = plots;
}

data.runs.forEach((run, i) => {
  runSelect.append(element("option", { value: i }, run.label));
  otherSelect.append(element("option", { value: i }, run.label));
});
otherSelect.prepend(element("option", { value: "" }, "none"));
// Two folders are there to be compared.
const second = data.runs.findIndex((run) => run.folder === 1);
otherSelect.value = second > 0 ? String(second) : "";
if (data.runs.length < 2) document.getElementById("choice").hidden = true;
document.getElementById("choice").addEventListener("change", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
// Paper is light.
function print(isPaper) {
  document.documentElement.toggleAttribute("data-paper", isPaper);
  draw();
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
draw();
