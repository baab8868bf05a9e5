// Engines: as they are now, and their last minutes.

const MINUTES = 5, STEPS_SHOWN = 512;
const engines = { now: [], samples: [], steps: new Map(), last: 0, rank: "all" };

async function pollEngines() {
  const told = await ask("GET", `engines?after=${engines.last}`);
  if (told.now_ms < engines.last) Object.assign(engines, { samples: [], steps: new Map() });
  engines.last = told.now_ms;
  engines.now = told.engines;
  engines.samples.push(...told.samples);
  while (engines.samples.length > MINUTES * 60) engines.samples.shift();
  for (const { rank, steps } of told.engines) {
    const all = [...(engines.steps.get(rank) ?? []), ...steps.map(([ms, step]) => ({ ms, ...step }))];
    engines.steps.set(rank, all.slice(-STEPS_SHOWN));
  }
}

const chosen = (all) => all.filter(({ rank }) => engines.rank === "all" || rank === Number(engines.rank));
const sum = (all, key) => chosen(all).reduce((total, one) => total + one[key], 0);

// A count per second, between samples; seconds before now.
function rates(key) {
  const xs = [], ys = [];
  engines.samples.forEach((sample, i) => {
    if (!i) return;
    const before = engines.samples[i - 1], seconds = (sample.ms - before.ms) / 1000;
    xs.push((sample.ms - engines.last) / 1000);
    ys.push(Math.max(sum(sample.engines, key) - sum(before.engines, key), 0) / seconds);
  });
  return { xs, ys };
}

// The latest rate, over some seconds.
function latest(key, seconds = 10) {
  const since = engines.samples.filter(({ ms }) => ms >= engines.last - seconds * 1000);
  if (since.length < 2) return 0;
  const [first, last] = [since[0], since.at(-1)];
  return ((sum(last.engines, key) - sum(first.engines, key)) / (last.ms - first.ms)) * 1000;
}

const levels = (key) => ({ xs: engines.samples.map(({ ms }) => (ms - engines.last) / 1000), ys: engines.samples.map((sample) => sum(sample.engines, key)) });

function percentile(sorted, share) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)] : null;
}

const ended = (seconds) => [...list.all.values()].filter(({ end, status, unix_ms, rank, requests }) => end === "whole" && requests && status < 400 && unix_ms > Date.now() - seconds * 1000
  && (engines.rank === "all" || rank === Number(engines.rank)));
const LATENCIES = {
  "first token": (one) => one.stream ? one.first_ms : null,
  "between tokens": (one) => (one.stream && one.output_tokens > one.requests ? (one.last_ms - one.first_ms) / (one.output_tokens - one.requests) : null),
  "whole": (one) => one.ms,
};
const values = (all, of) => all.map(of).filter(isKnown).sort((a, b) => a - b);

function latencyTable() {
  const rows = [60, MINUTES * 60].flatMap((seconds) => Object.entries(LATENCIES).map(([name, of]) => {
    const all = values(ended(seconds), of);
    return [`${name}, last ${clock(seconds * 1000)}`, number(all.length), ...[0.5, 0.9, 0.99, 1].map((share) => time(percentile(all, share)))];
  }));
  return table(["latency", "requests", "p50", "p90", "p99", "max"], rows);
}

function tile(name, value, small = "", tone = "neutral") {
  return element("li", { class: "tile " + tone }, element("span", {}, name), element("strong", {}, value), element("small", {}, small));
}

function engineTiles() {
  const all = chosen(engines.now), count = all.length || 1;
  const usage = all.reduce((total, one) => total + one.kv_usage, 0) / count;
  const queries = latest("prefix_queries", 60), hits = latest("prefix_hits", 60);
  const waiting = sum(engines.now, "waiting");
  return element("ul", { class: "tiles" },
    tile("running", number(sum(engines.now, "running")), `${number(sum(engines.now, "requests"))} so far`),
    tile("waiting", number(waiting), "", waiting ? "warned" : "neutral"),
    tile("KV blocks used", share(usage), `of ${number(STATES_OF_BLOCKS.reduce((total, [, key]) => total + sum(all, key), 0))}`, usage > 0.95 ? "warned" : "neutral"),
    tile("output tokens/s", number(Math.round(latest("generation_tokens"))), "last 10s"),
    tile("prefix hits", queries ? share(hits / queries) : "–", "of prompt tokens, last minute"),
    tile("preemptions", number(sum(engines.now, "preemptions")), "", sum(engines.now, "preemptions") ? "warned" : "neutral"));
}

const STATES_OF_BLOCKS = [["used", "used_blocks", "--c0"], ["cached", "cached_blocks", "--c2"], ["free", "free_blocks", "--fill"]];

