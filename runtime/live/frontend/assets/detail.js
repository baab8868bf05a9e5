// One request, and two beside each other.

const shownDetail = { one: null };

const section = (title, ...children) => element("section", {}, element("h2", {}, title), ...children);
const facts = (pairs) => element("dl", {}, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value instanceof Node ? value : String(value))]));
const code = (text) => element("pre", { tabindex: "0" }, element("code", {}, text));

function button(text, act, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", act);
  return made;
}

// Copies a text, or shows it where the browser does not let it.
function copies(text, make) {
  const made = button(text, async () => {
    let copied = "";
    try {
      window.vcrCopied = copied = await make();
      await navigator.clipboard.writeText(copied);
      made.textContent = "copied";
    } catch (error) {
      made.replaceWith(code(copied || error.message));
    }
    setTimeout(() => { made.textContent = text; }, 1500);
  });
  return made;
}

function bubble({ role, parts }) {
  return element("li", { class: "message " + (role || "plain") }, element("b", {}, role || "message"), ...parts.map(({ kind, text }) => element("div", { class: "part " + kind }, kind === "text" ? "" : element("i", {}, kind + " "), text)));
}

function answerBubble(answer) {
  const parts = [];
  if (answer.reasoning) parts.push({ kind: "reasoning", text: answer.reasoning });
  if (answer.text) parts.push({ kind: "text", text: answer.text });
  for (const { name, arguments: given } of answer.calls) parts.push({ kind: "call", text: `${name}(${given})` });
  return bubble({ role: "answer", parts });
}

// Its time in phases: they end where the next begins, in milliseconds since it came.
function phasesOf(one) {
  const [request] = one.engine;
  const times = [["before the engine", 0, "--c7"]];
  if (request?.queued_ms !== null && request?.queued_ms !== undefined) times.push(["queue", request.queued_ms, "--c4"]);
  if (request?.scheduled_ms) times.push(["prefill", request.scheduled_ms, "--c0"]);
  if (request?.first_token_ms) times.push(["decode", request.first_token_ms, "--c2"]);
  if (request?.last_token_ms) times.push(["after the engine", request.last_token_ms, "--c3"]);
  return times.map(([name, from, own], i) => ({ name, from, to: Math.max(times[i + 1]?.[1] ?? one.ms, from), own }));
}

// Shares of a whole: the size, color and text of each.
function bar(parts) {
  const whole = parts.reduce((sum, [size]) => sum + size, 0) || 1;
  return element("div", { class: "bar", role: "img", "aria-label": parts.map(([, , text]) => text).join(", ") }, ...parts.map(([size, own, text]) => {
    const part = element("span", { title: text });
    part.style.cssText = `width:${(size / whole) * 100}%;background:var(${own})`;
    return part;
  }));
}

function barWithKeys(parts) {
  return element("div", {}, bar(parts), element("ul", { class: "keys" }, ...parts.map(([, own, text]) => {
    const key = element("i");
    key.style.background = `var(${own})`;
    return element("li", {}, key, text);
  })));
}

const phaseBar = (one) => barWithKeys(phasesOf(one).filter(({ from, to }) => to > from).map(({ name, from, to, own }) => [to - from, own, `${name} ${time(to - from)}`]));

// KV blocks of a prompt: the cache has the first of them.
function promptBlocks({ id, prompt_tokens, cached_tokens }, isOne) {
  const found = Math.floor(cached_tokens / data.block_size), computed = Math.ceil(prompt_tokens / data.block_size) - found;
  const parts = [[found, "--c2", `${number(found)} KV blocks of the prompt found in the cache`], [computed, "--c0", `${number(computed)} computed`]];
  return element("div", { class: "blocks" }, isOne ? "" : element("span", {}, id), barWithKeys(parts));
}

// Each part of the answer by its time, and the time since the one before.
function partsChart(into, id, all) {
  const lines = all.map(({ name, one }) => ({ name, points: true, xs: one.parts.map(([ms]) => ms), ys: one.parts.map(([ms], i) => ms - (i ? one.parts[i - 1][0] : one.head_ms ?? 0)) }));
  const marks = all.length > 1 ? [] : all[0].one.engine.flatMap(({ preempted_ms }) => preempted_ms.map((at) => ({ at, name: "preempted" })));
  if (all.every(({ one }) => one.parts.length < 2)) return;
  chart(into, {
    id, title: "Parts of the answer", wide: true, marks, lines, x: { unit: "ms", title: "after" }, y: { unit: "ms" },
    text: `Each point is a part of the answer: its time, and the time since the previous part. ${all.map(({ name, one }) => `${name}: ${one.chunks} parts`).join("; ")}.`,
  });
}

