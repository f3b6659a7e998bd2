// Traffic for the gate, and what it says it has seen.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

import { type Gate, TOKEN } from "./gate.ts";

export const OUTCOMES = ["allowed", "denied", "degraded", "shadowed"] as const;

/** How many decisions of a policy had each outcome. */
export type Counts = Record<(typeof OUTCOMES)[number], number>;

export const counts = (allowed: number, denied = 0, degraded = 0, shadowed = 0): Counts => ({ allowed, denied, degraded, shadowed });

/** A policy that counts by the header `x-<name>`. A busy machine must not make its store look broken. */
export const keyed = (name: string, quota: string, fields: Record<string, unknown> = {}): Record<string, unknown> => ({
  name,
  key: { header: `x-${name}` },
  limit: quota,
  missing_key: "skip",
  timeout_ms: 30_000,
  ...fields,
});

/** Sends requests, `width` at a time; the status of each. */
export async function send(gate: Gate, headers: Record<string, string>[], width = 32, path = "/"): Promise<number[]> {
  const statuses: number[] = [];
  const waiting = headers.entries();
  const client = async (): Promise<void> => {
    for (const [index, fields] of waiting) {
      const response = await gate.fetch(path, { headers: fields });
      await response.arrayBuffer();
      statuses[index] = response.status;
    }
  };
  await Promise.all(Array.from({ length: width }, client));
  return statuses;
}

export const tally = (statuses: number[], status: number): number => statuses.filter((one) => one === status).length;

/** Each policy's totals in the series. Its points have to be in order, with none missing, and to add up. */
export async function totals(gate: Gate, query = ""): Promise<Record<string, Counts>> {
  const { status, body } = await gate.service("GET", `series${query}`);
  assert.equal(status, 200, JSON.stringify(body));
  assert.deepEqual([body.partial, body.failed_shards], [false, []]);
  const step = body.rollup_ms;
  const [first, last] = [body.since_ms, body.until_ms].map((at: number) => at - (at % step)) as [number, number];
  const times = Array.from({ length: (last - first) / step + 1 }, (_, i) => first + i * step);
  const found: Record<string, Counts> = {};
  for (const { policy, outcome, total, points } of body.series) {
    assert.deepEqual(points.map(([at]: [number]) => at), times);
    assert.equal(points.reduce((sum: number, [, count]: [number, number]) => sum + count, 0), total);
    // A line that came twice would not be seen in what follows.
    assert.equal(found[policy]?.[outcome as keyof Counts], undefined, `${policy} ${outcome} twice`);
    found[policy] = { ...found[policy], [outcome]: total } as Counts;
  }
  return found;
}

/** A question to the service, with its whole response. */
export function ask(gate: Gate, path: string, headers: Record<string, string> = {}): Promise<Response> {
  return gate.fetch(`/_tollgate/${path}`, { headers: { authorization: `Bearer ${TOKEN}`, ...headers } });
}

/** Reads RFC 4180: each row by the names in the first. What is not CSV is refused. */
export function parseCsv(text: string): Record<string, string>[] {
  assert.ok(text.endsWith("\r\n"), "the last line ends too");
  const cell = /("(?:[^"]|"")*"|[^",\r\n]*)(,|\r\n)/y;
  const rows: string[][] = [[]];
  while (cell.lastIndex < text.length) {
    const at = cell.lastIndex;
    const match = cell.exec(text);
    assert.ok(match, `no CSV: ${text.slice(at, at + 60)}`);
    const [, raw = "", end] = match;
    rows.at(-1)?.push(raw.startsWith('"') ? raw.slice(1, -1).replaceAll('""', '"') : raw);
    if (end === "\r\n") rows.push([]);
  }
  rows.pop();
  const [names = [], ...others] = rows;
  return others.map((row) => {
    assert.equal(row.length, names.length, row.join("|"));
    return Object.fromEntries(names.map((name, i) => [name, row[i] ?? ""]));
  });
}

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

export interface Family {
  name: string;
  type: string;
  help: string;
  samples: Sample[];
}

const PARSER = fileURLToPath(new URL("parse_metrics.py", import.meta.url));

/** What an `Accept` of Prometheus asks for. */
export const OPENMETRICS = "application/openmetrics-text; version=1.0.0";

/** Scrapes the metrics as Prometheus does and reads them with its own parser. */
export async function scrape(gate: Gate, accept = OPENMETRICS): Promise<Family[]> {
  const response = await ask(gate, "metrics", { accept });
  assert.equal(response.status, 200);
  const isOpen = accept.includes("openmetrics");
  const type = isOpen ? OPENMETRICS : "text/plain; version=0.0.4";
  assert.equal(response.headers.get("content-type"), `${type}; charset=utf-8`);
  return parseMetrics(isOpen ? "openmetrics" : "text", await response.text());
}

/** `scripts/test` says which Python has the parser. */
function parseMetrics(format: "openmetrics" | "text", input: string): Family[] {
  const python = process.env.TOLLGATE_PYTHON ?? "/usr/bin/python3";
  return JSON.parse(execFileSync(python, [PARSER, format], { input, encoding: "utf8" }));
}

export function samples(families: Family[], family: string): Sample[] {
  return families.find(({ name }) => name === family)?.samples ?? [];
}

/** The counters of decisions, by policy, of all shards together. */
export function decisions(families: Family[]): Record<string, Counts> {
  const found: Record<string, Counts> = {};
  for (const { labels, value } of samples(families, "tollgate_decisions")) {
    const policy = (found[labels.policy ?? ""] ??= counts(0));
    policy[labels.outcome as keyof Counts] += value;
  }
  return found;
}
