//! Time-series counters: writing, reading, and the memory they take. Prints medians, and ratios within this run.
//!
//! `scripts/bench` runs it. Rounds of the candidates are interleaved, so that a slow moment of the machine meets them all.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a benchmark reads the clock, and should stop when it goes wrong"
)]
#![allow(dead_code, unreachable_pub, reason = "it borrows the tests' support")]

#[path = "../tests/rust/support/mod.rs"]
mod support;

use std::time::Instant;

use support::disk::World;
use support::redis::RealRedis;
use support::server::Server;
use support::{command, now_or_never};
use tollgate::{
    Bounds, Counters, Durability, DurableObjectStore, Id, Increment, Keyspace, Labels, Layout, MemoryStore, Model,
    NoRows, Recorder, Recording, Rollups, Shard, Store, Timestamp,
};

const ROUNDS: usize = 15;
const MODEL: Model = Model::new(20);
const ROOMY: Bounds = Bounds {
    key_bytes: 1024,
    value_bytes: 256 << 20,
    batch_commands: 1000,
    reply_bytes: 2 << 20,
    keys: 100_000_000,
    total_bytes: 4 << 30,
    cache_bytes: 1 << 30,
};

fn main() {
    // `cargo bench` passes its own flags; `cargo test --benches` only wants to know that it builds.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let server = Server::redis();
    let redis = RealRedis::connect(server.port);
    let now = redis_time(&redis);
    writing(now, &redis);
    reading(now, &redis);
    recording(now);
    waiting(now);
    memory(now);
}

fn redis_time(redis: &RealRedis) -> Timestamp {
    let reply = redis.transaction(&[vec![b"TIME".to_vec()]]).remove(0).into_array().unwrap();
    let tollgate::Reply::Bulk(secs) = &reply[0] else { panic!("no time") };
    Timestamp::from_millis(String::from_utf8_lossy(secs).parse::<u64>().unwrap() * 1000)
}

