// What is behind the gate.

import { type Env, StoreError } from "./env.ts";

/** Sends the request on as it is. When the client goes, so does this request. */
export async function forward(request: Request, env: Env): Promise<Response> {
  const origin = env.ORIGIN;
  if (origin === undefined || origin === "") return demo(request);
  let onward = new Request(request, { redirect: "manual", signal: request.signal });
  if (typeof origin === "string") onward = new Request(target(request.url, origin), onward);
  try {
    return await (typeof origin === "string" ? fetch(onward) : origin.fetch(onward));
  } catch (error) {
    return unreachable(error);
  }
}

/** The same path and query at the origin, below the origin's own path. */
function target(from: string, origin: string): string {
  const [url, base] = [new URL(from), URL.canParse(origin) ? new URL(origin) : undefined];
  if (base === undefined || !["http:", "https:"].includes(base.protocol) || base.search + base.hash !== "") {
    const expected = `expected a URL such as "https://api.example.com/v1", got ${JSON.stringify(origin)}`;
    throw new StoreError(`ORIGIN: ${expected}`, "invalid-config");
  }
  return base.origin + base.pathname.replace(/\/$/, "") + url.pathname + url.search;
}

/** The origin's response with more header fields. Its body is passed on unread. */
export function withHeaders(response: Response, headers: [string, string][]): Response {
  if (headers.length === 0) return response;
  const { webSocket } = response;
  // A response that was fetched cannot be changed, and a new one does not take the socket of an upgrade by itself.
  const copy = webSocket
    ? new Response(null, { status: response.status, headers: response.headers, webSocket })
    : new Response(response.body, response);
  for (const [name, value] of headers) copy.headers.append(name, value);
  return copy;
}

/** The origin is down, or broke off before it answered: its failure, not the gate's. */
function unreachable(error: unknown): Response {
  console.error("tollgate: the origin did not answer:", error);
  const problem = { type: "about:blank", title: "Bad Gateway", status: 502, detail: "The origin did not answer." };
  return new Response(JSON.stringify(problem), {
    status: 502,
    headers: { "content-type": "application/problem+json", "cache-control": "no-store" },
  });
}

function demo(request: Request): Response {
  const { pathname } = new URL(request.url);
  const message = "Hello from the demo origin. Set ORIGIN to the URL that Tollgate shall stand in front of.";
  return Response.json({ message, method: request.method, path: pathname });
}
