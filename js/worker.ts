// The Worker: a gate in front of the origin, and the service under /_tollgate/.

import { perform, type Step } from "./calls.ts";
import { codeOf, configText, type Env, messageOf } from "./env.ts";
import { forward, withHeaders } from "./origin.ts";
import { core, currentGeneration, guarded } from "./wasm.ts";

export { TollgateObject } from "./object.ts";

/** The largest body the service reads, in bytes. */
const MAX_BODY = 4 << 20;

export default {
  async fetch(request, env, ctx): Promise<Response> {
    try {
      const url = new URL(request.url);
      if (!isService(url.pathname)) return await gate(request, url, env, ctx);
      return await serve(request, url.pathname + url.search, env, ctx).catch(serviceFailure);
    } catch (error) {
      return failure(error);
    }
  },
} satisfies ExportedHandler<Env>;

async function gate(request: Request, url: URL, env: Env, ctx: ExecutionContext): Promise<Response> {
  const begin = (): core.Exchange =>
    open(env).check(request.method, url.host, url.pathname, url.search, request.headers, request.cf);
  const { response, afterwards } = await drive(begin, env, (exchange) => analyze(exchange, env));
  if (afterwards?.length) ctx.waitUntil(perform(afterwards, env));
  if (response?.status === undefined) return withHeaders(await forward(request, env), response?.headers ?? []);
  return respond(response);
}

function respond(response: Step["response"]): Response {
  return new Response(response?.body ?? "", { status: response?.status ?? 500, headers: response?.headers ?? [] });
}

/** Odd spellings too: the origin must not see a token that was meant for us. Most paths need no second look. */
function isService(path: string): boolean {
  if (path.startsWith("/_tollgate/")) return true;
  return /_tollgate|%/i.test(path) && guarded(() => core.isService(path));
}

async function serve(request: Request, path: string, env: Env, ctx: ExecutionContext): Promise<Response> {
  const refusal = guarded(() => open(env).screen(request.headers)) as Step["response"];
  if (refusal !== undefined) return respond(refusal);
  const body = await read(request);
  if (body === undefined) return Response.json({ error: `ERR body: expected at most ${MAX_BODY} bytes` }, { status: 413 });
  const random = crypto.getRandomValues(new Uint8Array(16));
  const now = Date.now();
  let hangUp = (): void => {};
  request.signal.addEventListener("abort", () => hangUp());
  const begin = (): core.Exchange => {
    const exchange = open(env).serve(request.method, path, request.headers, body, random, now);
    const born = currentGeneration();
    hangUp = () => {
      if (born !== currentGeneration()) return; // The queue went with the instance.
      const call = guarded(() => exchange.hangUp());
      if (call !== undefined) ctx.waitUntil(perform([call], env));
    };
    return exchange;
  };
  const done = drive(begin, env);
  // A client that hangs up ends this request, but not what is in waitUntil: the queue must hear of it.
  ctx.waitUntil(done.then(() => {}, () => {}));
  const { response, afterwards } = await done;
  hangUp = () => {};
  if (afterwards?.length) ctx.waitUntil(perform(afterwards, env));
  return respond(response);
}

/** Makes the calls of an exchange until it has a response. */
async function drive(begin: () => core.Exchange, env: Env, last?: (exchange: core.Exchange) => void): Promise<Step> {
  let exchange = guarded(begin);
  let generation = currentGeneration();
  let step = exchange.step() as Step;
  while (step.calls !== undefined) {
    const answers = await perform(step.calls, env);
    step = guarded(() => {
      if (generation !== currentGeneration()) {
        // Another request's trap took this exchange with it. Its beginning is a function of the request alone.
        exchange = begin();
        generation = currentGeneration();
      }
      return exchange.resume(answers, Date.now()) as Step;
    });
  }
  if (generation === currentGeneration()) last?.(exchange);
  if (generation === currentGeneration()) exchange.free();
  return step;
}

/** Writes how each policy decided to Workers Analytics Engine, where that is bound. It never fails a request. */
function analyze(exchange: core.Exchange, env: Env): void {
  const dataset = env.TOLLGATE_ANALYTICS;
  if (dataset === undefined) return;
  try {
    const decisions = guarded(() => exchange.decisions());
    for (let i = 0; i + 1 < decisions.length; i += 2) {
      const [policy = "", outcome = ""] = decisions.slice(i, i + 2);
      dataset.writeDataPoint({ indexes: [policy], blobs: [policy, outcome], doubles: [1] });
    }
  } catch (error) {
    console.error("tollgate: the decisions were not written to Analytics Engine:", error);
  }
}

let opened: core.Gate | undefined;
let openedIn = -1;

function open(env: Env): core.Gate {
  if (opened === undefined || openedIn !== currentGeneration()) {
    opened = new core.Gate(configText(env), env.TOLLGATE_TOKEN, Math.random());
    openedIn = currentGeneration();
  }
  return opened;
}

/** The whole body, or `undefined` when it is too large. */
async function read(request: Request): Promise<Uint8Array | undefined> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of request.body ?? []) {
    length += chunk.byteLength;
    if (length > MAX_BODY) return undefined;
    chunks.push(chunk);
  }
  const body = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    body.set(chunk, at);
    at += chunk.byteLength;
  }
  return body;
}

/** The same in the service's own form. */
function serviceFailure(error: unknown): Response {
  console.error("tollgate:", error);
  const isConfig = codeOf(error) === "invalid-config";
  const text = isConfig ? `ERR ${messageOf(error)}` : "ERR the service failed";
  return Response.json({ error: text, code: codeOf(error) }, { status: isConfig ? 500 : 503 });
}

/** A configuration that cannot be read, or a bug: never a silent pass, never a 429. */
function failure(error: unknown): Response {
  const isConfig = codeOf(error) === "invalid-config";
  console.error("tollgate:", error);
  const type = isConfig
    ? "about:blank"
    : "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
  const status = isConfig ? 500 : 503;
  const title = isConfig ? "The gate's configuration is invalid" : "The gate failed";
  const detail = isConfig ? messageOf(error) : undefined;
  const headers: Record<string, string> = { "content-type": "application/problem+json" };
  if (!isConfig) headers["retry-after"] = "1";
  return new Response(JSON.stringify({ type, title, status, detail }), { status, headers });
}
