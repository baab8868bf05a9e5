// The frame of the page: the shown part, the requests to the server, and their interval.

const INTERVAL_MS = 500;
const TABS = [["requests", "Requests", data.requests], ["engine", "Engine", data.engines], ["controls", "Controls", data.control]].filter(([, , has]) => has);
const KEY = "vcr-key";

// Asks the server. Its reasons are errors.
async function ask(method, path, body) {
  const headers = {}, key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = "Bearer " + key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch("/_vcr/api/" + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await response.text(), answer = asJson(text);
  if (response.status === 401) state.wantsKey = true;
  if (!response.ok) {
    const reason = answer?.error?.message ?? answer?.error ?? answer?.message ?? text;
    throw new Error([reason || response.statusText, answer?.hint].filter(Boolean).join(" (") + (answer?.hint ? ")" : ""));
  }
  return text === "" ? null : answer ?? text;
}

const state = { wantsKey: false, drawn: 0, isLost: false, isPaused: false };

const route = () => location.hash.slice(1).split("/");
const current = () => { const [name] = route(); return TABS.some(([id]) => id === name) || name === "compare" ? name : TABS[0][0]; };

function frame() {
  const tabs = TABS.map(([id, name]) => element("a", { href: "#" + id, id: "tab-" + id }, name));
  const hold = button("hold", () => { state.isPaused = !state.isPaused; hold.textContent = state.isPaused ? "go on" : "hold"; }, { title: "stop asking for what is new", id: "hold" });
  document.getElementById("app").replaceChildren(
    element("header", { class: "top" }, element("h1", {}, `vcr ${data.command}`, element("small", {}, data.title)), element("nav", { "aria-label": "parts" }, ...tabs, hold)),
    element("p", { id: "trouble", class: "failed", role: "alert", hidden: "" }), element("div", { id: "shown" }));
}

async function show() {
  const drawn = ++state.drawn, into = element("div", { id: "shown" }), [, first, second] = route(), name = current();
  plots.forEach(({ plot }) => plot.destroy());
  plots = [];
  for (const [id] of TABS) {
    const tab = document.getElementById("tab-" + id);
    if (id === name || (id === "requests" && name === "compare")) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  // Charts need their width, so that it is in the page before it is filled.
  document.getElementById("shown").replaceWith(into);
  if (state.wantsKey) return askKey(into);
  if (name === "engine") showEngines(into);
  else if (name === "controls") showControls(into);
  else if (name === "compare") await showCompare(into, first, second);
  else if (first) await showDetail(into, first);
  else showRequests(into);
  if (drawn === state.drawn) window.vcrCharts = plots;
}

function askKey(into) {
  const field = element("input", { type: "password", name: "key", autocomplete: "off", "aria-label": "API key" });
  const made = element("form", { class: "control", id: "key" }, element("h3", {}, "This server wants a key"), element("div", { class: "fields" }, element("label", {}, "API key ", field), element("button", { type: "submit" }, "open")));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, field.value);
    state.wantsKey = false;
    begin();
  });
  into.append(made);
}

// Requests the changes, and draws them if they are visible.
async function poll() {
  const name = current(), [, first] = route();
  if (data.requests) {
    const changed = await pollRequests();
    if (name === "requests" && !first && changed.length) {
      if (lacksPath() && document.activeElement?.id !== "search") show();
      else fillRequests();
    }
    if (name === "requests" && first && (await pollDetail(first))) show();
  }
  if (data.engines) {
    await pollEngines();
    if (name === "engine") fillEngines();
  }
}

async function again() {
  if (!state.isPaused && !document.hidden && !state.wantsKey) {
    const trouble = document.getElementById("trouble");
    try {
      await poll();
      trouble.hidden = true;
    } catch (error) {
      if (state.wantsKey) show();
      trouble.hidden = state.wantsKey;
      trouble.textContent = error instanceof TypeError ? "The server does not answer." : error.message;
    }
  }
  setTimeout(again, INTERVAL_MS);
}

async function begin() {
  try { await poll(); } catch (error) { if (!state.wantsKey) document.getElementById("trouble").textContent = error.message; }
  show();
}

// Slash searches, and arrows move between requests.
addEventListener("keydown", (event) => {
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
  const links = [...document.querySelectorAll("#list a")], at = links.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
  if (event.key === "/" && document.getElementById("search")) document.getElementById("search").focus();
  else if (event.key === "Escape" && route()[1]) location.hash = "requests";
  else if (step && links.length) links[Math.max(0, Math.min(links.length - 1, at + step))].focus();
  else return;
  event.preventDefault();
});
addEventListener("hashchange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
let shownWidth = innerWidth;
addEventListener("resize", () => { if (innerWidth !== shownWidth) { shownWidth = innerWidth; show(); } });

// Nobody asks the server for a picture.
document.head.append(element("link", { rel: "icon", href: "data:," }));
frame();
begin().then(again);