function engineTable(one) {
  const rows = one.engine.map((request) => [request.id, request.rank, number(request.prompt_tokens), number(request.cached_tokens), number(request.output_tokens),
    time(request.scheduled_ms !== null && request.queued_ms !== null ? request.scheduled_ms - request.queued_ms : null),
    time(request.first_token_ms !== null && request.scheduled_ms !== null ? request.first_token_ms - request.scheduled_ms : null),
    time(request.last_token_ms !== null && request.first_token_ms !== null ? request.last_token_ms - request.first_token_ms : null),
    request.preempted_ms.length, request.finish ?? "under way"]);
  return table(["request", "engine", "prompt", "cached", "output", "queue", "prefill", "decode", "preempted", "end"], rows.map((cells) => cells.map(String)));
}

const headersTable = (headers) => table(["header", "value"], Object.entries(headers).map(([name, value]) => [name, element("span", {}, value)]));

function drawDetail(into, one) {
  const asked = askedOf(one.request_body), answer = answerOf(one.body);
  const left = one.request_left_out + one.left_out;
  into.append(
    element("p", { class: "tools" }, element("a", { href: "#requests" }, "← requests"),
      element("a", { href: `#requests/${one.number - 1}` }, "older"), element("a", { href: `#requests/${one.number + 1}` }, "newer"),
      ...(isEngineOnly ? [] : [copies("copy as curl", () => curlOfExchange(one)), copies("copy as capture", () => ask("GET", `requests/${one.number}/capture`))]),
      one.engine[0]?.first_token_ms || (!isEngineOnly && answer.isKnown) ? copies("copy as scenario", () => scenarioOf(one)) : "",
      button(list.pinned.has(one.number) ? "unpin" : "pin", () => pinned(one.number, !list.pinned.has(one.number)))),
    element("h2", { id: "which" }, `${one.number}: ${nameOf(one)} `, outcome(one)),
    facts([["at", clockTime(one.unix_ms)], ["from", isEngineOnly ? null : one.peer], ["model", one.model], ["fault", one.fault && element("span", { class: "failed" }, one.fault)],
      ["error", (one.error ?? answer.error) && element("span", { class: "failed" }, one.error ?? answer.error)], ["ended", one.end === "whole" ? null : one.end ?? "it is under way"],
      ["first part after", one.first_ms === null ? null : time(one.first_ms)], ["all after", time(one.ms)], ["tokens", tokensOf(one)], ["found in the cache", one.engine.length ? `${number(one.cached_tokens)} tokens` : null],
      ["answer", one.bytes ? `${number(one.bytes)} bytes in ${one.chunks} parts` : null], ["finish", answer.finish ?? one.finish],
      ["usage", answer.usage && JSON.stringify(answer.usage)], ["not kept", left ? `${number(left)} bytes beyond the limit` : null]]));
  if (one.engine.length) into.append(phaseBar(one));
  const messages = element("ul", { class: "messages", id: "messages" }, ...asked.messages.map(bubble));
  if (answer.isKnown || answer.text) messages.append(answerBubble(answer));
  if (messages.childElementCount) into.append(section("Messages", messages));
  if (data.server && RENDERED.includes(one.path)) into.append(rendered(one));
  if (Object.keys(asked.parameters).length) into.append(section("Parameters", facts(Object.entries(asked.parameters).map(([name, value]) => [name, pretty(value)]))));
  if (asked.tools.length) into.append(section("Tools", ...asked.tools.map(({ name, description, schema }) => element("details", {}, element("summary", {}, element("b", {}, name), " " + description.slice(0, 120)), code(pretty(schema))))));
  const charts = element("div", { class: "pair" });
  into.append(section("Time", charts));
  partsChart(charts, "parts", [{ name: "parts", one }]);
  if (!charts.childElementCount) charts.replaceWith(note(one.chunks ? "The answer came in one part." : "There is no answer yet."));
  if (one.engine.length) into.append(section("In the engine", engineTable(one), ...one.engine.map((request) => promptBlocks(request, one.engine.length === 1))));
  if (isEngineOnly) return;
  into.append(section("As it was sent",
    element("details", {}, element("summary", {}, "request"), headersTable(one.request_headers), code(pretty(asJson(one.request_body) ?? one.request_body))),
    element("details", {}, element("summary", {}, "answer"), headersTable(one.headers), code(pretty(asJson(one.body) ?? one.body)))));
}

