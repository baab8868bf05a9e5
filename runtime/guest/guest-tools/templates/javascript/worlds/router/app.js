// Routes a request to the engine with the least load, where a cached block of its prompt is worth
// some blocks of load. Refuses it where all engines are full.

import { REFUSE, Router, guest, knownFields, number } from './vendor/vcr-guest.js';

/** @typedef {import('./vendor/vcr-guest.js').Config} Config */
/** @typedef {import('./vendor/vcr-guest.js').RouteRequest} RouteRequest */
/** @typedef {import('./vendor/vcr-guest.js').WorkerLoad} WorkerLoad */

export class LeastLoaded extends Router {
  /** @param {Config} config */
  constructor(config) {
    super();
    knownFields(config, ['cached_block_weight', 'max_waiting']);
    /** The value of a cached block, in blocks of load. */
    this.cachedBlockWeight = number(config, 'cached_block_weight', 1);
    /** A request is refused where every engine has more waiting than this. */
    this.maxWaiting = number(config, 'max_waiting', 1_000_000);
  }

  /**
   * @param {RouteRequest} request
   * @param {WorkerLoad[]} workers
   */
  route(request, workers) {
    const room = workers.filter((worker) => worker.waitingRequests <= this.maxWaiting);
    if (room.length === 0 && request.mayRefuse) return REFUSE;
    // The first of equal ones.
    const best = (room.length > 0 ? room : workers).reduce((best, worker) =>
      this.cost(worker) < this.cost(best) ? worker : best,
    );
    return best.worker;
  }

  /** @param {WorkerLoad} worker */
  cost(worker) {
    return worker.activeBlocks - this.cachedBlockWeight * worker.cachedPromptBlocks;
  }
}

export const routing = guest(LeastLoaded);