// KV blocks by state, a bar for each engine.
function blockMap() {
  const rows = chosen(engines.now).map((one) => {
    const parts = STATES_OF_BLOCKS.map(([name, key, own]) => [one[key], own, `${number(one[key])} ${name}`]);
    return element("div", { class: "blocks" }, element("span", {}, `engine ${one.rank}: ${parts.map(([, , text]) => text).join(", ")}`), bar(parts));
  });
  return element("div", {}, ...rows);
}

function rankTable() {
  const rows = engines.now.map((one) => [`engine ${one.rank}`, one.state + (one.paused ? ", paused" : "") + (one.sleeping ? ", asleep" : ""), number(one.running), number(one.waiting), share(one.kv_usage),
    number(one.steps_total), number(one.generation_tokens), number(one.preemptions), one.latency, one.faults.join(" ") || "none"]);
  return table(["", "state", "running", "waiting", "KV", "steps", "tokens", "preemptions", "latency model", "faults"], rows.map((cells) => cells.map((cell, i) => (i > 7 ? element("span", {}, cell) : cell))));
}

const CHARTS = [
  () => ({ id: "load", title: "Requests in the engine", y: {}, text: "Running and waiting requests, once a second.",
    lines: [{ name: "running", ...levels("running") }, { name: "waiting", ...levels("waiting") }] }),
  () => ({ id: "throughput", title: "Tokens per second", y: {}, text: "Output tokens, and prompt tokens of accepted requests, per second.",
    lines: [{ name: "output", ...rates("generation_tokens") }, { name: "prompt", ...rates("prompt_tokens") }] }),
  () => ({ id: "hits", title: "Prefix cache", y: {}, text: "Prompt tokens looked up and found, per second.",
    lines: [{ name: "looked up", ...rates("prefix_queries") }, { name: "found", ...rates("prefix_hits") }] }),
  () => ({ id: "kv", title: "KV blocks by state", y: {}, text: "KV blocks that requests use, that are kept in the cache for later ones, and that are free, once a second.",
    lines: STATES_OF_BLOCKS.map(([name, key]) => ({ name, ...levels(key) })) }),
  () => ({ id: "batch", title: "Batch by step", y: {}, wide: true, text: `The latest steps: requests that decode, requests whose prompt is computed, and requests that wait.`, steps: true,
    lines: [["decoding", "decode_requests"], ["prefilling", "prefill_requests"], ["waiting", "waiting"]].map(([name, key]) => ({ name, step: true, ...ofSteps(key) })) }),
  () => ({ id: "step-tokens", title: "Prompt tokens by step", y: {}, text: "Prompt tokens computed by each step.", steps: true, lines: [{ name: "prompt tokens", step: true, ...ofSteps("prefill_tokens") }] }),
  () => ({ id: "step-time", title: "Step time", y: { unit: "ms" }, text: "Duration of each step.", steps: true, lines: [{ name: "step", step: true, ...ofSteps("ms") }] }),
];

// Steps of the engine that is shown: of several the first.
function ofSteps(key) {
  const rank = chosen(engines.now)[0]?.rank;
  const steps = engines.steps.get(rank) ?? [];
  return { xs: steps.map((_, i) => i - steps.length + 1), ys: steps.map((step) => step[key === "ms" ? "duration" : key]) };
}

function showEngines(into) {
  into.append(element("div", { class: "tools" }, engines.now.length > 1
    ? select("engine", [["all", "all engines"], ...engines.now.map(({ rank }) => [String(rank), `engine ${rank}`])], engines.rank, (value) => { engines.rank = value; }) : ""),
  element("div", { id: "engine-now" }), element("div", { class: "pair", id: "engine-charts" }), element("div", { id: "latencies" }));
  plots = [];
  fillEngines();
}

function fillEngines() {
  const now = document.getElementById("engine-now");
  if (!now) return;
  now.replaceChildren(engineTiles(), element("h3", {}, "KV blocks"), blockMap(), element("h3", {}, "Engines"), rankTable());
  document.getElementById("latencies").replaceChildren(element("h3", {}, "Latency of requests that ended"), latencyTable());
  const into = document.getElementById("engine-charts");
  for (const make of CHARTS) {
    const spec = { shared: true, group: "", x: { unit: "s", title: "now" }, ...make() };
    if (spec.steps) spec.x = { title: "step" };
    if (spec.lines[0].xs.length < 2) continue;
    const drawn = plots.find(({ id }) => id === spec.id);
    if (drawn) drawn.plot.setData([spec.lines[0].xs, ...spec.lines.map(({ ys }) => ys)]);
    else chart(into, spec);
  }
  window.vcrCharts = plots;
}
