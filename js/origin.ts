// What is behind the gate.

import type { Env } from "./env.ts";

/** Sends the request on as it is. When the client goes, so does this request. */
export function forward(request: Request, env: Env): Promise<Response> | Response {
  const origin = env.ORIGIN;
  if (origin === undefined || origin === "") return demo(request);
  const onward = new Request(request, { redirect: "manual", signal: request.signal });
  if (typeof origin !== "string") return origin.fetch(onward);
  return fetch(new Request(target(request.url, origin), onward));
}

/** The same path and query at the origin, below the origin's own path. */
function target(from: string, origin: string): string {
  const [url, base] = [new URL(from), new URL(origin)];
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

function demo(request: Request): Response {
  const { pathname } = new URL(request.url);
  const message = "Hello from the demo origin. Set ORIGIN to the URL that Tollgate shall stand in front of.";
  return Response.json({ message, method: request.method, path: pathname });
}