/// Median time of each candidate, in microseconds.
fn race(candidates: &mut [(&str, &mut dyn FnMut(usize))]) -> Vec<f64> {
    let mut times = vec![Vec::new(); candidates.len()];
    for round in 0..ROUNDS {
        for ((_, run), times) in candidates.iter_mut().zip(&mut times) {
            let start = Instant::now();
            run(round);
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    let medians = times.into_iter().map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    medians.collect()
}

fn report(title: &str, unit: &str, names: &[&str], medians: &[f64], of_each: f64) {
    println!("\n{title}");
    for (name, median) in names.iter().zip(medians) {
        println!("  {name:<42} {:>10.2} us {unit}   {:>6.2}x", median / of_each, medians[0] / median);
    }
}

fn items(now: Timestamp, round: usize) -> Vec<Increment> {
    let item = |n: usize| Increment { model: MODEL, id: Id::Integer((round * 160 + n) as i64), at: now, count: 1 };
    (0..160).map(item).collect()
}

fn writing(now: Timestamp, redis: &RealRedis) {
    let memory = Counters::new(MemoryStore::new(move || now, ROOMY, 1));
    let one_by_one = Counters::new(MemoryStore::new(move || now, ROOMY, 1));
    let world = World::new(move || now, 8, Durability::Strict);
    let shards = Counters::new(DurableObjectStore::new(&world));
    let real = Counters::new(redis).with_layout(Layout::sentry());
    let multi = |counters: &dyn Fn(&[Increment]), round| counters(&items(now, round));
    let medians = race(&mut [
        ("memory", &mut |round| multi(&|items| now_or_never(memory.incr_multi(now, items)).unwrap(), round)),
        ("memory, one by one", &mut |round| {
            for item in items(now, round) {
                now_or_never(one_by_one.incr_multi(now, &[item])).unwrap();
            }
        }),
        ("shards", &mut |round| multi(&|items| now_or_never(shards.incr_multi(now, items)).unwrap(), round)),
        ("redis", &mut |round| multi(&|items| now_or_never(real.incr_multi(now, items)).unwrap(), round)),
    ]);
    let names = [
        "incr_multi, memory",
        "incr, memory, one call for each",
        "incr_multi, 8 shards, encoded and stored",
        "incr_multi, redis-server over loopback",
    ];
    report("Writing: 160 items at 3 levels, 960 commands", "an item", &names, &medians, 160.0);
}

fn reading(now: Timestamp, redis: &RealRedis) {
    const HOUR: u64 = 3_600_000;
    let ids: Vec<_> = (0..10).map(Id::Integer).collect();
    let memory = Counters::new(MemoryStore::new(move || now, ROOMY, 1));
    let world = World::new(move || now, 8, Durability::Strict);
    let shards = Counters::new(DurableObjectStore::new(&world));
    let real = Counters::new(redis).with_layout(Layout::sentry());
    for hour in 0..25 {
        let at = Timestamp::from_millis(now.as_millis() - hour * HOUR);
        let items: Vec<_> =
            ids.iter().map(|id| Increment { model: MODEL, id: id.clone(), at, count: 1 + hour }).collect();
        now_or_never(memory.incr_multi(now, &items)).unwrap();
        now_or_never(shards.incr_multi(now, &items)).unwrap();
        now_or_never(real.incr_multi(now, &items)).unwrap();
    }
    let start = Timestamp::from_millis(now.as_millis() - 24 * HOUR);
    fn points<S: Store>(counters: &Counters<S>, now: Timestamp, ids: &[Id], start: Timestamp) {
        let range = now_or_never(counters.get_range(now, MODEL, ids, start, now, None)).unwrap().complete().unwrap();
        assert_eq!(range.values().map(Vec::len).sum::<usize>(), 250);
    }
    let medians = race(&mut [
        ("memory", &mut |_| points(&memory, now, &ids, start)),
        ("shards", &mut |_| points(&shards, now, &ids, start)),
        ("redis", &mut |_| points(&real, now, &ids, start)),
    ]);
    let names =
        ["get_range, memory", "get_range, 8 shards, encoded and stored", "get_range, redis-server over loopback"];
    report("Reading: 24 h of 10 keys by the hour, 250 points", "a range", &names, &medians, 1.0);
}

fn recording(now: Timestamp) {
    const DECISIONS: usize = 20_000;
    let keyspace = || Keyspace::new(NoRows, ROOMY, 1);
    let recorder = |labels| {
        let (rollups, flush) = (Rollups::default(), tollgate::Duration::from_secs(10));
        Recorder::new(Recording { rollups, capacity: 500, flush, labels })
    };
    let takes = |option: &str| -> Vec<_> {
        let take = |n: usize| {
            command(&format!("TG.TAKE{option} 1 gate:p:fixed-window:{{ip:{}}} fixed-window 9 60000", n * n % 3001))
        };
        (0..DECISIONS).map(take).collect()
    };
    let (plain, recorded) = (takes(""), takes(" RECORD"));
    let run = |keyspace: &mut Keyspace, takes: &[tollgate::Command]| {
        takes.iter().for_each(|take| drop(keyspace.apply(now, take)));
    };
    let mut without = keyspace();
    let mut readable = keyspace().recording(recorder(Labels::pseudonyms(b"secret").unwrap().readable()));
    let mut hidden = keyspace().recording(recorder(Labels::pseudonyms(b"secret").unwrap()));
    let medians = race(&mut [
        ("without", &mut |_| run(&mut without, &plain)),
        ("readable", &mut |_| run(&mut readable, &recorded)),
        ("pseudonyms", &mut |_| run(&mut hidden, &recorded)),
    ]);
    let names = ["TG.TAKE", "TG.TAKE RECORD, readable keys", "TG.TAKE RECORD, pseudonyms"];
    report("Recording: decisions on 1,500 partition keys", "a decision", &names, &medians, DECISIONS as f64);
}

/// What an object's requests wait for at the longest: an hour of many clients, flush by flush, and questions about it.
fn waiting(now: Timestamp) {
    const CLIENTS: usize = 1200;
    println!("\nWaiting: an hour of {CLIENTS} clients every 10 s, in one shard");
    for policies in [1, 4] {
        let labels = Labels::pseudonyms(b"secret").unwrap();
        let (rollups, flush) = (Rollups::default(), tollgate::Duration::from_secs(10));
        let recorder = Recorder::new(Recording { rollups, capacity: 500, flush, labels });
        let mut shard = Shard::new(support::disk::Disk::default(), ROOMY, 1).recording(recorder);
        let mut at = now.floor_to(tollgate::Duration::from_secs(3600));
        let mut flushes = Vec::new();
        let mut client = 0;
        for _ in 0..365 {
            for _ in 0..CLIENTS {
                client = (client * 31 + 7) % 30_011;
                let key = |policy| format!("gate:p{policy}:fixed-window:{{ip:{client}}} fixed-window 9 60000");
                let limits: Vec<_> = (0..policies).map(key).collect();
                run(&mut shard, at, &command(&format!("TG.TAKE RECORD 1 {}", limits.join(" "))));
            }
            at = at.saturating_add(tollgate::Duration::from_secs(10));
            while shard.next_flush().is_some_and(|due| due <= at.saturating_add(tollgate::Duration::from_secs(1))) {
                let start = Instant::now();
                shard.flush_due(at.saturating_add(tollgate::Duration::from_secs(1))).unwrap();
                flushes.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        flushes.sort_by(f64::total_cmp);
        let (start, end) = (at.as_millis() - 3_600_000, at.as_millis());
        let asked = ["TG.SERIES", "TG.DISTINCT", "TG.TOP 10 *"].map(|question| {
            [10_000, 3_600_000].map(|rollup| {
                let start_at = Instant::now();
                run(&mut shard, at, &command(&format!("{question} {rollup} {start} {end}")));
                start_at.elapsed().as_secs_f64() * 1e3
            })
        });
        let (median, longest) = (flushes[flushes.len() / 2], flushes[flushes.len() - 1]);
        println!("  {policies} policies: a flush {median:.1} ms, the longest {longest:.1} ms, the hour's end with it");
        println!(
            "    the last hour by 10 s and by the hour: series {:.1}, {:.1} ms; distinct {:.1}, {:.1} ms; top {:.1}, {:.1} ms",
            asked[0][0], asked[0][1], asked[1][0], asked[1][1], asked[2][0], asked[2][1]
        );
    }
}

fn run(shard: &mut Shard<support::disk::Disk>, now: Timestamp, command: &tollgate::Command) {
    let batch = tollgate::resp::encode_batch([command.to_argv()].iter());
    shard.exec(now, &batch, Durability::Relaxed).unwrap();
}

fn memory(now: Timestamp) {
    const COUNTERS: usize = 1_000_000;
    println!("\nMemory: {COUNTERS} live counters at one level");
    for (name, layout) in [("hashes", Layout::default()), ("flat", Layout::flat())] {
        let before = resident_bytes();
        let rollups = Rollups::new([tollgate::Rollup::parse("1h x 168").unwrap()]).unwrap();
        let store = MemoryStore::new(move || now, ROOMY, 1);
        let counters = Counters::new(store).with_layout(layout).with_rollups(rollups);
        let ids: Vec<_> = (0..COUNTERS).collect();
        for ids in ids.chunks(160) {
            let item = |n: &usize| Increment { model: MODEL, id: Id::Integer(*n as i64), at: now, count: 1 };
            now_or_never(counters.incr_multi(now, &ids.iter().map(item).collect::<Vec<_>>())).unwrap();
        }
        drop(ids);
        let bytes = resident_bytes().saturating_sub(before);
        println!("  {name:<42} {:>10.1} MB, {} bytes a counter", bytes as f64 / 1e6, bytes / COUNTERS);
        drop(counters);
    }
}

/// What this process holds, in bytes (Linux).
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
