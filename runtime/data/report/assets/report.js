// Draws a run, or two in comparison.
if (data.runs) {
  const PHASES = ["arrival", "queue", "prefill", "transfer", "decode"];
  const LATENCIES = { ttft: "Time to first token (TTFT)", itl: "Inter-token latency (ITL)", e2e: "End-to-end latency (E2E)" };
  const COURSES = { ttft: "TTFT over time", itl: "Inter-token latency (ITL) over time", tpot: "Time per output token (TPOT) over time", e2e: "E2E latency over time" };
  const runSelect = document.getElementById("run");
  const otherSelect = document.getElementById("other");
  const drawn = document.getElementById("drawn");

  const section = (id, title, ...children) => {
    const made = element("section", { id, "aria-labelledby": id + "-title" }, element("h2", { id: id + "-title" }, title), ...children);
    drawn.append(made);
    return made;
  };
  const inUnit = (unit) => (unit === "ms" ? time : number);
  const nameOf = (distribution, prefix) => short(prefix ?? distribution.workload ?? "all requests");
  const quantile = (distribution, percent) => distribution.quantiles[data.percents.indexOf(percent)];
  // Limits of a metric, as levels of an axis.
  const limitsOf = (run, metric, axis) => {
    const levels = new Map();
    for (const one of run.limits) {
      if (one.metric !== metric || !/^(p[\d.]+|med|mean|avg|max)$/.test(one.statistic)) continue;
      const name = `${one.statistic} ${one.is_upper ? "<" : ">"} ${clock(one.value)}`;
      levels.set(name, { at: one.value, of: [...(levels.get(name)?.of ?? []), one.workload ? short(one.workload) : "all"] });
    }
    return [...levels].map(([name, { at, of }]) => ({ axis, at, name: of.join() === "all" ? name : `${name} (${of.join(", ")})` }));
  };

  // ---- latencies ------------------------------------------------------------------

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
        all.append(element("h3", {}, title), note("No samples."));
        continue;
      }
      const { unit } = lines[0][0], format = inUnit(unit);
      const text = lines.map(([one, prefix]) =>
        `${nameOf(one, prefix)}: p50 ${format(quantile(one, 50))}, p99 ${format(quantile(one, 99))} of ${number(one.count)}`).join("; ");
      const pair = element("div", { class: "pair" });
      all.append(pair);
      const values = lines.flatMap(([one]) => [one.quantiles[0], one.quantiles.at(-1)]);
      const least = Math.min(...values), most = Math.max(...values);
      const log = least > 0 && most / least >= 20;
      const x = { unit, log, range: least === most ? [least * 0.9, most * 1.1 || 1] : [least, most] };
      const limits = runs.length === 1 ? limitsOf(runs[0], metric, "x").filter(({ at }) => at >= x.range[0] && at <= x.range[1]) : [];
      chart(pair, {
        id: metric + "-cdf", title: title + ": CDF", text, hasTable: true, x, limits, wide: runs.length > 1, y: { unit: "share", range: [0, 1] },
        lines: lines.map(([one, prefix]) => ({ name: nameOf(one, prefix), xs: one.quantiles, ys: data.percents.map((percent) => percent / 100) })),
      });
      // Bins of two runs differ, so each has a chart.
      const groups = runs.length === 1 ? [lines] : lines.map((line) => [line]);
      groups.forEach((group, i) => {
        const bounds = group[0][0].histogram.bounds;
        const xs = bounds[0] === bounds.at(-1) ? [bounds[0] * 0.99, bounds[0] * 1.01 || 1] : bounds;
        chart(pair, {
          id: `${metric}-histogram${i ? "-" + i : ""}`, x, limits, y: { unit: "" }, shared: true,
          title: title + ": histogram" + (runs.length === 1 ? "" : ", " + group[0][1]),
          text: bounds.length < 3 ? `All samples are ${format(bounds[0])}.`
            : `${bounds.length - 1} ${isRatio(bounds) ? "bins of equal ratio" : "bins"} from ${format(bounds[0])} to ${format(bounds.at(-1))}; samples by bin`,
          lines: group.map(([one, prefix], series) => ({
            name: nameOf(one, prefix), xs, ys: [...one.histogram.counts, one.histogram.counts.at(-1)], step: true, fill: true, color: "--c" + ((i + series) % 8),
          })),
        });
      });
      const percents = [0, 50, 90, 95, 99, 99.9, 100];
      all.append(table(["", "samples", "mean", ...percents.map((p) => (p === 0 ? "min" : p === 100 ? "max" : "p" + p))],
        lines.map(([one, prefix]) => [nameOf(one, prefix), number(one.count), format(one.mean), ...percents.map((p) => format(quantile(one, p)))])));
    }
  }

  // ---- over time --------------------------------------------------------------------

  // A total as a rate per second: the first sample has none before it.
  // Tokens are counted at the ends of steps, so rates are those of several samples: of 1 / 128 of a run.
  const rates = (totals, interval) => {
    const stride = Math.ceil(totals.length / 128);
    return totals.map((total, i) => (i && i % stride === 0 ? Math.max(0, total - totals[i - stride]) / ((stride * interval) / 1000) : null));
  };
  const times = (count, interval, offset = 0) => Array.from({ length: count }, (_, i) => ((i + offset) * interval) / 1000);

  const ENGINES = [
    ["running", "Running requests", (line) => line.running, ""],
    ["waiting", "Waiting requests", (line) => line.waiting, ""],
    ["kv", "KV blocks in use", (line) => line.kv_usage, "share"],
    ["prefill", "Prefill throughput, tokens/s", (line, interval) => rates(line.prefill_tokens, interval), ""],
    ["decode", "Decode throughput, tokens/s", (line, interval) => rates(line.decode_tokens, interval), ""],
    ["preemptions", "Preemptions so far", (line) => line.preemptions, ""],
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

  // Faults, changes of the number of engines, and bursts.
  function eventsOf(run) {
    const events = run.charts.incidents.map((one) => ({ at: one.at_ms / 1000, name: `${one.engine}: ${one.what}`, kind: "fault" }));
    events.push(...run.scaling.map((one) => ({ at: one.at_ms / 1000, name: `${one.pool}: from ${one.from} to ${one.to} engines`, kind: "scaling" })));
    return [...events, ...burstsOf(run.charts.load)].sort((a, b) => a.at - b.at);
  }

  // Spans in which far more requests arrive than in the middle of all intervals: twice as many, and
  // more than chance explains.
  function burstsOf(load) {
    if (!load) return [];
    const sorted = [...load.arrived].sort((a, b) => a - b), usual = sorted[Math.floor(sorted.length / 2)];
    const bursts = [];
    load.arrived.forEach((count, i) => {
      if (count <= 2 * usual || count <= usual + 6 * Math.sqrt(usual + 1)) return;
      const at = (i * load.interval_ms) / 1000, to = ((i + 1) * load.interval_ms) / 1000;
      if (bursts.length && bursts.at(-1).to >= at - 1e-9) bursts.at(-1).to = to;
      else bursts.push({ at, to, name: "burst of arrivals", kind: "burst" });
    });
    return bursts.length > 20 ? [] : bursts;
  }

  const summary = (lines, format) => lines.filter(({ hidden }) => !hidden).map(({ name, ys, low, high }) => {
    const known = ys.filter(isKnown);
    const mean = known.reduce((sum, y) => sum + y, 0) / (known.length || 1);
    return `${name}: mean ${format(mean)}, at most ${format(Math.max(...(high ?? known).filter(isKnown), 0))}`;
  }).join("; ");

  function course(into, id, title, unit, lines, events, longest, more = {}) {
    if (!lines.some(({ ys, high }) => [...ys, ...(high ?? [])].some((y) => y))) return;
    const text = summary(lines, UNITS[unit].value);
    chart(into, { id, title, text, group: "time", x: { unit: "s", range: [0, longest], title: "at" }, y: { unit }, lines, marks: events, ...more });
  }

  // The engines of each pool: their mean with a band from the lowest to the highest, and each engine,
  // which the legend shows.
  function bandsOf(timeline, read) {
    const xs = times(timeline.engines[0].running.length, timeline.interval_ms);
    const pools = [...new Set(timeline.engines.map((line) => line.pool))];
    const lines = [], single = [];
    pools.forEach((pool) => {
      const own = timeline.engines.filter((line) => line.pool === pool).map((line) => ({ line, ys: read(line, timeline.interval_ms) }));
      if (own.length === 1) {
        const [{ line, ys }] = own;
        lines.push({ name: short(line.name) + (line.engines > 1 ? ` (${line.engines} engines)` : ""), xs, ys });
        return;
      }
      const of = (pick) => xs.map((_, i) => { const all = own.map(({ ys }) => ys[i]).filter(isKnown); return all.length ? pick(all) : null; });
      lines.push({ name: `${short(pool)}: mean of ${own.length}`, xs, ys: of((all) => all.reduce((a, b) => a + b) / all.length), low: of((all) => Math.min(...all)), high: of((all) => Math.max(...all)) });
      single.push(...own.map(({ line, ys }) => ({ name: short(line.name), xs, ys, hidden: true })));
    });
    return [...lines, ...single];
  }

  function drawTimelines(runs) {
    const all = section("timelines", "Over time");
    const pair = element("div", { class: "pair" });
    all.append(pair);
    const longest = Math.max(...runs.map((run) => run.duration_ms)) / 1000 || 1;
    const events = runs.length === 1 ? eventsOf(runs[0]) : [];
    const prefixOf = (run) => (runs.length === 1 ? "" : short(run.label) + ": ");
    for (const [metric, title] of Object.entries(COURSES)) {
      const lines = runs.flatMap((run) => (run.charts.courses ?? []).filter((one) => one.metric === metric).flatMap((one) =>
        (runs.length === 1 ? ["p50", "p95", "p99"] : ["p95"]).map((name) => ({
          name: prefixOf(run) + name, xs: times(one[name].length, one.interval_ms, 0.5), ys: one[name], gaps: true }))));
      const limits = runs.length === 1 ? limitsOf(runs[0], metric, "y") : [];
      course(pair, metric + "-time", title, "ms", lines, events, longest, { limits });
    }
    const loads = runs.filter((run) => run.charts.load);
    if (loads.length) {
      const lines = loads.flatMap((run) => {
        const { interval_ms: interval, arrived, ended } = run.charts.load;
        const xs = times(arrived.length, interval, 0.5);
        const perSecond = (counts) => counts.map((count) => count / (interval / 1000 || 1));
        return [{ name: prefixOf(run) + "arriving", xs, ys: perSecond(arrived) }, { name: prefixOf(run) + "ending", xs, ys: perSecond(ended) }];
      });
      course(pair, "load", "Requests/s", "", lines, events, longest);
    }
    const known = runs.filter((run) => run.charts.timeline?.engines.length);
    for (const [id, title, read, unit] of known.length ? ENGINES : []) {
      const lines = runs.length === 1 ? bandsOf(known[0].charts.timeline, read) : known.map((run) => {
        const { timeline } = run.charts;
        return { name: short(run.label), xs: times(timeline.engines[0].running.length, timeline.interval_ms), ys: sumOf(timeline, read, id === "kv") };
      });
      course(pair, id, title, unit, lines, events, longest);
    }
    if (!known.length) {
      all.append(note("The states of engines over time are unknown: the folder has no charts.json, or the engines are not vcr's."));
    } else if (runs.length === 1 && known[0].charts.timeline.engines.length > 1) drawHeat(all, known[0].charts.timeline);
    if (events.length) {
      const shown = events.slice(0, 200);
      all.append(element("h3", {}, "Faults, scaling and bursts"), table(["Time", "Event"], shown.map((one) => [time(one.at * 1000), element("span", {}, one.name)])));
      if (shown.length < events.length) all.append(note(`and ${events.length - shown.length} more`));
    }
  }

  // Running requests of each engine, in at most 120 cells: the mean of the samples of each.
  function drawHeat(into, timeline) {
    const samples = timeline.engines[0].running.length, cells = Math.min(samples, 120);
    const rows = timeline.engines.map((line) => ({
      name: short(line.name),
      values: Array.from({ length: cells }, (_, i) => {
        const own = line.running.slice(Math.floor((i * samples) / cells), Math.floor(((i + 1) * samples) / cells));
        return own.reduce((a, b) => a + b, 0) / own.length / line.engines;
      }),
    }));
    const most = Math.max(...rows.flatMap(({ values }) => values));
    heat(into, { id: "engines-heat", title: "Running requests by engine", text: `From none (background) to ${number(most)} (full colour).`, rows, most, value: number,
      at: (i) => time((i * samples * timeline.interval_ms) / cells) });
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
    const all = section("phases", "Time of requests by phase");
    if (!bars.length) return all.append(note("No request completed."));
    const sums = bars.map(([, one]) => one.mean_ms.reduce((a, b) => a + b, 0));
    const longest = Math.max(...sums);
    all.append(keys(), table(["", "requests", ...PHASES, "total", "mean of all requests"], bars.map(([name, one], i) => [
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
  // Counts and gauges of which more is better, or fewer; of all others neither.
  const MORE = ["completed", "completed_ratio", "output_tokens", "prefix_hit_ratio", "cached_tokens"];
  const FEWER = ["failed", "rejected", "shed", "retries", "preemptions", "wasted_tokens", "duration_ms"];
  // Changes below this are folded.
  const CHANGED = 0.01;

  // The 95 % interval of a percentile of independent samples, from the order of all.
  function intervalOf(distribution, percent) {
    const wide = 196 * Math.sqrt((percent / 100) * (1 - percent / 100) / distribution.count);
    const at = (wanted) => {
      const i = data.percents.findIndex((known) => known >= Math.min(100, Math.max(0, wanted)));
      const [p0, p1] = [data.percents[Math.max(i - 1, 0)], data.percents[i]], [q0, q1] = [distribution.quantiles[Math.max(i - 1, 0)], distribution.quantiles[i]];
      return p1 > p0 ? q0 + ((q1 - q0) * (Math.max(0, wanted) - p0)) / (p1 - p0) : q1;
    };
    return [at(percent - wide), at(percent + wide)];
  }

  function changesOf(one, other) {
    const rows = [];
    const add = (group, name, a, b, format, better, interval) => {
      if (!isKnown(a) || !isKnown(b)) return;
      const change = a ? (b - a) / Math.abs(a) : b ? Infinity * Math.sign(b) : 0;
      // An interval that has no change in it, or without one a change that is large enough to show.
      const isClear = interval ? interval[0] > 0 || interval[1] < 0 : Math.abs(change) >= CHANGED;
      rows.push({ group, name, a, b, format, change, interval, better, tone: !better || !isClear ? "neutral" : Math.sign(change) === better ? "passed" : "failed" });
    };
    const all = (read) => [...new Set([...Object.keys(read(one)), ...Object.keys(read(other))])];
    const place = (name) => FIRST.indexOf(name) + 1 || FIRST.length + 1;
    const find = (run, metric) => run.charts.distributions.find((own) => own.metric === metric && !own.workload);
    for (const name of all((run) => run.metrics.trends).sort((a, b) => place(a) - place(b))) {
      const metric = name.replace(/_ms$/, ""), distributions = [find(one, metric), find(other, metric)];
      for (const statistic of ["mean", "p50", "p90", "p95", "p99", "max"]) {
        const [a, b] = [one, other].map((run) => run.metrics.trends[name]?.[statistic]);
        let interval;
        if (/^p/.test(statistic) && distributions.every(Boolean) && a) {
          const [before, after] = distributions.map((own) => intervalOf(own, Number(statistic.slice(1))));
          // The distances to the ends of both intervals add up as those of independent errors do.
          interval = [(b - a - Math.hypot(b - after[0], before[1] - a)) / a, (b - a + Math.hypot(after[1] - b, a - before[0])) / a];
        }
        add("Latencies", `${metric} ${statistic}`, a, b, name.endsWith("_ms") ? time : number, name.endsWith("_ms") ? -1 : 0, interval);
      }
    }
    for (const name of ["completed", "output_tokens", "generated_tokens"]) add("Throughput", name + " per second", one.metrics.rates_per_s[name], other.metrics.rates_per_s[name], number, 1);
    const better = (name) => (MORE.includes(name) ? 1 : FEWER.includes(name) ? -1 : 0);
    const isShare = (name) => /ratio$|usage$/.test(name);
    for (const name of all((run) => run.metrics.gauges)) add("Cluster", name.replace(/_ms$/, ""), one.metrics.gauges[name], other.metrics.gauges[name], name.endsWith("_ms") ? time : isShare(name) ? share : number, better(name));
    for (const name of all((run) => run.metrics.counters)) add("Counts", name, one.metrics.counters[name], other.metrics.counters[name], number, better(name));
    return rows;
  }

  const percent = (change) => (isFinite(change) ? `${change >= 0 ? "+" : ""}${(change * 100).toFixed(1)} %` : "new");
  const intervalText = ({ interval }) => (interval ? `${percent(interval[0])} to ${percent(interval[1])}` : "");

  function drawDifferences(rows, into) {
    const wanted = [["ttft p95", "TTFT p95"], ["itl p99", "ITL p99"], ["output_tokens per second", "Output tokens/s"], ["completed per second", "Requests/s"], ["kv_peak_usage", "KV peak"], ["prefix_hit_ratio", "Prefix hits"]];
    const tiles = wanted.flatMap(([name, title]) => rows.filter((row) => row.name === name).map((row) => element("li", { class: "tile " + row.tone },
      element("span", {}, title), element("strong", {}, percent(row.change)), element("small", {}, `${row.format(row.a)} → ${row.format(row.b)}`),
      element("small", {}, (row.interval && `95 % interval ${intervalText(row)}`) || (!row.better ? "" : row.tone === "neutral" ? "no clear change" : row.tone === "passed" ? "better" : "worse")))));
    into.replaceChildren(element("ul", { class: "tiles" }, ...tiles));
  }

  function drawComparison([one, other]) {
    const rows = changesOf(one, other);
    const place = document.getElementById("differences");
    const all = section("comparison", "Comparison");
    if (place) drawDifferences(rows, place);
    else { const own = element("div"); all.append(own); drawDifferences(rows, own); }
    const most = Math.max(...rows.map(({ change }) => (isFinite(change) ? Math.min(Math.abs(change), 1) : 0)), 0.05);
    const cells = (row) => [row.name, row.format(row.a), row.format(row.b), percent(row.change), diverging(isFinite(row.change) ? row.change : 1, most, row.tone), element("span", { class: "note" }, intervalText(row))];
    const heads = ["", short(one.label), short(other.label), "change", "less – more", "95 % interval"];
    for (const group of [...new Set(rows.map((row) => row.group))]) {
      const own = rows.filter((row) => row.group === group), changed = own.filter(({ change }) => Math.abs(change) >= CHANGED), same = own.filter((row) => !changed.includes(row));
      all.append(element("h3", {}, group));
      if (changed.length) all.append(table(heads, changed.map(cells)));
      if (same.length) all.append(element("details", {}, element("summary", {}, `${same.length} unchanged (by less than ${CHANGED * 100} %)`), table(heads, same.map(cells))));
    }
    all.append(note("Intervals take requests as independent of each other. Green is better, red is worse."));
  }

  // ---- the page ------------------------------------------------------------------------

  const again = drawPage(() => {
    drawn.replaceChildren();
    const one = data.runs[runSelect.value];
    if (!one) return;
    const other = data.runs[otherSelect.value];
    const runs = other && other !== one ? [one, other] : [one];
    document.querySelectorAll("ul[data-run]").forEach((tiles) => { tiles.hidden = tiles.dataset.run !== runSelect.value; });
    document.getElementById("differences")?.replaceChildren();
    if (runs.length > 1) drawComparison(runs);
    drawTimelines(runs);
    drawDistributions(runs);
    drawPhases(runs);
    drawSlowest(runs);
    drawEngines(runs);
  });
  data.runs.forEach((run, i) => {
    runSelect.append(element("option", { value: i }, run.label));
    otherSelect.append(element("option", { value: i }, run.label));
  });
  otherSelect.prepend(element("option", { value: "" }, "none"));
  runSelect.value = String(data.first);
  // Two folders are there to be compared.
  const second = data.runs.findIndex((run) => run.folder === 1);
  otherSelect.value = second > 0 ? String(second) : "";
  if (data.runs.length < 2) document.getElementById("choice").hidden = true;
  document.getElementById("choice").addEventListener("change", again);
  // A link to a chart of a run shows that run.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-run]");
    if (!link || link.dataset.run === runSelect.value) return;
    runSelect.value = link.dataset.run;
    otherSelect.value = "";
    again();
  });
  again();
}
