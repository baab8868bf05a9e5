// Helpers for tests of a guest under `node --test`: records of the interface, a test names
// only the fields that matter. Other fields are 0, false or empty.
//
//     new LeastLoaded({}, 0n).route(request({ mayRefuse: true }), [worker({ worker: 3 })]);

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { blank } from './wit.js';

/** The text of the interface: beside this file in a project, at the root of vcr's repository. */
const wit = (() => {
  const places = ['wit/', '../../wit/'].map((place) => new URL(place, import.meta.url));
  const folder = places.find((place) => existsSync(place)) ?? places[0];
  const files = readdirSync(folder).filter((name) => name.endsWith('.wit'));
  return files.map((name) => readFileSync(new URL(name, folder), 'utf8')).join('\n');
})();

/** A record of the interface with some of its fields. */
function record(
  /** @type {string} */ interfaceName,
  /** @type {string} */ name,
  /** @type {Record<string, any>} */ fields = {},
  /** @type {Record<string, any>} */ more = {},
) {
  const made = { ...blank(wit, interfaceName, name), ...more };
  for (const field of Object.keys(fields)) {
    if (!(field in made)) throw new Error(`a ${name} has no field \`${field}\`: expected ${Object.keys(made).join(', ')}`);
  }
  return /** @type {any} */ ({ ...made, ...fields });
}

/**
 * A step to be priced.
 *
 * @param {Partial<import('./vcr-guest.js').StepShape>} [fields]
 * @returns {import('./vcr-guest.js').StepShape}
 */
export const step = (fields) => record('latency', 'step-shape', fields, { startNs: 0 });

/**
 * The engine whose steps are priced.
 *
 * @param {Partial<import('./vcr-guest.js').EngineInfo>} [fields]
 * @returns {import('./vcr-guest.js').EngineInfo}
 */
export const engineInfo = (fields) => record('latency', 'engine-info', fields);

/**
 * The engine before a step.
 *
 * @param {Partial<import('./vcr-guest.js').EngineView>} [fields]
 * @returns {import('./vcr-guest.js').EngineView}
 */
export const engine = (fields) => record('scheduling', 'engine-view', fields);

/**
 * A request that came into an engine with a scheduler policy, as an event.
 *
 * @param {Partial<import('vcr:guest/scheduling@0.1.0').ArrivedRequest> | Record<string, any>} [fields]
 * @returns {import('./vcr-guest.js').EngineView['events'][number]}
 */
export const arrived = (fields) =>
  /** @type {any} */ ({ tag: 'arrived', val: record('scheduling', 'arrived-request', fields) });

/**
 * A request to be routed.
 *
 * @param {Partial<import('./vcr-guest.js').RouteRequest>} [fields]
 * @returns {import('./vcr-guest.js').RouteRequest}
 */
export const request = (fields) => record('routing', 'route-request', fields, { nowNs: 0 });

/**
 * An engine that is up.
 *
 * @param {Partial<import('./vcr-guest.js').WorkerLoad>} [fields]
 * @returns {import('./vcr-guest.js').WorkerLoad}
 */
export const worker = (fields) => record('routing', 'worker-loads', fields);

/**
 * The state of a pool.
 *
 * @param {Partial<import('./vcr-guest.js').PoolView>} [fields]
 * @returns {import('./vcr-guest.js').PoolView}
 */
export const pool = (fields) => record('scaling', 'pool-view', fields);

/**
 * A request that came into an engine with a failure injector, as an event.
 *
 * @param {Partial<import('vcr:guest/faults@0.1.0').ArrivedRequest>} [fields]
 * @returns {import('./vcr-guest.js').FaultEvent}
 */
export const requestArrived = (fields) =>
  /** @type {any} */ ({ tag: 'arrived', val: record('faults', 'arrived-request', fields) });

/**
 * A request that starts at a token source.
 *
 * @param {Partial<import('./vcr-guest.js').TokenRequest> | Record<string, any>} [fields]
 * @returns {import('./vcr-guest.js').TokenRequest}
 */
export const tokenRequest = (fields) => record('tokens', 'token-request', fields);
