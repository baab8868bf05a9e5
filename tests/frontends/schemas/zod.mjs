// Schemas that zod emits: zod 4's own `z.toJSONSchema`, and `zod-to-json-schema` for zod 3, for each of their targets.
import { z } from "zod";
import * as z3 from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";

// Each is made with the `z` of a version; what a version lacks is left out.
const tree = (z) => {
  const node = z.object({ name: z.string(), children: z.lazy(() => z.array(node)) });
  return node;
};
const made = {
  string: (z) => z.string(),
  "string lengths": (z) => z.string().min(2).max(20),
  "string pattern": (z) => z.string().regex(/^[a-z]{2}-\d{3}$/),
  "string pattern and length": (z) => z.string().regex(/^[a-z]+$/).max(5),
  "string look-ahead": (z) => z.string().regex(/^(?=.*[A-Z])(?=.*\d).{8,}$/),
  "string starts": (z) => z.string().startsWith("sk-"),
  "string ends": (z) => z.string().endsWith(".md"),
  "string includes": (z) => z.string().includes("@"),
  email: (z) => z.string().email(),
  url: (z) => z.string().url(),
  uuid: (z) => z.string().uuid(),
  cuid: (z) => z.string().cuid(),
  cuid2: (z) => z.string().cuid2(),
  ulid: (z) => z.string().ulid(),
  nanoid: (z) => z.string().nanoid(),
  emoji: (z) => z.string().emoji(),
  datetime: (z) => z.string().datetime(),
  "datetime offset": (z) => z.string().datetime({ offset: true }),
  date: (z) => z.string().date(),
  time: (z) => z.string().time(),
  duration: (z) => z.string().duration(),
  base64: (z) => z.string().base64(),
  ip: (z) => z.string().ip(),
  "ipv4 of 4": (z) => z.ipv4(),
  "ipv6 of 4": (z) => z.ipv6(),
  cidr: (z) => z.cidrv4(),
  jwt: (z) => z.jwt(),
  e164: (z) => z.e164(),
  hostname: (z) => z.hostname(),
  number: (z) => z.number(),
  "number bounds": (z) => z.number().min(0).max(1),
  "number positive": (z) => z.number().positive(),
  "number negative": (z) => z.number().negative(),
  "number multiple": (z) => z.number().multipleOf(0.5),
  int: (z) => z.number().int(),
  "int bounds": (z) => z.number().int().min(1).max(100),
  "int positive": (z) => z.number().int().positive(),
  "int multiple": (z) => z.number().int().multipleOf(5),
  int32: (z) => z.int32(),
  uint32: (z) => z.uint32(),
  float64: (z) => z.float64(),
  boolean: (z) => z.boolean(),
  null: (z) => z.null(),
  any: (z) => z.any(),
  unknown: (z) => z.unknown(),
  never: (z) => z.never(),
  literal: (z) => z.literal("yes"),
  "literal number": (z) => z.literal(7),
  literals: (z) => z.literal(["a", 1, null]),
  enum: (z) => z.enum(["red", "green", "blue"]),
  "native enum": (z) => z.nativeEnum({ A: "a", B: 2 }),
  array: (z) => z.array(z.string()),
  "array lengths": (z) => z.array(z.number()).min(1).max(3),
  "array non-empty": (z) => z.array(z.string()).nonempty(),
  set: (z) => z.set(z.string()),
  tuple: (z) => z.tuple([z.string(), z.number().int()]),
  "tuple rest": (z) => z.tuple([z.string()]).rest(z.boolean()),
  "tuple empty": (z) => z.tuple([]),
  record: (z) => z.record(z.string(), z.number()),
  "record of enum": (z) => z.record(z.enum(["a", "b"]), z.boolean()),
  "record of pattern": (z) => z.record(z.string().regex(/^x-[a-z]+$/), z.string()),
  "partial record": (z) => z.partialRecord(z.enum(["a", "b"]), z.string()),
  map: (z) => z.map(z.string(), z.number()),
  nullable: (z) => z.string().nullable(),
  "nullable int": (z) => z.number().int().nullable(),
  optional: (z) => z.object({ a: z.string().optional(), b: z.number() }),
  default: (z) => z.object({ a: z.string().default("x"), b: z.number().default(3) }),
  catch: (z) => z.object({ a: z.string().catch("x") }),
  describe: (z) => z.object({ a: z.string().describe("What it is"), b: z.enum(["x", "y"]).describe("Which") }),
  strict: (z) => z.object({ a: z.string() }).strict(),
  passthrough: (z) => z.object({ a: z.string() }).passthrough(),
  catchall: (z) => z.object({ a: z.string() }).catchall(z.number()),
  partial: (z) => z.object({ a: z.string(), b: z.number() }).partial(),
  union: (z) => z.union([z.string(), z.number(), z.boolean()]),
  "union of objects": (z) => z.union([z.object({ a: z.string() }), z.object({ b: z.number() })]),
  discriminated: (z) =>
    z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("circle"), radius: z.number() }),
      z.object({ kind: z.literal("square"), side: z.number().int() }),
    ]),
  intersection: (z) => z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
  "xor of 4": (z) => z.xor([z.object({ a: z.string() }), z.object({ b: z.number() })]),
  readonly: (z) => z.object({ a: z.string() }).readonly(),
  branded: (z) => z.string().brand("Id"),
  json: (z) => z.json(),
  "template literal": (z) => z.templateLiteral(["id-", z.number()]),
  stringbool: (z) => z.stringbool(),
  tree,
  "shared parts": (z) => {
    const address = z.object({ street: z.string(), zip: z.string().regex(/^\d{5}$/) });
    return z.object({ home: address, work: address.optional() });
  },
  order: (z) =>
    z.object({
      id: z.string().uuid(),
      lines: z.array(z.object({ sku: z.string().min(1), count: z.number().int().positive(), tags: z.set(z.string()) })),
      status: z.enum(["open", "paid", "sent"]),
      note: z.string().nullable().optional(),
      at: z.string().datetime(),
      meta: z.record(z.string(), z.unknown()),
    }),
  "search arguments": (z) =>
    z.object({
      query: z.string().describe("What to look for"),
      limit: z.number().int().min(1).max(50).default(10),
      filters: z.object({ before: z.string().date().optional(), kinds: z.array(z.enum(["a", "b"])).optional() }).optional(),
    }),
};

