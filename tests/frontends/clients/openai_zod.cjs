// OpenAI's SDK for JavaScript with schemas of zod: what it parses is printed as JSON. Usage: openai_zod.cjs URL
//
// Its helpers take records and tuples of zod 3 alone; those of zod 4 are sent as zod itself writes them.
const OpenAI = require("openai").default;
const { zodFunction, zodResponseFormat, zodTextFormat } = require("openai/helpers/zod");
const { z } = require("zod");
const z3 = require("zod/v3").z;

const common = (z, weight) => ({
  id: z.number().int(),
  lines: z
    .array(z.object({ sku: z.string().regex(/^[A-Z]{3}-\d{4}$/), count: z.number().int().min(1).max(9) }))
    .min(1),
  mail: z.string().email().nullable(),
  at: z.string().datetime(),
  kind: z.discriminatedUnion("type", [
    z.object({ type: z.literal("gift"), note: z.string().max(20) }),
    z.object({ type: z.literal("plain"), weight }),
  ]),
});
const open = (z) => ({
  scores: z.record(z.string(), z.number().int()),
  place: z.tuple([z.string(), z.number(), z.number().int()]),
});

const Older = z3.object({ ...common(z3, z3.number().multipleOf(0.5)), ...open(z3) });
const Closed = z.object(common(z, z.number().multipleOf(0.5)));
// No backend of vLLM takes multiples beside the names of records that zod 4 writes.
const Order = z.object({ ...common(z, z.number()), ...open(z), stock: z.record(z.enum(["small", "large"]), z.int()) });
const Search = z.object({ query: z.string(), limit: z.int().positive(), days: z.array(z.iso.date()).max(3) });

const messages = [{ role: "user", content: "What was ordered?" }];

async function parsed(client, schema, format) {
  const values = [];
  for (let seed = 0; seed < 8; seed++) {
    const answer = await client.chat.completions.parse({ model: "sim", messages, seed, response_format: format });
    const { content } = answer.choices[0].message;
    values.push(schema.parse(JSON.parse(content)));
  }
  const stream = client.chat.completions.stream({ model: "sim", messages, seed: 1, response_format: format });
  const { content } = (await stream.finalChatCompletion()).choices[0].message;
  values.push(schema.parse(JSON.parse(content)));
  return values;
}

async function calls(client) {
  const tools = [zodFunction({ name: "search", parameters: Search })];
  const values = [];
  for (const tool_choice of ["required", "auto"]) {
    for (let seed = 0; seed < 6; seed++) {
      const answer = await client.chat.completions.parse({ model: "sim", messages, seed, tools, tool_choice });
      const found = answer.choices[0].message.tool_calls ?? [];
      values.push(...found.map((call) => Search.parse(call.function.parsed_arguments)));
    }
  }
  return values;
}

async function main() {
  const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
  const own = { type: "json_schema", json_schema: { name: "order", schema: z.toJSONSchema(Order) } };
  const response = await client.responses.parse({
    model: "sim", input: "What was ordered?", text: { format: zodTextFormat(Closed, "order") },
  });
  console.log(
    JSON.stringify({
      older: await parsed(client, Older, zodResponseFormat(Older, "order")),
      closed: await parsed(client, Closed, zodResponseFormat(Closed, "order")),
      own: await parsed(client, Order, own),
      calls: await calls(client),
      response: Closed.parse(response.output_parsed),
    }),
  );
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
