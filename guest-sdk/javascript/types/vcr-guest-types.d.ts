declare module 'vcr:guest/types@0.1.0' {
  /**
   * The latency objectives (SLO) of a request. A scenario sets them for a workload or for a class of
   * its requests. On live engines all are none: requests of vLLM's frontend carry no objectives.
   */
  export interface Slo {
    /**
     * Limit of the time from arrival to the first output token, in nanoseconds.
     */
    ttftNs?: bigint,
    /**
     * Limit of the mean gap between output tokens, in nanoseconds.
     */
    tpotNs?: bigint,
    /**
     * Limit of the time from arrival to the last output token, in nanoseconds.
     */
    e2eNs?: bigint,
  }
  /**
   * A call that the guest could not answer. It ends the run, or the fallback of the guest decides
   * from then on; the host does not call the instance again.
   */
  export interface Failure {
    /**
     * Shown to the user unchanged. It should name the field, its value and an allowed value.
     */
    message: string,
    /**
     * Where in the guest's own code an unexpected error arose, as its language prints it. None for
     * errors that the guest reports on purpose.
     */
    traceback?: string,
  }
}
