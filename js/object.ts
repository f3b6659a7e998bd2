// One shard: a Durable Object around the core's keyspace. It keeps promises and timers; what they mean is the core's.

import { DurableObject } from "cloudflare:workers";

import { type Env, codeOf, configText, messageOf, StoreError } from "./env.ts";
import { core, currentGeneration, guarded } from "./wasm.ts";

/** How often expired rows are removed. Expiry itself never waits for that. */
const CLEAN_UP_MS = 60 * 60 * 1000;

/** The longest time a JavaScript timer takes; above it, it runs at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

interface Waiter {
  body: Uint8Array;
  resolve(reply: Uint8Array): void;
  reject(error: unknown): void;
}

export class TollgateObject extends DurableObject<Env> {
  #shard: core.ObjectShard | undefined;
  #generation = -1;
  /** Callers in the queue of a lock, by their token. */
  readonly #waiters = new Map<string, Waiter>();
  #turnTimer: ReturnType<typeof setTimeout> | undefined;
  #flushTimer: ReturnType<typeof setTimeout> | undefined;
  #flushAt = Infinity;
  #cleanUpIsSet = false;

  /**
   * `POST /exec/strict` and `/exec/relaxed` run a batch, `/lock` waits for a lock, `/leave` gives up waiting. Bodies
   * and answers are RESP. Whatever goes wrong is a response: an exception could leave the caller hanging.
   */
  override async fetch(request: Request): Promise<Response> {
    try {
      const body = new Uint8Array(await request.arrayBuffer());
      return new Response(await this.handle(new URL(request.url).pathname, body, request.signal));
    } catch (error) {
      return Response.json({ code: codeOf(error), message: messageOf(error) }, { status: 500 });
    }
  }

  async handle(path: string, body: Uint8Array, signal: AbortSignal): Promise<Uint8Array> {
    this.#setCleanUp();
    switch (path) {
      case "/exec/strict":
        return this.#exec(body, true);
      case "/exec/relaxed":
        return this.#exec(body, false);
      case "/lock":
        return this.#lock(body, signal);
      case "/leave":
        this.#leave(body);
        return new Uint8Array();
      default:
        throw new StoreError(`this shard does not know ${path}`, "protocol-error");
    }
  }

  override async alarm(): Promise<void> {
    const next = this.#with((shard) => shard.cleanUp(Date.now()));
    if (next === undefined) this.#cleanUpIsSet = false;
    else await this.ctx.storage.setAlarm(Math.max(next, Date.now() + CLEAN_UP_MS));
  }

  #exec(body: Uint8Array, strict: boolean): Uint8Array {
    const replies = this.#with((shard) => shard.exec(body, strict, Date.now()));
    this.#flushLater();
    this.#callTurns();
    return replies;
  }

  #lock(body: Uint8Array, signal: AbortSignal): Promise<Uint8Array> | Uint8Array {
    const reply = this.#with((shard) => shard.lock(body, Date.now()));
    if (reply !== undefined) return reply;
    const token = guarded(() => core.ObjectShard.waiterToken(body));
    const answer = new Promise<Uint8Array>((resolve, reject) => {
      this.#waiters.set(token, { body, resolve, reject });
    });
    signal.addEventListener("abort", () => this.#forget(token));
    this.#callTurns();
    return answer;
  }

  #leave(body: Uint8Array): void {
    const token = this.#with((shard) => shard.leave(body, Date.now()));
    this.#forget(token);
    this.#callTurns();
  }

  #forget(token: string): void {
    const waiter = this.#waiters.get(token);
    this.#waiters.delete(token);
    waiter?.reject(new StoreError("the caller left"));
  }

  /** Answers everybody whose turn it is or whose wait is over, and sets a timer for the next. */
  #callTurns(): void {
    if (this.#waiters.size === 0) return;
    const now = Date.now();
    for (const token of this.#with((shard) => shard.turns(now))) {
      const waiter = this.#waiters.get(token);
      if (waiter === undefined) continue; // Somebody who polls asks by himself.
      this.#waiters.delete(token);
      try {
        waiter.resolve(this.#with((shard) => shard.turn(waiter.body, now)));
      } catch (error) {
        waiter.reject(error);
      }
    }
    if (this.#turnTimer !== undefined) clearTimeout(this.#turnTimer);
    const next = this.#with((shard) => shard.nextTurn(now));
    if (next === undefined) return;
    const delay = Math.min(Math.max(next - now, 1), MAX_TIMER_MS);
    this.#turnTimer = setTimeout(() => this.#report(() => this.#callTurns()), delay);
  }

  /** Relaxed counters share a row: they are written together a moment later, and what was recorded of them as well. */
  #flushLater(): void {
    const at = this.#with((shard) => shard.nextFlush());
    if (at === undefined || at >= this.#flushAt) return;
    if (this.#flushTimer !== undefined) clearTimeout(this.#flushTimer);
    this.#flushAt = at;
    this.#flushTimer = setTimeout(() => {
      this.#flushAt = Infinity;
      this.#report(() => this.#with((shard) => shard.flush(Date.now())));
      this.#report(() => this.#flushLater());
    }, Math.max(at - Date.now(), 1));
  }

  #setCleanUp(): void {
    if (this.#cleanUpIsSet) return;
    this.#cleanUpIsSet = true;
    const set = async (): Promise<void> => {
      const alarm = await this.ctx.storage.getAlarm();
      if (alarm === null) await this.ctx.storage.setAlarm(Date.now() + CLEAN_UP_MS);
    };
    this.ctx.waitUntil(set());
  }

  #report(work: () => void): void {
    try {
      work();
    } catch (error) {
      console.error("tollgate: a shard failed outside of a request:", error);
    }
  }

  #with<T>(work: (shard: core.ObjectShard) => T): T {
    const shard = this.#open();
    return guarded(() => work(shard));
  }

  /** The shard, opened anew from its rows when the instance was replaced. */
  #open(): core.ObjectShard {
    return guarded(() => {
      if (this.#shard === undefined || this.#generation !== currentGeneration()) {
        // The queue was in the memory that is gone. Those who waited may ask again.
        for (const token of [...this.#waiters.keys()]) this.#forget(token);
        this.#shard = new core.ObjectShard(this.ctx.storage, configText(this.env), this.env.TOLLGATE_TOKEN, Math.random());
        this.#generation = currentGeneration();
      }
      return this.#shard;
    });
  }
}
