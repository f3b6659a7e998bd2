// What a Tollgate Worker is bound to.

import type { TollgateObject } from "./object.ts";

export interface Env {
  /** The shards. */
  TOLLGATE: DurableObjectNamespace<TollgateObject>;
  /** Workers KV, for what is asked for with best effort. */
  TOLLGATE_KV?: KVNamespace;
  /** Policies: a table in wrangler.toml, or the same as JSON text. */
  TOLLGATE_CONFIG?: unknown;
  /** The secret of the service. Without it the service does not exist. */
  TOLLGATE_TOKEN?: string;
  /** A dataset of Workers Analytics Engine that gets every decision too. */
  TOLLGATE_ANALYTICS?: AnalyticsEngineDataset;
  /** The origin: a URL, or a service binding. Without it, a small demo answers. */
  ORIGIN?: string | Fetcher;
}

/** The configuration as JSON text. A misspelt name must not run without limits, so there is no default. */
export function configText(env: Env): string {
  const config = env.TOLLGATE_CONFIG;
  if (config === undefined || config === null) {
    throw new StoreError("TOLLGATE_CONFIG: expected a table, which may be empty, got none", "invalid-config");
  }
  return typeof config === "string" ? config : JSON.stringify(config);
}

/** An exception with a stable code. */
export class StoreError extends Error {
  readonly code: string;

  constructor(message: string, code = "store-unavailable") {
    super(message);
    this.name = "StoreError";
    this.code = code;
  }
}

/** The code of an exception that came out of the core. */
export function codeOf(error: unknown): string {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === "string" ? code : "store-unavailable";
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
