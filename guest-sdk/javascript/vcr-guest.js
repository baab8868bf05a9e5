// The SDK for vcr guests in JavaScript.
//
// A guest extends one of the classes here and exports its interface under the interface's name:
//
//     import { LatencyModel, guest, number } from './vendor/vcr-guest.js';
//
//     export class PerToken extends LatencyModel {
//       constructor(config, seed) {
//         super();
//         this.nsPerToken = number(config, 'ns_per_token');
//       }
//
//       price(step) {
//         return this.nsPerToken * (step.prefillTokens + step.decodeTokens);
//       }
//     }
//
//     export const latency = guest(PerToken);
//
// | world              | class             | export       |
// |--------------------|-------------------|--------------|
// | `latency-model`    | `LatencyModel`    | `latency`    |
// | `scheduler-policy` | `SchedulerPolicy` | `scheduling` |
// | `router`           | `Router`          | `routing`    |
// | `autoscaler`       | `Autoscaler`      | `scaling`    |
// | `failure-injector` | `FailureInjector` | `faults`     |
// | `token-source`     | `TokenSource`     | `tokens`     |
//
// Records are those of `wit/`, with names such as `promptTokens`. Quantities are numbers, columns
// are lists of rows; ids, seeds and hashes of 64 bits are `bigint`.
//
// Throw a `GuestError` for the user to read: name the field, its value and what to write instead.
// Any other exception also ends the guest, and is shown with its message and the stack of the
// guest's own code.
//
// Guests have no clock, no files and no randomness but the seed: use `new Random(seed)`.

/// <reference path="./types/vcr-guest-latency.d.ts" />
/// <reference path="./types/vcr-guest-scheduling.d.ts" />
/// <reference path="./types/vcr-guest-routing.d.ts" />
/// <reference path="./types/vcr-guest-scaling.d.ts" />
/// <reference path="./types/vcr-guest-faults.d.ts" />
/// <reference path="./types/vcr-guest-tokens.d.ts" />

import { plain } from './plain.js';
import { blank } from './wit.js';

/**
 * @template T
 * @typedef {import('./plain.js').Plain<T>} Plain
 */

/** @typedef {Record<string, any>} Config the user's config, a JSON object */

/** What only a component has, put there by `vcr guest build`. */
const host = () => /** @type {any} */ (globalThis)[Symbol.for('vcr-guest')];

/** An error that is shown to the user as it stands. */
export class GuestError extends Error {
  name = 'GuestError';
}

/** A value as an error shows it. */
function shown(/** @type {unknown} */ value) {
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'function') return 'a function';
  return JSON.stringify(value) ?? String(value);
}

/**
 * The finite number of a config's field.
 *
 * @param {Config} config
 * @param {string} field
 * @param {number} [fallback] its value where the config has none
 * @returns {number}
 */
export function number(config, field, fallback) {
  const value = config[field] ?? fallback;
  if (value === undefined) throw new GuestError(`\`${field}\` has no value; set it to a number`);
  if (typeof value !== 'number' || !Number.isFinite(value)) {
    throw new GuestError(`invalid \`${field}\`: expected a number, got ${shown(value)}`);
  }
  return value;
}

/**
 * Refuses a config with other fields than these.
 *
 * @param {Config} config
 * @param {string[]} fields
 */
