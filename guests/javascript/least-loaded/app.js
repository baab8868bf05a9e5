// Sends a request to the engine with the lowest cost: the KV blocks of its load, minus the cached
// blocks of the prompt. Refuses the request if all engines are full.

import { REFUSE, Router, guest, knownFields, number } from '../../../guest-sdk/javascript/vcr-guest.js';

/** @typedef {import('../../../guest-sdk/javascript/vcr-guest.js').Config} Config */
/** @typedef {import('../../../guest-sdk/javascript/vcr-guest.js').RouteRequest} RouteRequest */
/** @typedef {import('../../../guest-sdk/javascript/vcr-guest.js').WorkerLoad} WorkerLoad */

export class LeastLoaded extends Router {
  /** @param {Config} config */
  constructor(config) {
    super();
    knownFields(config, ['cached_block_weight', 'max_waiting']);
    /** The value of a cached block, in blocks of load. */
    this.cachedBlockWeight = number(config, 'cached_block_weight', 1);
    /** A request is refused if more requests than this wait at every engine. */
    this.maxWaiting = number(config, 'max_waiting', 1_000_000);
  }

  /**
   * @param {RouteRequest} request
   * @param {WorkerLoad[]} workers
   */
  route(request, workers) {
    const room = workers.filter((worker) => worker.waitingRequests <= this.maxWaiting);
    if (room.length === 0 && request.mayRefuse) return REFUSE;
    // Of equal engines, takes the first one.
    const best = (room.length > 0 ? room : workers).reduce((best, worker) =>
      this.cost(request, worker) < this.cost(request, best) ? worker : best,
    );
    return best.worker;
  }

  /**
   * @param {RouteRequest} request
   * @param {WorkerLoad} worker
   */
  cost(request, worker) {
    // The load includes prompts that are not computed yet.
    const load = worker.activeBlocks + worker.outstandingPrefillTokens / request.blockSizeTokens;
    return load - this.cachedBlockWeight * worker.cachedPromptBlocks;
  }
}

export const routing = guest(LeastLoaded);
