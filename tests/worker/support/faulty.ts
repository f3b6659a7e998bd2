// The Worker with faults. It runs in workerd, so it is built by `bundle.ts` and not loaded by Node.

import worker, { TollgateObject as SoundObject } from "../../../js/worker.ts";
import type { Env } from "../../../js/env.ts";
import { core, guarded } from "../../../js/wasm.ts";

/**
 * Traps before the object's work or after it, throws out of the object, never answers, or waits with its work until
 * the faults are cleared.
 */
type Kind = "trap" | "trap-after" | "throw" | "stall" | "hold";

/** What happens to the next `times` calls to a shard, or to any. */
interface Fault {
  kind: Kind;
  shard?: number;
  times: number;
}

/** `POST /faults` adds one, `DELETE` clears them, `GET` shows them. */
let faults: Fault[] = [];

/** What was written to Analytics Engine, whose local stand-in keeps nothing: `GET /points`. */
const points: AnalyticsEngineDataPoint[] = [];
/** After `POST /points`, writing throws. */
let pointsFail = false;

const dataset: AnalyticsEngineDataset = {
  writeDataPoint(point): void {
    if (pointsFail) throw new Error("injected: the data point was refused");
    if (point !== undefined) points.push(point);
  },
};

const trap = (core as unknown as { trap(): void }).trap;

export class TollgateObject extends SoundObject {
  override async fetch(request: Request): Promise<Response> {
    // How many rows it has written since it is in memory.
    if (new URL(request.url).pathname === "/written") {
      const [counted] = this.ctx.storage.sql.exec("SELECT total_changes() AS rows").toArray();
      return Response.json(counted?.rows);
    }
    if (this.#is("throw")) throw new Error("injected: the object threw");
    return super.fetch(request);
  }

  override async handle(path: string, body: Uint8Array, signal: AbortSignal): Promise<Uint8Array> {
    if (this.#is("stall")) await new Promise(() => {});
    if (this.#is("hold")) {
      // By timers of its own: one request's promise cannot be settled by another.
      for (const held = faults; faults === held; ) await new Promise((resolve) => setTimeout(resolve, 5));
    }
    if (this.#is("trap")) guarded(trap);
    const reply = await super.handle(path, body, signal);
    if (this.#is("trap-after")) guarded(trap);
    return reply;
  }

  /** Whether this call has that fault. */
  #is(kind: Kind): boolean {
    const here = ({ shard }: Fault): boolean => shard === undefined || this.ctx.id.name === `shard-${shard}`;
    const fault = faults.find((candidate) => candidate.kind === kind && candidate.times > 0 && here(candidate));
    if (fault === undefined) return false;
    fault.times -= 1;
    return true;
  }
}

export default {
  async fetch(request, env, ctx): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/faults") {
      if (request.method === "POST") faults.push(await request.json());
      if (request.method === "DELETE") faults = [];
      return Response.json(faults);
    }
    if (pathname === "/points") {
      if (request.method === "POST") pointsFail = true;
      return Response.json(points);
    }
    // A word with an object itself, past the gate and the service.
    if (pathname === "/object") {
      const stub = env.TOLLGATE.getByName(`shard-${searchParams.get("shard")}`);
      return stub.fetch(`http://shard${searchParams.get("path")}`, { method: "POST", body: await request.text() });
    }
    // A Worker that waits for a lock and dies: nobody hears the answer, or says that the caller left.
    if (pathname === "/orphan") {
      const stub = env.TOLLGATE.getByName("shard-0");
      ctx.waitUntil(stub.fetch("http://shard/lock", { method: "POST", body: await request.text() }));
      return new Response();
    }
    const bound = env.TOLLGATE_ANALYTICS === undefined ? env : { ...env, TOLLGATE_ANALYTICS: dataset };
    return worker.fetch(request, bound, ctx);
  },
} satisfies ExportedHandler<Env>;