export function knownFields(config, fields) {
  for (const field of Object.keys(config)) {
    if (!fields.includes(field)) {
      throw new GuestError(`unknown field \`${field}\`: expected ${fields.map((name) => `\`${name}\``).join(', ')}`);
    }
  }
}

/**
 * A stream of random numbers, the same everywhere: PCG-XSH-RR 64/32, as `Rng` of the SDK for Rust.
 * Streams of one seed are independent.
 */
export class Random {
  #state = 0n;
  #increment;

  /**
   * @param {bigint | number} seed
   * @param {bigint | number} [stream]
   */
  constructor(seed, stream = 0) {
    this.#increment = BigInt.asUintN(64, (BigInt(stream) << 1n) | 1n);
    this.nextU32();
    this.#state = BigInt.asUintN(64, this.#state + BigInt(seed));
    this.nextU32();
  }

  /** 32 uniform bits. */
  nextU32() {
    const old = this.#state;
    this.#state = BigInt.asUintN(64, old * 6364136223846793005n + this.#increment);
    const shifted = Number(BigInt.asUintN(32, ((old >> 18n) ^ old) >> 27n));
    const by = Number(old >> 59n);
    return ((shifted >>> by) | (shifted << (32 - by))) >>> 0;
  }

  /** A uniform number in [0, 1), a multiple of 2^-53. */
  uniform() {
    const high = this.nextU32();
    return (high * 2 ** 21 + (this.nextU32() >>> 11)) * 2 ** -53;
  }

  /** A uniform number in [`low`, `high`). */
  uniformIn(/** @type {number} */ low, /** @type {number} */ high) {
    return low + (high - low) * this.uniform();
  }
}

/** Telemetry of the guest. Outside of a component it goes nowhere. */
export const observe = {
  /** Adds `by` to a counter. */
  count: (/** @type {string} */ name, /** @type {number} */ by) => host()?.observe?.count(name, BigInt(by)),
  /** Sets a gauge from a time on. */
  gauge: (/** @type {string} */ name, /** @type {number} */ atNs, /** @type {number} */ value) =>
    host()?.observe?.gauge(name, BigInt(atNs), value),
  /** Marks an instant with a text. */
  annotate: (/** @type {number} */ atNs, /** @type {string} */ text) => host()?.observe?.annotate(BigInt(atNs), text),
  /** Writes a line to the log of guests. */
  log: (/** @type {string} */ text) => host()?.observe?.log(text),
};

/** The whole number of an answer. */
function u32(/** @type {unknown} */ value, /** @type {string} */ what) {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > 0xffffffff) {
    throw new TypeError(`invalid ${what}: expected a whole number from 0 to 4294967295, got ${shown(value)}`);
  }
  return value;
}

/** A whole number of 64 bits of an answer. */
function wide(/** @type {unknown} */ value, /** @type {string} */ what, least = -(2 ** 63)) {
  if (typeof value === 'bigint') return value;
  if (typeof value !== 'number' || !Number.isInteger(value) || value < least || value >= 2 ** 63) {
    throw new TypeError(`invalid ${what}: expected a whole number of 64 bits, got ${shown(value)}`);
  }
  return BigInt(value);
}

// The worlds.

/** @typedef {Plain<import('vcr:guest/latency@0.1.0').StepShape> & { startNs: number }} StepShape */

/** @typedef {Plain<import('vcr:guest/latency@0.1.0').EngineInfo>} EngineInfo */

/** @typedef {{ prefillAttentionPairs: number, decodeContextTokens: number }} KvGroupShape */

/**
 * The parts of the step that `price` is asked about which differ between the engine's `kvGroups`, in their order;
 * none for an engine without groups, and outside of a component.
 *
 * @returns {KvGroupShape[]}
 */
export const kvGroupShapes = () => plain(host()?.groups?.shapes() ?? []);

/** Says how long the steps of one engine take. */
export class LatencyModel {
  /**
   * Makes the model of one engine.
   *
   * @param {Config} [config]
   * @param {bigint} [seed]
   */
  constructor(config, seed) {}

  /**
   * The engine whose steps are priced. Called once, before all steps.
   *
   * @param {EngineInfo} engine
   */
  engine(engine) {}

  /**
   * The duration of a step in nanoseconds: finite, from 0 to 1e18.
   *
   * @param {StepShape} step
   * @returns {number}
   */
  price(step) {
    throw new Error('`price` is missing');
  }
}

function latency(/** @type {(config: string, seed: bigint) => LatencyModel} */ make) {
  /** @type {LatencyModel} */
  let model;
  const wit = host()?.wit;
  const none = wit ? blank(wit, 'latency', 'step-shape') : {};

  const price = (/** @type {any} */ step) => {
    const durationNs = model.price(step);
    if (typeof durationNs !== 'number') {
      throw new TypeError(`invalid price: expected a number of nanoseconds, got ${shown(durationNs)}`);
    }
    return durationNs;
  };

  return {
    configure(/** @type {string} */ config, /** @type {bigint} */ seed, /** @type {any} */ engine) {
      model = make(config, seed);
      model.engine(plain(engine));
    },
    priceStep(/** @type {bigint} */ startNs, /** @type {any} */ step) {
      const seen = plain(step);
      seen.startNs = Number(startNs);
      return price(seen);
    },
    priceDecodes(/** @type {bigint} */ startNs, /** @type {bigint} */ horizonNs, /** @type {any} */ run) {
      const { firstContextTokens, ...fields } = plain(run);
      const lists = Object.keys(fields).filter((field) => typeof fields[field] === 'object');
      const durationsNs = [];
      let nowNs = startNs;
      let contextTokens = firstContextTokens;
      for (let index = 0; index < fields.kvActiveBlocks.length; index++) {
        // Such a step may never happen, so the model must not see it.
        if (index > 0 && nowNs >= horizonNs) break;
        const step = { ...none, ...fields, startNs: Number(nowNs), decodeContextTokens: contextTokens };
        for (const field of lists) step[field] = fields[field][index];
        const durationNs = price(step);
        durationsNs.push(durationNs);
        // The host refuses it by name.
        if (!(durationNs >= 0 && durationNs <= 1e18)) break;
        const whole = Math.trunc(durationNs);
        nowNs += BigInt(durationNs - whole >= 0.5 ? whole + 1 : whole);
        contextTokens += fields.decodeRequests;
      }
      return Float64Array.from(durationsNs);
    },
  };
}

/** @typedef {Plain<import('vcr:guest/scheduling@0.1.0').EngineView>} EngineView */

/** The answer of a scheduler policy; each preference holds until it is replaced. */
export class Preferences {
  /** @type {[number, bigint][]} */
  admission = [];
  /** @type {[number, bigint][]} */
  eviction = [];
  /** @type {[number, number][]} */
  chunkCaps = [];
  /** @type {number[]} */
  uncapped = [];

  /** The rank of a waiting request; the lowest is admitted first. */
  waitAt(/** @type {number} */ slot, /** @type {number | bigint} */ rank) {
    this.admission.push([u32(slot, 'slot'), wide(rank, 'rank')]);
  }

  /** The preemption rank of a request; the greatest is preempted first. */
  giveWayAt(/** @type {number} */ slot, /** @type {number | bigint} */ rank) {
    this.eviction.push([u32(slot, 'slot'), wide(rank, 'rank')]);
  }

  /** The most tokens that a request computes in a step, at least 1; `null` for no limit. */
  computeAtMost(/** @type {number} */ slot, /** @type {number | null} */ tokens) {
    if (tokens === null) this.uncapped.push(u32(slot, 'slot'));
    else this.chunkCaps.push([u32(slot, 'slot'), u32(tokens, 'number of tokens')]);
  }
}

/** Decides the order of requests, preemption victims, and chunk sizes. */
export class SchedulerPolicy {
  /**
   * Makes the policy of one engine.
   *
   * @param {Config} [config]
   * @param {bigint} [seed]
   */
  constructor(config, seed) {}

  /**
   * Says to `preferences` what changes.
   *
   * @param {EngineView} engine
   * @param {Preferences} preferences
   */
  decide(engine, preferences) {
    throw new Error('`decide` is missing');
  }
}

function scheduling(/** @type {(config: string, seed: bigint) => SchedulerPolicy} */ make) {
  /** @type {SchedulerPolicy} */
  let policy;
  const slots = (/** @type {[number, any][]} */ pairs) => Uint32Array.from(pairs, ([slot]) => slot);
  const ranks = (/** @type {[number, bigint][]} */ pairs) => ({
    slot: slots(pairs),
    rank: BigInt64Array.from(pairs, ([, rank]) => rank),
  });

  return {
    configure(/** @type {string} */ config, /** @type {bigint} */ seed) {
      policy = make(config, seed);
    },
    decide(/** @type {any} */ engine) {
      const said = new Preferences();
      policy.decide(plain(engine), said);
      return {
        admission: ranks(said.admission),
        eviction: ranks(said.eviction),
        chunkCaps: { slot: slots(said.chunkCaps), tokens: Uint32Array.from(said.chunkCaps, ([, tokens]) => tokens) },
        uncapped: Uint32Array.from(said.uncapped),
      };
    },
  };
}

/** @typedef {Plain<import('vcr:guest/routing@0.1.0').RouteRequest> & { nowNs: number }} RouteRequest */
/** @typedef {Plain<import('vcr:guest/routing@0.1.0').WorkerLoads>[number]} WorkerLoad */
/** @typedef {Plain<import('vcr:guest/routing@0.1.0').EndedRequest>} EndedRequest */

/** Refuses a request, because all engines have too much to do. */
export const REFUSE = null;

/** Chooses the engine of each request of one pool. */
export class Router {
  /**
   * Makes the router of one pool.
   *
   * @param {Config} [config]
   * @param {bigint} [seed]
   */
  constructor(config, seed) {}

  /**
   * The index of one of the engines, its `worker`; or `REFUSE`, where the request may be refused.
   *
   * @param {RouteRequest} request
   * @param {WorkerLoad[]} workers
   * @returns {number | null}
   */
  route(request, workers) {
    throw new Error('`route` is missing');
  }

  /**
   * A routed request ended. Called before the next request is routed.
   *
   * @param {EndedRequest} request
   */
  ended(request) {}
}

function routing(/** @type {(config: string, seed: bigint) => Router} */ make) {
  /** @type {Router} */
  let router;

  return {
    configure(/** @type {string} */ config, /** @type {bigint} */ seed) {
      router = make(config, seed);
    },
    route(/** @type {bigint} */ nowNs, /** @type {any[]} */ ended, /** @type {any} */ request, /** @type {any} */ workers) {
      for (const one of ended) router.ended(plain(one));
      const seen = plain(request);
      seen.nowNs = Number(nowNs);
      const worker = router.route(seen, plain(workers));
      return worker === REFUSE ? { tag: 'refuse' } : { tag: 'worker', val: u32(worker, 'worker') };
    },
  };
}

/** @typedef {Plain<import('vcr:guest/scaling@0.1.0').PoolView>} PoolView */

/** Decides how many engines one pool has. */
export class Autoscaler {
  /**
   * Makes the autoscaler of one pool.
   *
   * @param {Config} [config]
   * @param {bigint} [seed]
   */
  constructor(config, seed) {}

  /**
   * The number of engines that should be up or starting. The host applies the pool's limits.
   *
   * @param {PoolView} pool
   * @returns {number}
   */
  desired(pool) {
    throw new Error('`desired` is missing');
  }
}

function scaling(/** @type {(config: string, seed: bigint) => Autoscaler} */ make) {
  /** @type {Autoscaler} */
  let autoscaler;

  return {
    configure(/** @type {string} */ config, /** @type {bigint} */ seed) {
      autoscaler = make(config, seed);
    },
    decide: (/** @type {any} */ pool) => u32(autoscaler.desired(plain(pool)), 'number of engines'),
  };
}

/** @typedef {Plain<import('vcr:guest/faults@0.1.0').FaultEvent>} FaultEvent */
/** @typedef {{ nowNs: number, step: number, events: FaultEvent[] }} FaultBatch */

/** The faults that an injector wants, in order. Durations are nanoseconds, at most 1e18. */
export class Actions {
  /** @type {import('vcr:guest/faults@0.1.0').FaultAction[]} */
  said = [];

  /** The request ends with an error. */
  failRequest(/** @type {number} */ slot) {
    this.said.push({ tag: 'fail-request', val: u32(slot, 'slot') });
  }

  /** The engine does nothing for a duration. */
  stall(/** @type {number} */ durationNs) {
    this.said.push({ tag: 'stall', val: wide(durationNs, 'duration', 0) });
  }

  /** The engine dies, and restarts after a duration or never. */
  crash(/** @type {number} [restartAfterNs] */ restartAfterNs) {
    this.said.push({
      tag: 'crash',
      val: restartAfterNs === undefined ? undefined : wide(restartAfterNs, 'duration', 0),
    });
  }

  /** The next output message is lost. */
  dropMessage() {
    this.said.push({ tag: 'drop-message' });
  }

  /** The next output message is sent twice. */
  duplicateMessage() {
    this.said.push({ tag: 'duplicate-message' });
  }

  /** The next output message cannot be read. */
  corruptMessage() {
    this.said.push({ tag: 'corrupt-message' });
  }

  /** The next output message is late. */
  delayMessage(/** @type {number} */ byNs) {
    this.said.push({ tag: 'delay-message', val: wide(byNs, 'duration', 0) });
  }

  /** The next batch of KV events is lost. */
  loseKvEvents() {
    this.said.push({ tag: 'lose-kv-events' });
  }

  /** The announced utility call fails. */
  failUtility() {
    this.said.push({ tag: 'fail-utility' });
  }
}

/** Decides what goes wrong in one engine. */
export class FailureInjector {
  /**
   * Makes the injector of one engine.
   *
   * @param {Config} [config]
   * @param {bigint} [seed]
   */
  constructor(config, seed) {}

  /**
   * Says to `actions` what goes wrong now.
   *
   * @param {FaultBatch} batch
   * @param {Actions} actions
   */
  decide(batch, actions) {
    throw new Error('`decide` is missing');
  }
}

function faults(/** @type {(config: string, seed: bigint) => FailureInjector} */ make) {
  /** @type {FailureInjector} */
  let injector;

  return {
    configure(/** @type {string} */ config, /** @type {bigint} */ seed) {
      injector = make(config, seed);
    },
    decide(/** @type {bigint} */ nowNs, /** @type {bigint} */ step, /** @type {any[]} */ events) {
      const actions = new Actions();
      injector.decide({ nowNs: Number(nowNs), step: Number(step), events: plain(events) }, actions);
      return actions.said;
    },
  };
}

/** @typedef {Plain<import('vcr:guest/tokens@0.1.0').TokenRequest>} TokenRequest */

/** Says how many drafts of a request are accepted in each step that verifies some. */
export function acceptDrafts(/** @type {number} */ slot, /** @type {number} */ count) {
  host()?.drafts?.accept(u32(slot, 'slot'), u32(count, 'number of drafts'));
}

/**
 * Chooses the output tokens of one engine's requests.
 *
 * @template State
 */
export class TokenSource {
  /**
   * Makes the source of one engine.
   *
   * @param {Config} [config]
   * @param {bigint} [seed]
   */
  constructor(config, seed) {}

  /**
   * A request starts. The answer is passed to `nextToken` for each of its tokens. A `GuestError`
   * refuses this request, and no other.
   *
   * @param {TokenRequest} request
   * @returns {State}
   */
  start(request) {
    throw new Error('`start` is missing');
  }

  /**
   * Output token `index` of a request; indices rise from 0 one by one. To end the output, answer
   * the request's end token or one of its stop tokens.
   *
   * @param {State} state
   * @param {number} index
   * @returns {number}
   */
  nextToken(state, index) {
    throw new Error('`nextToken` is missing');
  }
}

function tokens(/** @type {(config: string, seed: bigint) => TokenSource<any>} */ make) {
  /** @type {TokenSource<any>} */
  let source;
  const running = new Map();
  const refused = new Set();

  return {
    configure(/** @type {string} */ config, /** @type {bigint} */ seed) {
      source = make(config, seed);
    },
    step(/** @type {any[]} */ started, /** @type {Uint32Array} */ ended, /** @type {any} */ wants) {
      for (const slot of ended) {
        running.delete(slot);
        refused.delete(slot);
      }
      for (const request of started) {
        try {
          running.set(request.slot, source.start(plain(request)));
        } catch (error) {
          if (!(error instanceof GuestError)) throw error;
          refused.add(request.slot);
          host()?.requests?.refuse(request.slot, error.message);
        }
      }
      const answer = [];
      for (const { slot, firstIndex, count } of plain(wants)) {
        const state = running.get(slot);
        for (let index = firstIndex; index < firstIndex + count; index++) {
          answer.push(refused.has(slot) ? 0 : u32(source.nextToken(state, index), 'token'));
        }
      }
      return Uint32Array.from(answer);
    },
  };
}

/** @type {[any, (make: any) => Record<string, Function>][]} */
const WORLDS = [
  [LatencyModel, latency],
  [SchedulerPolicy, scheduling],
  [Router, routing],
  [Autoscaler, scaling],
  [FailureInjector, faults],
  [TokenSource, tokens],
];

/**
 * The interface of a guest's class, to be exported under the interface's name.
 *
 * @param {new (config: Config, seed: bigint) =>
 *   LatencyModel | SchedulerPolicy | Router | Autoscaler | FailureInjector | TokenSource<any>} type
 * @returns {Record<string, Function>}
 */
export function guest(type) {
  const world = WORLDS.find(([base]) => type.prototype instanceof base);
  if (!world) throw new TypeError(`\`${type.name}\` extends no class of vcr-guest.js, such as \`Router\``);
  const functions = world[1]((/** @type {string} */ config, /** @type {bigint} */ seed) => new type(read(config), seed));
  return Object.fromEntries(Object.entries(functions).map(([name, call]) => [name, passesOn(call)]));
}

