// Bodies of the APIs for people: messages, parameters, tools and answers.

const asJson = (text) => { try { return JSON.parse(text); } catch { return undefined; } };
const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

// The events of a stream: the JSON of each `data:` line.
function eventsOf(body) {
  return body.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => asJson(line.slice(5).trim())).filter((event) => event !== undefined);
}

// The content of a message: a text, or parts of several kinds.
function partsOf(content) {
  if (content === null || content === undefined) return [];
  if (typeof content === "string") return [{ kind: "text", text: content }];
  if (!Array.isArray(content)) return [{ kind: "json", text: pretty(content) }];
  return content.flatMap((part) => {
    if (typeof part === "string") return [{ kind: "text", text: part }];
    if (typeof part.text === "string") return [{ kind: "text", text: part.text }];
    if (typeof part.thinking === "string") return [{ kind: "reasoning", text: part.thinking }];
    if (part.type === "tool_use") return [{ kind: "call", text: `${part.name}(${JSON.stringify(part.input)})` }];
    if (part.type === "tool_result") return [{ kind: "result", text: partsOf(part.content).map(({ text }) => text).join("\n") }];
    return [{ kind: part.type ?? "part", text: JSON.stringify(part).slice(0, 300) }];
  });
}

function messageOf(message) {
  const parts = partsOf(message.content);
  const reasoning = message.reasoning ?? message.reasoning_content;
  if (reasoning) parts.unshift({ kind: "reasoning", text: reasoning });
  for (const { function: called } of message.tool_calls ?? []) parts.push({ kind: "call", text: `${called?.name}(${called?.arguments ?? ""})` });
  if (message.type === "function_call") parts.push({ kind: "call", text: `${message.name}(${message.arguments})` });
  if (message.type === "function_call_output") parts.push({ kind: "result", text: pretty(message.output) });
  return { role: message.role ?? message.type ?? "", parts };
}

const NOT_PARAMETERS = ["messages", "input", "prompt", "tools", "system", "instructions", "functions"];

// The request.
function askedOf(text) {
  const body = asJson(text);
  if (!body || typeof body !== "object" || Array.isArray(body)) return { messages: [], parameters: {}, tools: [] };
  const messages = [];
  for (const key of ["system", "instructions"]) if (body[key]) messages.push({ role: "system", parts: partsOf(body[key]) });
  if (Array.isArray(body.messages)) messages.push(...body.messages.map(messageOf));
  for (const key of ["prompt", "input"]) {
    const value = body[key];
    if (typeof value === "string") messages.push({ role: key, parts: partsOf(value) });
    else if (Array.isArray(value)) {
      const isPlain = value.every((item) => typeof item !== "object");
      if (isPlain) messages.push({ role: key, parts: value.every((item) => typeof item === "number") ? [{ kind: "tokens", text: value.join(" ") }] : value.map((text) => ({ kind: "text", text: String(text) })) });
      else messages.push(...value.map(messageOf));
    }
  }
  const parameters = Object.fromEntries(Object.entries(body).filter(([key]) => !NOT_PARAMETERS.includes(key)));
  const tools = [...(body.tools ?? []), ...(body.functions ?? [])].map((tool) => {
    const own = tool.function ?? tool;
    return { name: own.name ?? own.type ?? "tool", description: own.description ?? "", schema: own.parameters ?? own.input_schema ?? {} };
  });
  return { messages, parameters, tools };
}