const emitters = {
  "zod4 2020-12": (make) => z.toJSONSchema(make(z)),
  "zod4 2020-12 input": (make) => z.toJSONSchema(make(z), { io: "input" }),
  "zod4 draft-7": (make) => z.toJSONSchema(make(z), { target: "draft-7" }),
  "zod4 draft-4": (make) => z.toJSONSchema(make(z), { target: "draft-4" }),
  "zod4 openapi": (make) => z.toJSONSchema(make(z), { target: "openapi-3.0" }),
  "zod4 any": (make) => z.toJSONSchema(make(z), { unrepresentable: "any", reused: "ref" }),
  "zod3 draft-7": (make) => zodToJsonSchema(make(z3.z)),
  "zod3 2019-09": (make) => zodToJsonSchema(make(z3.z), { target: "jsonSchema2019-09" }),
  "zod3 openapi": (make) => zodToJsonSchema(make(z3.z), { target: "openApi3" }),
  "zod3 openai": (make) => zodToJsonSchema(make(z3.z), { target: "openAi" }),
};
for (const [emitter, emit] of Object.entries(emitters)) {
  for (const [name, make] of Object.entries(made)) {
    let schema;
    try {
      schema = emit(make);
    } catch {
      continue;
    }
    console.log(JSON.stringify({ name: `${emitter}: ${name}`, schema }));
  }
}
