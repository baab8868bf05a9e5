// The list of requests, with filters.

const STATES = {
  all: () => true,
  "under way": (one) => !one.end,
  "2xx": (one) => one.status >= 200 && one.status < 300,
  "errors": (one) => one.status >= 400 || one.end === "failed",
  "gone clients": (one) => one.end === "client gone",
  "faults": (one) => Boolean(one.fault),
};

// Frontends in other processes send requests of the engine's protocol, which have neither paths nor bodies here.
const isEngineOnly = data.command === "play";
const nameOf = (one) => (isEngineOnly ? one.text : `${one.method} ${one.path}`);

// The list grows by what the server tells; the oldest of it goes with the server's own.
const list = { all: new Map(), revision: 0, text: "", state: "all", path: "", pinned: new Set(), skipped: 0 };

async function pollRequests() {
  const after = list.revision;
  const { revision, oldest, requests, skipped } = await ask("GET", `requests?after=${after}`);
  // Two may be under way, and the answer of the first may come last.
  if (list.revision !== after) return [];
  if (revision < list.revision) list.all.clear();
  list.revision = revision;
  list.skipped = skipped;
  for (const number of list.all.keys()) if (number < oldest) list.all.delete(number);
  requests.forEach((one) => list.all.set(one.number, one));
  return requests;
}

function outcome(one) {
  const failed = one.status >= 400 || one.end === "failed" || one.end === "client gone";
  const text = !one.end ? (one.status ? "streaming" : "waiting") : String(one.status ?? one.finish ?? "–");
  return element("span", { class: "status " + (failed || one.fault ? "failed" : one.end ? "passed" : "warned") }, text + (one.end === "client gone" ? " ✂" : one.end === "failed" ? " ✗" : ""));
}

const clockTime = (ms) => new Date(ms).toLocaleTimeString("en", { hour12: false }) + "." + String(Math.floor(ms % 1000)).padStart(3, "0");
const tokensOf = (one) => (one.prompt_tokens === null ? "" : `${number(one.prompt_tokens)} → ${one.output_tokens || (one.end ? 0 : "…")}`);

function matches(one) {
  const text = list.text.toLowerCase();
  return STATES[list.state](one) && (!list.path || one.path === list.path)
    && (!text || [one.path, one.model, one.text, one.status, one.fault, one.method].some((value) => String(value ?? "").toLowerCase().includes(text)));
}

function row(one) {
  const pin = element("input", { type: "checkbox", "aria-label": `pin request ${one.number} to compare it` });
  pin.checked = list.pinned.has(one.number);
  pin.addEventListener("change", () => pinned(one.number, pin.checked));
  const link = element("a", { href: `#requests/${one.number}`, "data-number": one.number },
    element("span", { class: "when" }, clockTime(one.unix_ms)), outcome(one),
    element("span", { class: "what" }, element("b", {}, nameOf(one)), one.fault ? element("em", { class: "failed" }, " fault: " + one.fault) : "", element("small", {}, isEngineOnly ? `engine ${one.rank}` : one.text || "")),
    element("span", { class: "count" }, tokensOf(one), one.cached_tokens ? element("small", {}, `${number(one.cached_tokens)} cached`) : "", one.preemptions ? element("small", { class: "warned" }, `${one.preemptions} preempted`) : ""),
    element("span", { class: "count" }, one.first_ms === null ? "" : time(one.first_ms), element("small", {}, "first")),
    element("span", { class: "count" }, time(one.ms), element("small", {}, "total")));
  return element("li", {}, pin, link);
}

// Two at most: the one that was pinned first gives way.
function pinned(number, isPinned) {
  list.pinned.delete(number);
  if (isPinned) list.pinned.add(number);
  while (list.pinned.size > 2) list.pinned.delete(list.pinned.values().next().value);
  show();
}

function select(label, options, value, change) {
  const made = element("select", { "aria-label": label }, ...options.map(([value, text]) => element("option", { value }, text)));
  made.value = value;
  made.addEventListener("change", () => { change(made.value); show(); });
  return made;
}

function showRequests(into) {
  const search = element("input", { type: "search", id: "search", placeholder: "search  ( / )", "aria-label": "search requests", value: list.text });
  search.addEventListener("input", () => { list.text = search.value; fillRequests(); });
  const paths = [...new Set([...list.all.values()].map(({ path }) => path))].sort();
  const [a, b] = list.pinned;
  into.append(
    element("div", { class: "tools" }, search,
      select("status", Object.keys(STATES).map((name) => [name, name]), list.state, (value) => { list.state = value; }),
      isEngineOnly ? "" : select("endpoint", [["", "all endpoints"], ...paths.map((path) => [path, path])], list.path, (value) => { list.path = value; }),
      b ? element("a", { class: "button", href: `#compare/${a}/${b}`, id: "compare" }, `compare ${a} with ${b}`) : a ? element("span", { class: "note" }, "pin one more to compare") : "",
      button("forget all", async () => { await ask("DELETE", "requests"); list.all.clear(); list.pinned.clear(); show(); })),
    element("ul", { class: "list", id: "list" }),
    element("p", { class: "note", id: "none" }));
  fillRequests();
}

// Whether the filter of endpoints lacks one: it is drawn again then.
const lacksPath = () => {
  if (isEngineOnly) return false;
  const shown = document.querySelectorAll("select[aria-label=endpoint] option").length - 1;
  return shown !== new Set([...list.all.values()].map(({ path }) => path)).size;
};

const MOST_ROWS = 300;

function fillRequests() {
  const into = document.getElementById("list");
  if (!into) return;
  const focused = document.activeElement?.dataset?.number;
  const found = [...list.all.values()].filter(matches).reverse();
  into.replaceChildren(...found.slice(0, MOST_ROWS).map(row));
  if (focused) into.querySelector(`[data-number="${focused}"]`)?.focus();
  const skipped = list.skipped ? `; ${list.skipped} not kept: more than ${data.unseen_per_second} a second while nobody looked` : "";
  document.getElementById("none").textContent = (found.length > MOST_ROWS ? `the latest ${MOST_ROWS} of ${found.length}`
    : found.length ? `${found.length} of ${list.all.size}` : list.all.size ? "no request is like that" : `no requests yet: send one to ${isEngineOnly ? "the frontend" : "this server"}`) + skipped;
}
