declare module 'vcr:guest/types@0.1.0' {
  /**
   * A call that the guest could not answer. It ends the run, or the fallback of the guest decides
   * from then on; the host does not call the instance again.
   */
  export interface Failure {
    /**
     * Shown to the user as it stands. It should name the field, its value and what to write
     * instead.
     */
    message: string,
    /**
     * Where in the guest's own code an unexpected error arose, as its language prints it. None for
     * errors that the guest means.
     */
    traceback?: string,
  }
}
