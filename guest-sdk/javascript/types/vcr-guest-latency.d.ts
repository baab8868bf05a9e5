/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/latency@0.1.0' {
  /**
   * Makes the instance the model of one engine: the first call, made once.
   *
   * `config` is one JSON document, `{}` if the user gave none. `seed` is the only source of
   * randomness: two instances that are configured with the same arguments must give the same
   * answers to the same calls. `engine` describes the engine whose steps are priced. `config` may
   * state sizes that differ from it.
   */
  export function configure(config: string, seed: bigint, engine: EngineInfo): void;
  /**
   * Prices one step, which starts at `start-ns`: its duration in nanoseconds.
   *
   * A duration must be finite, not negative and at most 1e18 (about 32 years). The host rounds it
   * to the nearest whole nanosecond, halves upwards. Any other value fails the run, with an error
   * that names the value.
   */
  export function priceStep(startNs: bigint, step: StepShape): number;
  /**
   * Prices the steps of a run: returns the duration of each step in nanoseconds, in order, as one
   * call of `price-step` per step would. Afterwards the model must be in the same state as after
   * those calls, because the host may use either way, whichever is cheaper.
   *
   * The first step starts at `start-ns`. Each further step starts when the step before it ends,
   * with durations rounded as in `price-step`. The answer holds at least one duration. From the
   * second step on, it stops before the first step that would start at or after `horizon-ns`: such
   * a step may never happen, so it must not change the state of the model. The horizon limits the
   * number of steps to price, never a step's duration.
   */
  export function priceDecodes(startNs: bigint, horizonNs: bigint, run: DecodeRun): Float64Array;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  /**
   * The kind of a group's layers: which KV of a sequence they keep.
   * # Variants
   *
   * ## `"full-attention"`
   *
   * KV of all tokens.
   * ## `"latent-attention"`
   *
   * KV of all tokens, compressed (MLA).
   * ## `"sliding-window"`
   *
   * KV of the latest tokens.
   * ## `"chunked-local"`
   *
   * KV of the tokens in the next token's chunk. Chunks begin at multiples of their length.
   * ## `"cross-attention"`
   *
   * KV of the encoder's output, which a decoder reads.
   * ## `"mamba"`
   *
   * A state (Mamba, linear attention).
   */
  export type KvGroupKind = 'full-attention' | 'latent-attention' | 'sliding-window' | 'chunked-local' | 'cross-attention' | 'mamba';
  /**
   * A group of layers whose KV is in the same blocks: a KV cache group of vLLM.
   */
  export interface KvGroup {
    /**
     * The kind of its layers.
     */
    kind: KvGroupKind,
    /**
     * Tokens in a block of the group.
     */
    blockSizeTokens: number,
    /**
     * Tokens of the window, or of a chunk. None for other kinds.
     */
    windowTokens?: number,
  }
  /**
   * The engine whose steps are priced. It does not change.
   */
  export interface EngineInfo {
    /**
     * GPUs that share each layer. The deployment states this number in virtual time, and
     * `--tensor-parallel-size` on live engines. 1 if nothing states it.
     */
    tensorParallelSize: number,
    /**
     * Pipeline stages that the layers are spread over.
     */
    pipelineParallelSize: number,
    /**
     * All KV blocks that requests can use.
     */
    kvTotalBlocks: bigint,
    /**
     * Tokens in a KV block.
     */
    blockSizeTokens: bigint,
    /**
     * The KV cache groups of its model. Empty if all layers have full attention.
     */
    kvGroups: Array<KvGroup>,
  }
  /**
   * One engine step, summed over its requests.
   *
   * All fields are known on live engines and in virtual time.
   *
   * A *prefill chunk* is a piece of a sequence that is not yet in the KV cache: a prompt, or a
   * preempted sequence that is computed again. A *decode* computes the last known token of a
   * sequence whose other tokens are all cached, and any drafts after it.
   */
  export interface StepShape {
    /**
     * Requests with a prefill chunk.
     */
    prefillRequests: bigint,
    /**
     * New tokens over all prefill chunks.
     */
    prefillTokens: bigint,
    /**
     * Tokens computed or cached before each prefill chunk, summed.
     */
    prefillContextTokens: bigint,
    /**
     * Query-key pairs of all prefill chunks: a chunk of n tokens at depth c adds
     * n * c + n * (n + 1) / 2.
     */
    prefillAttentionPairs: bigint,
    /**
     * Prefill chunks that reach the end of the known tokens of their request.
     */
    prefillCompletions: bigint,
    /**
     * Context length of each request that `prefill-completions` counts, at the end of its chunk,
     * summed.
     */
    prefillCompletionContextTokens: bigint,
    /**
     * Requests that decode.
     */
    decodeRequests: bigint,
    /**
     * Tokens over all decodes. Those beyond `decode-requests` are drafts of speculative decoding.
     */
    decodeTokens: bigint,
    /**
     * Context length of each decode including the tokens of this step, summed.
     */
    decodeContextTokens: bigint,
    /**
     * Requests that emit an output token.
     */
    sampledRequests: bigint,
    /**
     * Distinct KV blocks that at least one request uses.
     */
    kvActiveBlocks: bigint,
    /**
     * Requests still waiting after scheduling.
     */
    waitingRequests: bigint,
    /**
     * Embeddings that the encoder computes for multimodal items, in tokens of the prompt.
     */
    encoderTokens: bigint,
    /**
     * Distinct LoRA adapters of the requests in this step.
     */
    adapterCount: bigint,
    /**
     * Tokens of this step that are computed with an adapter.
     */
    adapterTokens: bigint,
  }
  /**
   * Consecutive steps that only decode. Each step has the same requests, and every context is one
   * token longer than in the step before. All fields of `step-shape` that this record lacks are 0.
   */
  export interface DecodeRun {
    /**
     * Requests that decode in each step.
     */
    decodeRequests: bigint,
    /**
     * Tokens over all decodes of each step.
     */
    decodeTokens: bigint,
    /**
     * Context length of each decode of the first step, summed. In each further step it is larger
     * by `decode-requests`.
     */
    firstContextTokens: bigint,
    /**
     * Requests that emit an output token in each step.
     */
    sampledRequests: bigint,
    /**
     * Distinct KV blocks that at least one request uses. There is one entry for each step, in
     * order, so the number of entries is the number of steps: at least one.
     */
    kvActiveBlocks: BigUint64Array,
    /**
     * Requests that wait during each step.
     */
    waitingRequests: bigint,
    /**
     * Distinct LoRA adapters of the requests in each step.
     */
    adapterCount: bigint,
    /**
     * Tokens of each step that are computed with an adapter.
     */
    adapterTokens: bigint,
  }
}
