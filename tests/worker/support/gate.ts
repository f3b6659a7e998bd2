// A gate in workerd, on a free port of this machine and a folder of its own.

import { type ChildProcess } from "node:child_process";
import { subscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { Log, LogLevel, Miniflare, type MiniflareOptions } from "miniflare";

import { bundle } from "./bundle.ts";

/** A window whose end no test run meets: it ends once in 366 days, and next in February 2027. */
export const LONG = "366 days";

export const TOKEN = "a-token-for-tests";

export interface GateOptions {
  /** `TOLLGATE_CONFIG`; `null` leaves it out. */
  config?: Record<string, unknown> | string | null;
  /** `TOLLGATE_TOKEN`; `null` leaves it out. */
  token?: string | null;
  /** `ORIGIN`: a URL, or the script of a Worker that is bound as a service. */
  origin?: string | { script: string };
  /** With `support/faulty.ts` around it. */
  faulty?: boolean;
  /** With a dataset as `TOLLGATE_ANALYTICS`. The local one keeps nothing; `support/faulty.ts` has one that does. */
  analytics?: boolean;
}

/** The answer to a request to the service. */
export interface Answer {
  status: number;
  /** Its JSON. A test looks into it as it expects it to be. */
  body: any;
}

/** The workerd processes that this process has started: Miniflare does not tell theirs. */
const runtimes: ChildProcess[] = [];
subscribe("child_process", (message) => {
  runtimes.push((message as { process: ChildProcess }).process);
});

export class Gate {
  readonly #miniflare: Miniflare;
  #restarted: () => void = () => {};
  /** What the Worker and the runtime logged. */
  readonly logs: string[] = [];
  url: URL = new URL("http://unset.invalid");

  constructor(options: MiniflareOptions) {
    this.#miniflare = new Miniflare({
      ...options,
      log: new Log(LogLevel.NONE),
      handleStructuredLogs: ({ message }: { message: string }) => this.logs.push(message),
      unsafeHandleRuntimeRestart: () => this.#restarted(),
    });
  }

  /** Waits until it serves. Not through Miniflare's own port, whose proxy would change requests. */
  async ready(): Promise<void> {
    await this.#miniflare.ready;
    this.url = await this.#miniflare.unsafeGetDirectURL("tollgate");
  }

  async stop(): Promise<void> {
    await this.#miniflare.dispose();
  }

  /** Ends workerd by SIGKILL and waits until another one serves on the same folder. */
  async crash(): Promise<void> {
    const runtime = runtimes.findLast(({ spawnfile }) => spawnfile.includes("workerd"));
    if (runtime === undefined || runtime.exitCode !== null) throw new Error("there is no workerd to end");
    const restarted = new Promise<void>((resolve) => (this.#restarted = resolve));
    runtime.kill("SIGKILL");
    await Promise.all([once(runtime, "exit"), restarted]);
    await this.ready();
  }

  /** Takes a shard's object out of memory. */
  async evict(shard: number): Promise<void> {
    await this.#miniflare.unsafeEvictDurableObject("tollgate", "TollgateObject", { name: `shard-${shard}` });
  }

  fetch(path: string, init?: RequestInit): Promise<Response> {
    return fetch(new URL(path, this.url), init);
  }

  /** A request to the service, with its token. */
  async service(method: string, path: string, body?: unknown, init: RequestInit = {}): Promise<Answer> {
    const headers = { authorization: `Bearer ${TOKEN}`, ...(init.headers as Record<string, string>) };
    const text = typeof body === "string" ? body : JSON.stringify(body);
    const content = body === undefined ? {} : { body: text };
    const response = await this.fetch(`/_tollgate/${path}`, { ...init, method, headers, ...content });
    return { status: response.status, body: await response.json() };
  }

  /** The result of one Redis command. */
  async redis(...command: (string | number)[]): Promise<unknown> {
    const { status, body } = await this.service("POST", "redis", command);
    if (status !== 200) throw new Error(`${command[0]}: ${status} ${JSON.stringify(body)}`);
    return body.result;
  }

  /** Tries to acquire a lock. */
  acquire(key: string, body: Record<string, unknown> = {}, init?: RequestInit): Promise<Answer> {
    return this.service("POST", `locks/${key}`, body, init);
  }

  release(key: string, token: string): Promise<Answer> {
    return this.service("DELETE", `locks/${key}`, { token });
  }

  /** Waits until as many callers as that wait for a lock. */
  async untilWaiters(key: string, count: number): Promise<void> {
    await until(async () => (await this.service("GET", `locks/${key}`)).body.waiters === count);
  }
}

/** Starts a gate that ends with the test. */
export async function startGate(t: TestContext, options: GateOptions = {}): Promise<Gate> {
  const folder = await mkdtemp(join(tmpdir(), "tollgate-test-"));
  const gate = new Gate({
    host: "127.0.0.1",
    port: 0,
    resourcePersistencePath: folder,
    workers: await workers(options),
  });
  t.after(async () => {
    await gate.stop();
    await rm(folder, { recursive: true, force: true });
  });
  await gate.ready();
  return gate;
}

async function workers(options: GateOptions): Promise<MiniflareOptions["workers"]> {
  const { config = {}, token = TOKEN, origin, faulty = false, analytics = false } = options;
  const { script, wasm } = await bundle(faulty);
  const shared = { compatibilityDate: "2026-11-01", compatibilityFlags: ["enable_request_signal"] };
  const gate = {
    config: {
      ...shared,
      name: "tollgate",
      manifest: {
        mainModule: "worker.js",
        modulesRoot: "/",
        modules: {
          "worker.js": { type: "esm" as const, contents: script },
          "tollgate_bg.wasm": { type: "wasm" as const, contents: wasm },
        },
      },
      env: {
        TOLLGATE: { type: "durable-object" as const, worker: "tollgate", exportName: "TollgateObject" },
        TOLLGATE_KV: { type: "kv" as const, id: "tollgate" },
        ...(config !== null && { TOLLGATE_CONFIG: { type: "json" as const, value: config as never } }),
        ...(token !== null && { TOLLGATE_TOKEN: { type: "text" as const, value: token } }),
        ...(analytics && { TOLLGATE_ANALYTICS: { type: "analytics-engine-dataset" as const, name: "decisions" } }),
        ...(typeof origin === "string" && { ORIGIN: { type: "text" as const, value: origin } }),
        ...(typeof origin === "object" && { ORIGIN: { type: "worker" as const, worker: "origin" } }),
      },
      exports: { TollgateObject: { type: "durable-object" as const, storage: "sqlite" as const } },
    },
    dev: { unsafeDirectSockets: [{ host: "127.0.0.1", port: 0 }] },
  };
  if (typeof origin !== "object") return [gate];
  const modules = { "origin.js": { type: "esm" as const, contents: origin.script } };
  const manifest = { mainModule: "origin.js", modulesRoot: "/", modules };
  return [gate, { config: { ...shared, name: "origin", manifest } }];
}

/** What is to happen to the next calls to a shard, or to any, of a gate that is `faulty`. */
export interface Fault {
  kind: "trap" | "trap-after" | "throw" | "stall" | "hold";
  shard?: number;
  times?: number;
}

export async function inject(gate: Gate, fault: Fault): Promise<void> {
  await gate.fetch("/faults", { method: "POST", body: JSON.stringify({ times: 1, ...fault }) });
}

/** Waits until a condition holds; the test's own time-out ends it. */
export async function until(condition: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 10));
}
