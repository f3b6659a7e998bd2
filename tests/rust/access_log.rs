//! 10,000 requests of a real site, played with the log's own clock.

use std::collections::BTreeMap;
use std::io::Read;
use std::rc::Rc;

use tollgate::edges::exchange::Step;
use tollgate::edges::gate::Passage;
use tollgate::engine::matching::Facts;
use tollgate::resp::{decode_batch, encode_replies};
use tollgate::{Bounds, Command, Config, Keyspace, MemoryStore, NoRows, incr_and_check_limit};

use crate::support::{Clock, now_or_never};

struct Hit {
    client: String,
    path: String,
    at_secs: u64,
}

/// Admitted and refused requests by client.
type Counts = BTreeMap<String, (u64, u64)>;

/// The log in the order of its clock: servers write a line when a response ends.
fn log() -> Vec<Hit> {
    let packed = include_bytes!("../data/access.log.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut text).unwrap();
    let mut hits: Vec<Hit> = text.lines().map(hit).collect();
    hits.sort_by_key(|hit| hit.at_secs);
    hits
}

/// `198.19.62.186 - - [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 200 1`
fn hit(line: &str) -> Hit {
    let (client, rest) = line.split_once(' ').unwrap();
    let time = rest.split_once('[').unwrap().1.split_once(" +0000]").unwrap().0;
    let mut parts = time.split(['/', ':']);
    let mut next = || parts.next().unwrap();
    let (day, month, year) = (next(), next(), next());
    assert_eq!((month, year), ("May", "2015"));
    let mut number = || next().parse::<u64>().unwrap();
    let (hours, minutes, seconds) = (number(), number(), number());
    // 2015-05-01 is day 16,556 of the epoch.
    let days = 16_556 + day.parse::<u64>().unwrap() - 1;
    let at_secs = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    let path = rest.split('"').nth(1).unwrap().split(' ').nth(1).unwrap().to_owned();
    Hit { client: client.to_owned(), path, at_secs }
}

/// The plain way: sort, group by client and minute, and cut each group at the limit.
fn plain_count(hits: &[Hit], limit: u64) -> Counts {
    let mut minutes = BTreeMap::<(&str, u64), u64>::new();
    for hit in hits {
        *minutes.entry((&hit.client, hit.at_secs / 60)).or_default() += 1;
    }
    let mut counts = Counts::new();
    for ((client, _), requests) in minutes {
        let (admitted, refused) = counts.entry(client.to_owned()).or_default();
        *admitted += requests.min(limit);
        *refused += requests.saturating_sub(limit);
    }
    counts
}

fn count(hits: &[Hit], mut is_refused: impl FnMut(&Hit) -> bool) -> Counts {
    let mut counts = Counts::new();
    for hit in hits {
        let refused = is_refused(hit);
        let (admitted, refusals) = counts.entry(hit.client.clone()).or_default();
        *(if refused { refusals } else { admitted }) += 1;
    }
    counts
}

#[test]
fn the_seeds_limiter_counts_a_real_log_right() {
    let hits = log();
    for limit in [5, 10, 30] {
        let clock = Clock::default();
        let store = MemoryStore::new(clock.reader(), Bounds::default(), 1);
        let counts = count(&hits, |hit| {
            clock.set(hit.at_secs * 1000);
            now_or_never(incr_and_check_limit(&store, clock.now(), hit.client.as_bytes(), limit)).unwrap()
        });
        assert_eq!(counts, plain_count(&hits, limit));
        let refused: u64 = counts.values().map(|(_, refused)| refused).sum();
        println!("{limit} a minute: {refused} of {} requests of {} clients refused", hits.len(), counts.len());
        assert!(refused > 0);
    }
}

#[test]
fn the_gate_decides_a_real_log_right() {
    let hits = log();
    assert_eq!(hits.len(), 10_000);
    for limit in [5, 10, 30] {
        let json = format!(r#"{{"policies":[{{"name":"ip","limit":"{limit}/minute","missing_key":"deny"}}]}}"#);
        let config = Rc::new(Config::parse(&json).unwrap());
        let (clock, mut keyspace) = (Clock::default(), Keyspace::new(NoRows, Bounds::default(), 1));
        let counts = count(&hits, |hit| {
            clock.set(hit.at_secs * 1000);
            let header = |name: &str| (name == "cf-connecting-ip").then(|| hit.client.clone());
            let facts = Facts { method: "GET", host: "", path: &hit.path, query: "", header: &header, cf: &|_| None };
            let (mut passage, Step::Calls(calls)) = Passage::begin(&config, &std::rc::Rc::default(), &facts) else {
                panic!("nothing to ask")
            };
            let answers = calls.into_iter().map(|call| {
                let batch = decode_batch(&call.body).unwrap();
                let reply = |argv| keyspace.apply(clock.now(), &Command::parse(argv).unwrap());
                Ok(encode_replies(&batch.into_iter().map(reply).collect::<Vec<_>>()))
            });
            let Step::Done { response, .. } = passage.resume(answers.collect(), clock.now()) else { panic!("no end") };
            response.status == Some(429)
        });
        assert_eq!(counts, plain_count(&hits, limit));
    }
}
