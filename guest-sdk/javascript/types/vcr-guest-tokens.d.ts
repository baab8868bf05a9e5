/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/tokens@0.1.0' {
  /**
   * Makes the instance the source of one engine: the first call, made once.
   *
   * `config` is one JSON document, `{}` if the user gave none. `seed` and the seeds of the
   * requests are the only sources of randomness; two instances configured from the same arguments
   * must answer the same calls equally.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Chooses the output tokens of one step of the engine.
   *
   * First the requests in the slots `ended` are removed: their tokens are no longer wanted. Then
   * those of `started` are added, perhaps in slots that were just freed. Then tokens are wanted.
   *
   * The answer holds the tokens of all wants, in their order: exactly as many as were wanted. To
   * end an output, answer its `eos-token` or a stop token; the wanted tokens beyond it must still
   * be filled, and are discarded.
   *
   * The host may spread the requests that start in one step over several calls if they are too
   * long for one call; the last of these calls has the wants.
   *
   * A failure fails the run. To fail one request instead, call `refuse` of the interface `requests`.
   */
  export function step(started: Array<TokenRequest>, ended: Uint32Array, wants: TokenWants): Uint32Array;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  /**
   * A request that starts.
   */
  export interface TokenRequest {
    /**
     * Names the request from now on.
     */
    slot: number,
    /**
     * Derived from the contents of the request, so that the same request gets the same output on
     * every engine.
     */
    seed: bigint,
    /**
     * The tokens of its prompt. In virtual time they are drawn from the identities of its blocks. A
     * chat is its rendered prompt: engines never see its messages.
     */
    prompt: Uint32Array,
    /**
     * Limit of its output tokens.
     */
    maxTokens: number,
    /**
     * The output does not end before it has this many tokens. 0 in virtual time.
     */
    minTokens: number,
    /**
     * The token that ends the output, if there is one.
     */
    eosToken?: number,
    /**
     * Further tokens that end the output. Empty in virtual time.
     */
    stopTokens: Uint32Array,
    /**
     * The grammar of the output as the frontend sent it, as JSON: in vLLM a map with one of `json`,
     * `json_object`, `choice`, `regex`, `grammar` and `structural_tag`. None in virtual time.
     */
    structuredOutput?: string,
    /**
     * Limit of the tokens of its reasoning, if there is one. None in virtual time.
     */
    thinkingTokenBudget?: number,
  }
  /**
   * Columns: tokens that are wanted.
   *
   * The host wants each token of a request once, in order: the first want of a request starts at index 0,
   * and each further want where the previous one ended. A call has at most one want of a request.
   */
  export interface TokenWants {
    /**
     * The request.
     */
    slot: Uint32Array,
    /**
     * Index in its output of the first token wanted.
     */
    firstIndex: Uint32Array,
    /**
     * How many are wanted, at least one.
     */
    count: Uint32Array,
  }
}
