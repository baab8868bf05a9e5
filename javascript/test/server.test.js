import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import { cassetteOptions, startServer, withServer } from "../index.js";

const folder = mkdtempSync(join(tmpdir(), "vcr-test-"));
after(() => rmSync(folder, { recursive: true }));

async function chat(server, text, headers = {}) {
  const body = { model: "sim", messages: [{ role: "user", content: text }], max_tokens: 6 };
  const answer = await fetch(`${server.baseUrl}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
  return { status: answer.status, json: await answer.json() };
}

const textOf = (answer) => answer.json.choices[0].message.content;

test("a server answers and remembers what it was asked", async () => {
  await withServer({ options: ["--seed", 1] }, async (server) => {
    const answer = await chat(server, "Hello", { authorization: "Bearer secret" });
    assert.equal(answer.status, 200);
    assert.ok(textOf(answer).length > 0);
    const [request, ...others] = await server.requests();
    assert.equal(others.length, 0);
    assert.equal(request.json.messages[0].content, "Hello");
    assert.deepEqual([request.path, request.answeredBy], ["/v1/chat/completions", "server"]);
    assert.equal(request.headers.authorization, "[redacted]");
    await server.forgetRequests();
    assert.deepEqual(await server.requests(), []);
  });
});

test("a fault hits the call that it names", async () => {
  await withServer({ options: ["--api-key", "key"], faults: "status:code=503,call=2" }, async (server) => {
    const codes = [];
    for (const text of ["a", "b", "c"]) {
      codes.push((await chat(server, text, { authorization: "Bearer key" })).status);
    }
    assert.deepEqual(codes, [200, 503, 200]);
    const seen = await server.requests();
    assert.deepEqual(seen.map((request) => request.json.messages[0].content), ["a", "b", "c"]);
    assert.deepEqual(seen.map((request) => request.answeredBy), ["server", "fault", "server"]);
  });
});

test("cassettes have the modes of VCR.py", async () => {
  const path = join(folder, "talk.jsonl");
  const real = await startServer({ options: ["--seed", 7] });
  const cassette = (mode) => ({ name: "talk", folder, mode, upstream: real.url });
  const play = (mode, texts) =>
    withServer({ cassette: cassette(mode) }, async (server) => {
      const answers = [];
      for (const text of texts) {
        answers.push(await chat(server, text));
      }
      return { answers, by: (await server.requests()).map((request) => request.answeredBy) };
    });
  const recorded = await play("once", ["one"]);
  assert.deepEqual(recorded.by, ["upstream"]);
  const again = await play("once", ["one", "two"]);
  assert.deepEqual(again.by, ["tape", "nobody"]);
  assert.deepEqual(again.answers[0], recorded.answers[0]);
  assert.equal(again.answers[1].status, 404);
  assert.match(again.answers[1].json.error.message, /content/);
  assert.deepEqual((await play("new_episodes", ["one", "two"])).by, ["tape", "upstream"]);
  assert.deepEqual((await play("none", ["two"])).by, ["tape"]);
  assert.deepEqual((await play("all", ["two"])).by, ["upstream"]);
  assert.ok(!readFileSync(path, "utf8").includes('"one"'), "everything anew");
  await real.stop();
  const offline = await play("none", ["two"]);
  assert.deepEqual(offline.by, ["tape"], "without the server");
});

test("what cannot be used is said", async () => {
  assert.throws(() => cassetteOptions({ name: "a", mode: "twice" }), /invalid mode "twice".*expected once, none/);
  assert.throws(() => cassetteOptions({ name: "missing", folder, mode: "none" }), /no cassette .*missing.jsonl/);
  assert.throws(() => cassetteOptions({ name: "b", folder, moode: "all" }), /unknown setting `moode`/);
  delete process.env.VCR_UPSTREAM;
  assert.throws(() => cassetteOptions({ name: "b", folder }), /VCR_UPSTREAM/);
  assert.ok(!existsSync(join(folder, "b.jsonl")));
  await assert.rejects(startServer({ options: ["--no-such-option"] }), /does not serve:[^]*no-such-option/);
  await assert.rejects(startServer({ binary: join(folder, "nothing") }), /cannot start .*VCR_BINARY/);
  const match = join(folder, "rules.yaml");
  writeFileSync(match, "headers: 1\n");
  const cassette = { name: "new", folder, upstream: "http://127.0.0.1:1", match };
  await assert.rejects(startServer({ cassette }), /--match .*rules.yaml: headers: invalid type/);
  await assert.rejects(startServer({ seed: 1 }), /unknown setting `seed`/);
});

test("a failing test stops its server", async () => {
  let url;
  const failing = withServer({}, async (server) => {
    url = server.url;
    throw new Error("the test failed");
  });
  await assert.rejects(failing, /the test failed/);
  await assert.rejects(fetch(`${url}/health`));
});