// The answer, complete or in events, in OpenAI's and Anthropic's formats.
function answerOf(body) {
  const answer = { text: "", reasoning: "", calls: [], finish: null, usage: null, error: null, events: 0, isKnown: false };
  const call = (index) => (answer.calls[index] ??= { name: "", arguments: "" });
  const known = () => { answer.isKnown = true; };
  const add = (choice) => {
    const part = choice.delta ?? choice.message ?? {};
    known();
    answer.text += (typeof part.content === "string" ? part.content : "") + (choice.text ?? "");
    answer.reasoning += part.reasoning ?? part.reasoning_content ?? "";
    (part.tool_calls ?? []).forEach((one, i) => {
      const own = call(one.index ?? i);
      own.name += one.function?.name ?? "";
      own.arguments += one.function?.arguments ?? "";
    });
    answer.finish = choice.finish_reason ?? answer.finish;
  };
  const block = (one, index) => {
    known();
    if (one.type === "text") answer.text += one.text ?? "";
    else if (one.type === "thinking") answer.reasoning += one.thinking ?? "";
    else if (one.type === "tool_use") Object.assign(call(index), { name: one.name, arguments: one.input && Object.keys(one.input).length ? JSON.stringify(one.input) : "" });
  };
  const output = (items) => items.forEach((item, index) => {
    known();
    if (item.type === "message") answer.text += partsOf(item.content).map(({ text }) => text).join("");
    else if (item.type === "reasoning") answer.reasoning += partsOf(item.content ?? item.summary).map(({ text }) => text).join("");
    else if (item.type === "function_call") Object.assign(call(index), { name: item.name, arguments: item.arguments });
  });
  const take = (event) => {
    if (event.error) answer.error = event.error.message ?? pretty(event.error);
    if (event.usage) answer.usage = { ...answer.usage, ...event.usage };
    if (Array.isArray(event.choices)) event.choices.forEach(add);
    else if (event.type === "message" && Array.isArray(event.content)) { event.content.forEach(block); answer.finish = event.stop_reason; }
    else if (event.object === "response" && Array.isArray(event.output)) { output(event.output); answer.finish = event.status; }
    else if (event.type === "content_block_start") block(event.content_block, event.index);
    else if (event.type === "content_block_delta") {
      answer.text += event.delta.text ?? "";
      answer.reasoning += event.delta.thinking ?? "";
      if (event.delta.partial_json) call(event.index).arguments += event.delta.partial_json;
    } else if (event.type === "message_start") answer.usage = event.message?.usage ?? answer.usage;
    else if (event.type === "message_delta") answer.finish = event.delta?.stop_reason ?? answer.finish;
    else if (event.type === "response.output_text.delta") { known(); answer.text += event.delta; }
    else if (event.type === "response.reasoning_text.delta") { known(); answer.reasoning += event.delta; }
    else if (event.type === "response.output_item.done" && event.item?.type === "function_call") Object.assign(call(event.output_index), { name: event.item.name, arguments: event.item.arguments });
    else if (event.type === "response.completed") { answer.usage = event.response?.usage ?? answer.usage; answer.finish = event.response?.status; }
    else if (event.message && event.object === "error") answer.error = event.message;
  };
  const whole = asJson(body);
  if (whole !== undefined) {
    if (whole && typeof whole === "object") take(whole);
  } else {
    const events = eventsOf(body);
    answer.events = events.length;
    events.forEach((event) => event && typeof event === "object" && take(event));
  }
  answer.calls = answer.calls.filter(Boolean);
  return answer;
}

// ---- commands ------------------------------------------------------------------

const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

// A request as a command. Keys are not on this page, so that the command reads its own.
function curlOf(method, url, body, { key = false, headers = {} } = {}) {
  const lines = ["curl" + (method === "GET" ? "" : ` -X ${method}`) + " " + quoted(url)];
  if (key) lines.push('-H "Authorization: Bearer $VLLM_API_KEY"');
  for (const [name, value] of Object.entries(headers)) lines.push("-H " + quoted(`${name}: ${value}`));
  if (body) lines.push("-d " + quoted(body));
  return lines.join(" \\\n  ");
}

const LEFT_TO_CURL = ["host", "user-agent", "accept", "accept-encoding", "content-length", "connection", "authorization", "x-api-key"];

function curlOfExchange(one) {
  const headers = Object.fromEntries(Object.entries(one.request_headers).filter(([name, value]) => !LEFT_TO_CURL.includes(name) && value !== "[redacted]"));
  const key = "authorization" in one.request_headers || "x-api-key" in one.request_headers;
  return curlOf(one.method, location.origin + one.path + (one.query ? "?" + one.query : ""), one.request_body, { key, headers });
}

// Lengths and times of a generation in milliseconds: the engine's, or what its capture has where the engine is elsewhere.
async function measuredOf(one) {
  const [request] = one.engine;
  if (request?.first_token_ms) {
    return { ...request, first_ms: request.first_token_ms - request.scheduled_ms, rest_ms: request.last_token_ms - request.first_token_ms };
  }
  const lines = (await ask("GET", `requests/${one.number}/capture`)).trim().split("\n").map(asJson);
  const line = lines.find(({ kind }) => kind === "request");
  if (!line) throw new Error("invalid answer: expected the tokens of its prompt in `usage`");
  const whole_ms = line.end_ns / 1e6, output_tokens = line.output_tokens;
  // The tokens of an answer in one part take equal times.
  const first_ms = line.ttft_ns === undefined ? whole_ms / Math.max(output_tokens, 1) : line.ttft_ns / 1e6;
  const rest_ms = line.gap_ns ? line.gap_ns.reduce((sum, gap) => sum + gap, 0) / 1e6 : whole_ms - first_ms;
  return { prompt_tokens: line.prompt_tokens, output_tokens, first_ms, rest_ms };
}

// A generation as a scenario: the same lengths, and its times.
async function scenarioOf(one) {
  const { prompt_tokens, output_tokens, first_ms, rest_ms } = await measuredOf(one);
  const prefill = Math.max(first_ms, 0.01);
  const decode = Math.max(rest_ms / Math.max(output_tokens - 1, 1), 0.01);
  return `//! ${one.method} ${one.path}, as it was asked once.
let model = fixed(#{ prefill: "${prefill.toFixed(3)}ms", decode: "${decode.toFixed(3)}ms" });
let load = burst(#{ name: "copied", count: 1, prompt_tokens: ${prompt_tokens}, output_tokens: ${Math.max(output_tokens, 1)} });
let result = run(#{ workloads: [load], cluster: cluster(#{ engines: pool(#{ latency: model }) }) });
expect(result, "ttft", "p99 < ${Math.ceil(prefill * 2)}ms");
`;
}
