// Controls: changes by the control plane and the server, each with its equivalent command.

// A control is { id, title, help, method, path, fields: [{ name, label, value, kind, options, choices }], body(values), query(values), confirm }.
const engineField = () => ({ name: "engine", label: "engine", choices: () => [["", "all"], ...engines.now.map(({ rank }) => [String(rank), String(rank)])], hidden: () => engines.now.length < 2 });
const ofEngine = (given, more = {}) => ({ ...more, ...(given.engine ? { engine: Number(given.engine) } : {}) });

const ENGINE_FAULTS = ["error:rate=0.1", "stall:for=2s", "late:by=20ms", "drop", "crash:restart=5s", "slow-socket:bandwidth=1MB/s", "utility-failure"];
const CLIENT_FAULTS = ["status:code=503", "rate_limit", "server_error", "stall:for=2s", "slow:every=50ms", "truncate:after=5", "malformed:after=5", "reset:after=5", "error-event:after=5", "no-done"];

// A fault that happens once is one with a limit.
const limited = ({ fault, once }) => (once ? fault + (fault.includes(":") ? "," : ":") + "count=1" : fault);

const CONTROLS = [
  { id: "client-faults", needs: () => data.requests && !isEngineOnly, title: "Faults that clients meet", list: true, examples: CLIENT_FAULTS, once: true, path: "control/client-faults" },
  { id: "faults", needs: () => data.engines, title: "Faults of engines", list: true, examples: ENGINE_FAULTS, once: true, path: "control/faults", engine: true },
  { id: "pause", needs: () => data.engines, title: "Pause", help: "Requests stay and nothing is scheduled.", method: "POST", path: "control/pause", fields: [engineField()], body: ofEngine, act: "pause" },
  { id: "resume", needs: () => data.engines, title: "Resume", method: "POST", path: "control/resume", fields: [engineField()], body: ofEngine, act: "resume" },
  { id: "latency", needs: () => data.engines, title: "Latency model", help: "In the syntax of --latency.", method: "POST", path: "control/latency",
    fields: [{ name: "model", label: "model", value: 'fixed(#{ step: "10ms" })', wide: true }, engineField()], body: (given) => ofEngine(given, { model: given.model }), act: "use it" },
  { id: "time-scale", needs: () => data.engines, title: "Time scale", help: "Divides all durations.", method: "POST", path: "control/time-scale",
    fields: [{ name: "factor", label: "factor", value: "2", kind: "number" }, engineField()], body: (given) => ofEngine(given, { factor: Number(given.factor) }), act: "set it" },
  { id: "reset-prefix-cache", needs: () => data.engines, title: "Prefix cache", help: "Forgets all cached blocks.", method: "POST", path: "control/reset-prefix-cache", fields: [engineField()], body: ofEngine, act: "drop it" },
  { id: "sleep", needs: () => data.server, title: "Sleep", method: "POST", path: "server/sleep", fields: [{ name: "level", label: "level", choices: () => ["0", "1", "2"].map((level) => [level, level]), value: "1" }], query: ({ level }) => `?level=${level}`, act: "sleep" },
  { id: "wake-up", needs: () => data.server, title: "Wake up", method: "POST", path: "server/wake_up", fields: [], act: "wake up" },
  { id: "load-adapter", needs: () => data.server, title: "Load an adapter", method: "POST", path: "server/v1/load_lora_adapter",
    fields: [{ name: "lora_name", label: "name", value: "sql" }, { name: "lora_path", label: "path", value: "/adapters/sql" }], body: (given) => given, act: "load" },
  { id: "unload-adapter", needs: () => data.server, title: "Unload an adapter", method: "POST", path: "server/v1/unload_lora_adapter", fields: [{ name: "lora_name", label: "name", value: "sql" }], body: (given) => given, act: "unload" },
  { id: "models", needs: () => data.server, title: "Models and adapters", method: "GET", path: "server/v1/models", fields: [], act: "list" },
  { id: "fake-metrics", needs: () => data.server, title: "Made-up metrics", help: "Served at /metrics instead of the real ones.", method: "POST", path: "control/fake-metrics",
    fields: [{ name: "values", label: "JSON", value: '{"running-requests": 10}', wide: true }], text: ({ values }) => values, act: "serve them" },
  { id: "real-metrics", needs: () => data.server, title: "Real metrics", method: "DELETE", path: "control/fake-metrics", fields: [], act: "serve them again" },
  { id: "shutdown", needs: () => data.engines, title: "Shut down", help: "Running requests end as after a signal, then the process ends.", method: "POST", path: "control/shutdown", fields: [], act: "shut down", confirm: "Shut this process down?" },
];

const urlOf = (path) => location.origin + "/_vcr/api/" + path;

