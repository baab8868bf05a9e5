/** A request that the server got. Values of secret headers are `[redacted]`. */
export interface SeenRequest {
  readonly method: string;
  readonly path: string;
  readonly query: string | null;
  readonly headers: Record<string, string>;
  readonly body: string;
  /** The body as JSON. */
  readonly json: any;
  /** `tape`, `server` (simulated), `upstream` (recorded now), `nobody` (refused) or `fault` (a client fault). */
  readonly answeredBy: "tape" | "server" | "upstream" | "nobody" | "fault";
}

/** A recording to answer from. */
export interface Cassette {
  /** Its file is `NAME.jsonl` in `folder`. */
  name: string;
  /** Default: `cassettes` in the current folder. */
  folder?: string;
  /** `once` (default) records if there is no cassette, `none` never, `new_episodes` missing requests, `all` everything. */
  mode?: "once" | "none" | "new_episodes" | "all";
  /** The server to record. Default: the environment variable VCR_UPSTREAM. */
  upstream?: string;
  /** A file of rules for finding recordings: `vcr serve --match`. */
  match?: string;
}

export interface Settings {
  /** Options of `vcr serve`. */
  options?: string | (string | number)[];
  /** Client faults, such as `status:code=503,call=1`. */
  faults?: string | string[];
  cassette?: Cassette;
  /** Default: the environment variable VCR_BINARY, else `vcr`. */
  binary?: string;
}

/** A running `vcr serve`. */
export declare class Server {
  /** Such as `http://127.0.0.1:41234`. */
  readonly url: string;
  /** The base URL of OpenAI's SDK; Anthropic's takes `url`. */
  readonly baseUrl: string;
  /** The requests so far, in order of arrival. */
  requests(): Promise<SeenRequest[]>;
  /** Empties the list of requests. */
  forgetRequests(): Promise<void>;
  /** Ends the server. Rejects if it has failed. */
  stop(): Promise<void>;
}

export declare const MODES: readonly string[];

/** Starts a server on a free port of this machine. */
export declare function startServer(settings?: Settings): Promise<Server>;

/** Starts a server, calls `body` with it, and stops it. */
export declare function withServer<T>(settings: Settings, body: (server: Server) => Promise<T>): Promise<T>;

/** The options of `vcr serve` for a cassette. */
export declare function cassetteOptions(cassette: Cassette): string[];
