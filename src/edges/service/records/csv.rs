//! The same as CSV (RFC 4180), for spreadsheets and scripts.

use super::answer::{Clients, Key, Line};
use crate::edges::exchange::Response;
use crate::engine::headers::Body;

pub(super) fn response(text: String) -> Response {
    Response::new(200, Body { media_type: "text/csv; charset=utf-8; header=present", text })
}

pub(super) fn series(lines: &[Line]) -> String {
    let row = |line: &Line, (at, count): &(u64, u64)| {
        [at.to_string(), line.policy.clone(), line.outcome.to_owned(), count.to_string()]
    };
    table(
        ["time_ms", "policy", "outcome", "count"],
        lines.iter().flat_map(|line| line.points.iter().map(move |point| row(line, point))),
    )
}

pub(super) fn top(keys: &[Key]) -> String {
    let row = |key: &Key| {
        let numbers = [key.count, key.at_most, key.allowed, key.denied, key.degraded, key.shadowed];
        let numbers = numbers.map(|number| number.to_string());
        let [count, at_most, allowed, denied, degraded, shadowed] = numbers;
        [key.policy.clone(), key.key.clone(), count, at_most, allowed, denied, degraded, shadowed]
    };
    table(["policy", "key", "count", "at_most", "allowed", "denied", "degraded", "shadowed"], keys.iter().map(row))
}

pub(super) fn distinct(clients: &[Clients]) -> String {
    table(["policy", "keys"], clients.iter().map(|client| [client.policy.clone(), client.keys.to_string()]))
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut text = head.join(",");
    text.push_str("\r\n");
    for row in rows {
        text.push_str(&row.map(|cell| quoted(&cell)).join(","));
        text.push_str("\r\n");
    }
    text
}

/// A spreadsheet takes a cell that begins with one of these for a formula, and a policy's key is what a client sent.
const FORMULA: [char; 4] = ['=', '+', '-', '@'];

fn quoted(cell: &str) -> String {
    let cell = if cell.starts_with(FORMULA) { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_cells() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a,\"b\"\r\n"), "\"a,\"\"b\"\"\r\n\"");
        assert_eq!(quoted("=cmd()"), "'=cmd()");
        assert_eq!(distinct(&[Clients { policy: "p".to_owned(), keys: 3 }]), "policy,keys\r\np,3\r\n");
    }
}