// Shows an answer, or its error, at the control.
async function tell(into, act) {
  into.className = "answer note";
  try {
    const answer = await act();
    into.textContent = answer === null ? "done" : typeof answer === "string" ? answer : JSON.stringify(answer);
    into.classList.add("passed");
  } catch (error) {
    into.textContent = error.message;
    into.classList.add("failed");
  }
}

function fieldOf(field, changed) {
  const made = field.choices ? element("select", { name: field.name }, ...field.choices().map(([value, text]) => element("option", { value }, text)))
    : element("input", { name: field.name, type: field.kind === "number" ? "number" : "text", spellcheck: "false", ...(field.kind === "number" ? { step: "any" } : {}), ...(field.list ? { list: field.list } : {}) });
  if (field.value !== undefined) made.value = field.value;
  made.addEventListener("input", changed);
  return element("label", { class: field.wide ? "wide-field" : "", ...(field.hidden?.() ? { hidden: "" } : {}) }, field.label + " ", made);
}

// A form with the command that does the same.
function form(one) {
  const answer = element("p", { class: "answer note", role: "status" }), command = element("code", {});
  const made = element("form", { id: "control-" + one.id, class: "control" });
  const given = () => Object.fromEntries(new FormData(made).entries());
  const text = () => (one.text ? one.text(given()) : one.body ? JSON.stringify(one.body(given())) : undefined);
  const path = () => one.path + (one.query ? one.query(given()) : "");
  const changed = () => { command.textContent = curlOf(one.method, urlOf(path()), text(), { key: data.needs_key, headers: text() ? { "Content-Type": "application/json" } : {} }); };
  made.append(element("h3", {}, one.title), one.help ? note(one.help) : "", element("div", { class: "fields" }, ...one.fields.map((field) => fieldOf(field, changed)), element("button", { type: "submit" }, one.act)), answer,
    element("details", {}, element("summary", {}, "curl"), element("pre", { tabindex: "0" }, command)));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    if (one.confirm && !window.confirm(one.confirm)) return;
    tell(answer, async () => {
      const body = text();
      const parsed = body === undefined ? undefined : JSON.parse(body);
      const said = await ask(one.method, path(), parsed);
      await one.done?.();
      return said;
    });
  });
  changed();
  return made;
}

// Faults in force, and a form for one more.
function faultControl(one) {
  const active = element("ul", { class: "faults", id: one.id + "-active" });
  const fill = async () => {
    const told = await ask("GET", one.path).catch(() => ({ faults: [] }));
    const all = one.engine ? told.engines.flatMap(({ engine, faults }) => faults.map((fault) => ({ engine, fault }))) : told.faults.map((fault) => ({ fault }));
    active.replaceChildren(...all.map(({ engine, fault }) => {
      const body = engine === undefined ? { fault } : { fault, engine };
      return element("li", {}, element("code", {}, (engine === undefined ? "" : `engine ${engine}: `) + fault), button("remove", async () => { await ask("DELETE", one.path, body).catch(() => {}); await fillSoon(); }, { title: curlOf("DELETE", urlOf(one.path), JSON.stringify(body), { key: data.needs_key }) }));
    }), all.length ? "" : element("li", { class: "note" }, "none"));
  };
  // Engines take a command between two steps.
  const fillSoon = async () => { await fill(); setTimeout(fill, 200); };
  fill();
  const examples = element("datalist", { id: one.id + "-examples" }, ...one.examples.map((value) => element("option", { value })));
  const add = form({
    ...one, title: "Add one", method: "POST", act: "add", done: fillSoon,
    fields: [{ name: "fault", label: "fault", value: one.examples[0], wide: true, list: one.id + "-examples" }, { name: "once", label: "how often", choices: () => [["", "always"], ["1", "once"]] }, ...(one.engine ? [engineField()] : [])],
    body: (given) => (one.engine ? ofEngine(given, { fault: limited(given) }) : { fault: limited(given) }),
  });
  const clear = form({ ...one, id: one.id + "-clear", title: "Remove all", method: "DELETE", act: "remove all", done: fillSoon, fields: one.engine ? [engineField()] : [], body: one.engine ? ofEngine : undefined });
  return element("section", { class: "whole" }, element("h2", {}, one.title), active, examples, element("div", { class: "pair" }, add, clear));
}

function showControls(into) {
  const all = CONTROLS.filter(({ needs }) => needs());
  into.append(note("Each control shows its equivalent command. Engines run commands between two steps."),
    ...all.filter(({ list }) => list).map(faultControl), element("h2", {}, "Engines and server"), element("div", { class: "pair" }, ...all.filter(({ list }) => !list).map(form)));
}
