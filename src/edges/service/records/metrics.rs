//! `/_tollgate/metrics` for a Prometheus: OpenMetrics 1.0, or the older text format 0.0.4 when that is asked for.
//!
//! Counters carry their shard: when one does not answer, its lines are missing for a while, and no sum goes down, which
//! Prometheus would take for a restart.

use std::fmt::Write as _;

use super::answer::{Found, Row};
use crate::edges::exchange::Response;
use crate::engine::accept::{self as types, names};
use crate::engine::headers::Body;
use crate::rules::series::record::Outcome;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn respond(found: &Found, shards: usize, accept: &str) -> Response {
    let is_open = names(accept, types::OPENMETRICS);
    let text = Text::new(is_open).write(found, shards);
    Response::new(200, Body { media_type: if is_open { OPENMETRICS } else { PLAIN }, text })
}

struct Text {
    out: String,
    is_open: bool,
}

impl Text {
    const fn new(is_open: bool) -> Self {
        Self { out: String::new(), is_open }
    }

    fn write(mut self, found: &Found, shards: usize) -> String {
        self.family("tollgate_build", Kind::Info, "The version that answers.");
        self.sample("tollgate_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        self.family("tollgate_shard_up", Kind::Gauge, "Whether the shard answered this scrape.");
        for shard in 0..shards {
            self.sample(
                "tollgate_shard_up",
                &[("shard", &shard.to_string())],
                u64::from(!found.failed.contains(&shard)),
            );
        }
        for (name, help, column) in [
            ("tollgate_shard_keys", "Keys that the shard holds, expired ones that were not reclaimed yet included.", 0),
            ("tollgate_shard_bytes", "Bytes of those keys and their values, about.", 1),
        ] {
            self.family(name, Kind::Gauge, help);
            for (shard, rows) in &found.shards {
                let number = rows.get(column).and_then(|reply| reply.clone().into_count().ok());
                self.sample(name, &[("shard", &shard.to_string())], number.unwrap_or(0));
            }
        }
        self.family("tollgate_decisions", Kind::Counter, "Decisions of policies since the shard was first used.");
        for (shard, rows) in &found.shards {
            let shard = shard.to_string();
            for row in rows.iter().skip(2) {
                let Ok(mut row) = Row::of(row.clone()) else { continue };
                let (Ok(policy), Ok(counts)) = (row.text(), row.counts()) else { continue };
                for outcome in Outcome::ALL {
                    let labels = [("policy", policy.as_str()), ("outcome", outcome.name()), ("shard", &shard)];
                    self.sample("tollgate_decisions_total", &labels, counts.of(outcome));
                }
            }
        }
        if self.is_open {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        // OpenMetrics names the family, the older format the samples.
        let (suffix, kind) = match (kind, self.is_open) {
            (Kind::Gauge, _) => ("", "gauge"),
            (Kind::Counter, true) => ("", "counter"),
            (Kind::Counter, false) => ("_total", "counter"),
            (Kind::Info, true) => ("", "info"),
            (Kind::Info, false) => ("_info", "gauge"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.out, "{name}{{{}}} {value}", labels.join(","));
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
    Info,
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