const RENDERED = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];

// The prompt as the model sees it, by the server's own template.
function rendered(one) {
  const into = element("details", { id: "rendered" }, element("summary", {}, "as the model sees it"));
  into.addEventListener("toggle", async () => {
    if (!into.open || into.childElementCount > 1) return;
    try {
      const answer = await ask("POST", `server${one.path}/render`, asJson(one.request_body));
      into.append(code(pretty(answer)));
    } catch (error) { into.append(note(String(error.message))); }
  });
  return into;
}

async function showDetail(into, numberText) {
  const wanted = Number(numberText);
  if (shownDetail.one?.number !== wanted) shownDetail.one = await ask("GET", `requests/${wanted}`).catch(() => null);
  if (!shownDetail.one) return into.append(element("p", { class: "note" }, `Request ${wanted} is not kept.`), element("a", { href: "#requests" }, "← requests"));
  drawDetail(into, shownDetail.one);
}

// Reads an unfinished request again. Returns whether it changed.
async function pollDetail(wanted) {
  const before = shownDetail.one;
  if (!before || before.number !== Number(wanted) || before.end) return false;
  const now = await ask("GET", `requests/${wanted}`).catch(() => null);
  if (!now || (now.chunks === before.chunks && now.end === before.end && now.status === before.status)) return false;
  shownDetail.one = now;
  return true;
}

// ---- two requests ----------------------------------------------------------------

async function showCompare(into, a, b) {
  const [one, other] = await Promise.all([a, b].map((wanted) => ask("GET", `requests/${wanted}`).catch(() => null)));
  if (!one || !other) return into.append(note("One of them is no longer kept."));
  const gap = (it) => (it.parts.length > 1 ? (it.last_ms - it.first_ms) / (it.parts.length - 1) : null);
  const rows = [
    ["request", nameOf], ["model", (it) => it.model ?? ""], ["status", (it) => String(it.status ?? "–")], ["ended", (it) => it.end ?? "under way"], ["fault", (it) => it.fault ?? ""],
    ["first part", (it) => time(it.first_ms)], ["between parts", (it) => time(gap(it))], ["total", (it) => time(it.ms)],
    ["prompt tokens", (it) => number(it.prompt_tokens)], ["cached tokens", (it) => number(it.cached_tokens)], ["output tokens", (it) => number(it.output_tokens)], ["preemptions", (it) => number(it.preemptions)],
  ];
  into.append(element("p", { class: "tools" }, element("a", { href: "#requests" }, "← requests")), element("h2", { id: "which" }, `${a} and ${b}`),
    table(["", String(a), String(b)], rows.map(([name, of]) => [name, of(one), of(other)])));
  const charts = element("div", { class: "pair" });
  into.append(charts);
  partsChart(charts, "parts", [{ name: String(a), one }, { name: String(b), one: other }]);
  if (isEngineOnly) return;
  into.append(section("Requests", difference(asJson(one.request_body), asJson(other.request_body))), section("Answers", element("div", { class: "pair" },
    ...[one, other].map((it) => element("ul", { class: "messages" }, answerBubble(answerOf(it.body)))))));
}

// Paths of two JSON values that differ.
function differences(one, other, path = "") {
  const isObject = (value) => value !== null && typeof value === "object";
  if (isObject(one) && isObject(other)) return [...new Set([...Object.keys(one), ...Object.keys(other)])].flatMap((key) => differences(one[key], other[key], path ? `${path}.${key}` : key));
  return JSON.stringify(one) === JSON.stringify(other) ? [] : [[path || "body", one, other]];
}

function difference(one, other) {
  const found = differences(one, other);
  if (!found.length) return note("Both requests are equal.");
  const cell = (value, name) => element(name, {}, value === undefined ? "–" : pretty(value).slice(0, 400));
  return table(["where", "first", "second"], found.map(([path, a, b]) => [path, cell(a, "del"), cell(b, "ins")]));
}
