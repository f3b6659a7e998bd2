// Carries the core's calls to objects and to KV, and brings the answers back in time.

import { type Env, StoreError } from "./env.ts";
import { core, guarded } from "./wasm.ts";

/** A call the core wants made. */
export interface Call {
  /** The shard it is for; without one it is for KV. */
  shard: number | undefined;
  path: string;
  bestEffort: boolean;
  body: Uint8Array;
  timeoutMs: number;
}

/** What comes next in an exchange. */
export interface Step {
  calls?: Call[];
  response?: { status: number | undefined; headers: [string, string][]; body: string };
  afterwards?: Call[];
}

/** The answers to `calls`, in their order: bytes, or exceptions. Never rejects, and ends in time. */
export function perform(calls: Call[], env: Env): Promise<unknown[]> {
  return Promise.all(calls.map((call) => performOne(call, env).catch((error: unknown) => error)));
}

async function performOne(call: Call, env: Env): Promise<Uint8Array> {
  const answer = call.shard === undefined ? callKv(call, env) : callShard(call, env);
  return withTimeout(answer, call.timeoutMs);
}

async function callShard(call: Call, env: Env): Promise<Uint8Array> {
  const stub = env.TOLLGATE.getByName(`shard-${call.shard}`);
  const response = await stub.fetch(`http://shard${call.path}`, { method: "POST", body: call.body });
  if (response.ok) return new Uint8Array(await response.arrayBuffer());
  const { code, message } = (await response.json()) as { code: string; message: string };
  throw new StoreError(message, code);
}

async function callKv(call: Call, env: Env): Promise<Uint8Array> {
  const namespace = env.TOLLGATE_KV;
  if (namespace === undefined) throw new StoreError("there is no binding TOLLGATE_KV");
  return (await guarded(() => new core.Kv(namespace).exec(call.body, call.bestEffort))) as Uint8Array;
}

/** A timer in JavaScript: one inside of the instance would die with it, and an object that stalls answers nothing. */
function withTimeout<T>(promise: Promise<T>, millis: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = (): void => reject(new StoreError(`the store did not answer within ${millis} ms`));
    const timer = setTimeout(late, millis);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
