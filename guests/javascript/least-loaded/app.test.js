// The guest, natively: `node --test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LeastLoaded } from './app.js';
import { REFUSE } from '../../../guest-sdk/javascript/vcr-guest.js';
import { request, worker } from '../../../guest-sdk/javascript/testing.js';

function choice(waitingRequests, cachedPromptBlocks, mayRefuse = true) {
  const router = new LeastLoaded({ cached_block_weight: 2, max_waiting: 8 });
  return router.route(request({ blockSizeTokens: 16, mayRefuse }), [
    worker({ worker: 0, waitingRequests, activeBlocks: 40 }),
    worker({ worker: 3, waitingRequests, activeBlocks: 50, cachedPromptBlocks }),
  ]);
}

test('a cached prefix outweighs some load', () => {
  assert.equal(choice(0, 0), 0);
  assert.equal(choice(0, 6), 3);
});

test('prompts that are not computed count as load', () => {
  const router = new LeastLoaded({ cached_block_weight: 2 });
  const workers = [worker({ worker: 0, outstandingPrefillTokens: 100 }), worker({ worker: 3 })];
  assert.equal(router.route(request({ blockSizeTokens: 16 }), workers), 3);
});

test('a request is refused where all are full and it may be', () => {
  assert.equal(choice(9, 0), REFUSE);
  assert.equal(choice(9, 0, false), 0);
});

test('a misspelt field is named', () => {
  assert.throws(() => new LeastLoaded({ max_wait: 1 }), /unknown field `max_wait`/);
});