/** The user's config, which is a JSON object. */
function read(/** @type {string} */ config) {
  let value;
  try {
    value = JSON.parse(config);
  } catch (error) {
    throw new GuestError(`the config cannot be read: ${/** @type {Error} */ (error).message}`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new GuestError(`invalid config: expected a JSON object, got ${shown(value)}`);
  }
  return value;
}

/** A function of an interface whose exceptions are failures of the interface. */
function passesOn(/** @type {Function} */ call) {
  return (/** @type {any[]} */ ...values) => {
    try {
      return call(...values);
    } catch (error) {
      throw failure(error);
    }
  };
}

/** An exception as the interface passes it on. */
function failure(/** @type {unknown} */ error) {
  if (error instanceof GuestError) return { message: error.message, traceback: undefined };
  if (!(error instanceof Error)) return { message: `${shown(error)} was thrown`, traceback: undefined };
  const message = error.message ? `${error.name}: ${error.message}` : error.name;
  return { message, traceback: frames(error.stack ?? '').join('\n') || undefined };
}

/** Files whose frames are not the guest's own. */
const folder = /@(.*)vcr-guest\.js:\d/.exec(new Error().stack ?? '')?.[1] ?? '';
const FOREIGN = ['vcr-guest.js', 'plain.js', 'wit.js'].map((name) => folder + name);

/** The frames of a stack in the guest's own code, innermost first. */
function frames(/** @type {string} */ stack) {
  const project = host()?.project ?? '';
  const own = [];
  for (const line of stack.split('\n')) {
    const [, name, file, place] = /^(.*)@(.+?):(\d+:\d+)$/.exec(line) ?? [];
    // The code around the guest, which the tool makes, has an absolute path.
    if (!file || FOREIGN.includes(file) || file.startsWith('/')) continue;
    const at = `${file.startsWith(project) ? file.slice(project.length) : file}:${place}`;
    const plainName = name.replace(/[/<]+$/, '');
    own.push(plainName ? `    at ${plainName} (${at})` : `    at ${at}`);
  }
  return own;
}

// In a component these would return their values at build time.
if (host()) {
  const noClock = () => {
    throw new Error('a guest has no clock: use the times of its calls, such as `nowNs`');
  };
  Math.random = () => {
    throw new Error('a guest has no `Math.random`: use `new Random(seed)`');
  };
  Date.now = noClock;
  globalThis.Date = new Proxy(Date, {
    apply: noClock,
    construct: (target, values) => (values.length === 0 ? noClock() : new target(.../** @type {[any]} */ (values))),
  });
}
