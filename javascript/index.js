// A simulated vLLM server for a test, and cassettes of real servers: `vcr serve` on a free port.

import { spawn } from "node:child_process";
import { existsSync, mkdirSync, rmSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { createInterface } from "node:readline";

export const MODES = ["once", "none", "new_episodes", "all"];

const KEPT_REQUESTS = 10_000;
const STOP_TIMEOUT_MS = 60_000;
const CASSETTE_FIELDS = ["name", "folder", "mode", "upstream", "match"];
const FIELDS = ["options", "faults", "cassette", "binary"];

/** A running `vcr serve`. */
export class Server {
  #headers;
  #process;
  #errors;
  #ended;

  constructor(url, key, process, errors, ended) {
    this.url = url;
    this.#headers = key ? { authorization: `Bearer ${key}` } : {};
    this.#process = process;
    this.#errors = errors;
    this.#ended = ended;
  }

  get baseUrl() {
    return `${this.url}/v1`;
  }

  async requests() {
    const answer = await fetch(`${this.url}/_vcr/requests`, { headers: this.#headers });
    const { requests } = await answer.json();
    return requests.map((request) => ({
      method: request.method,
      path: request.path,
      query: request.query,
      headers: request.headers,
      body: request.body,
      answeredBy: request.answered_by,
      get json() {
        return JSON.parse(this.body);
      },
    }));
  }

  async forgetRequests() {
    await fetch(`${this.url}/_vcr/requests`, { method: "DELETE", headers: this.#headers });
  }

  async stop() {
    this.#process.kill("SIGTERM");
    // One that does not end by itself has failed.
    const overdue = setTimeout(() => this.#process.kill("SIGKILL"), STOP_TIMEOUT_MS);
    const code = await this.#ended;
    clearTimeout(overdue);
    if (code !== 0) {
      throw new Error(`\`vcr serve\` ended with exit code ${code}:\n${this.#errors()}`);
    }
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.stop();
  }
}

/** Starts a server on a free port of this machine. */
export async function startServer(settings = {}) {
  onlyKnown(settings, FIELDS, "startServer");
  const { options = [], faults = [], cassette, binary = process.env.VCR_BINARY ?? "vcr" } = settings;
  const words = ["serve", "--port", "0", "--quiet", "--keep-requests", String(KEPT_REQUESTS), ...[options].flat().map(String)];
  words.push(...[faults].flat().flatMap((fault) => ["--client-fault", fault]));
  words.push(...(cassette ? cassetteOptions(cassette) : []));
  const child = spawn(binary, words, { stdio: ["ignore", "pipe", "pipe"] });
  let errors = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (errors += text));
  const failed = new Promise((_, reject) => {
    child.once("error", (error) => {
      const hint = "set VCR_BINARY, or put vcr on the PATH";
      reject(new Error(`cannot start \`${binary}\`: ${error.message}: ${hint}`));
    });
  });
  // Nobody may wait for it.
  failed.catch(() => {});
  const ended = new Promise((resolve) => child.once("close", (code) => resolve(code)));
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  ended.then(() => process.off("exit", kill));
  // `serving sim on http://127.0.0.1:PORT` comes when the engines are ready.
  const first = new Promise((resolve) => {
    const lines = createInterface({ input: child.stdout });
    lines.once("line", resolve);
    lines.once("close", () => resolve(undefined));
  });
  const line = await Promise.race([first, failed]);
  if (!line?.includes(" on http")) {
    await ended;
    throw new Error(`\`vcr ${words.join(" ")}\` does not serve:\n${errors}`);
  }
  const key = words.includes("--api-key") ? words[words.indexOf("--api-key") + 1] : process.env.VCR_API_KEY;
  return new Server(line.trim().split(" ").at(-1), key, child, () => errors, ended);
}

/** Starts a server, calls `body` with it, and stops it. */
export async function withServer(settings, body) {
  const server = await startServer(settings);
  let result;
  try {
    result = await body(server);
  } catch (error) {
    // The test's result matters more than the server's end.
    await server.stop().catch(() => {});
    throw error;
  }
  await server.stop();
  return result;
}

/** The options of `vcr serve` for a cassette. */
export function cassetteOptions(cassette) {
  onlyKnown(cassette, CASSETTE_FIELDS, "a cassette");
  const { name, folder = "cassettes", mode = "once", match } = cassette;
  if (!MODES.includes(mode)) {
    throw new Error(`invalid mode "${mode}" of a cassette: expected ${MODES.join(", ")}`);
  }
  if (!name) {
    throw new Error("a cassette needs a name");
  }
  const path = resolve(join(folder, `${name}.jsonl`));
  const rules = match ? ["--match", match] : [];
  const exists = existsSync(path);
  if (mode === "none" || (mode === "once" && exists)) {
    if (!exists) {
      throw new Error(`no cassette ${path}: record it with mode "once"`);
    }
    return ["--playback", path, ...rules];
  }
  const upstream = cassette.upstream ?? process.env.VCR_UPSTREAM;
  if (!upstream) {
    throw new Error(`cannot record ${path}: expected upstream: "http://...", or VCR_UPSTREAM`);
  }
  mkdirSync(dirname(path), { recursive: true });
  if (mode === "all") {
    rmSync(path, { force: true });
  }
  return ["--playback", path, "--playback-unmatched", "record", "--upstream", upstream, ...rules];
}

function onlyKnown(given, known, what) {
  const unknown = Object.keys(given).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new Error(`unknown setting \`${unknown}\` of ${what}: expected ${known.join(", ")}`);
  }
}
