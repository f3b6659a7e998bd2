//! Every algorithm on every backend: the same decisions as in memory, through evictions, and never more than the quota.

use tollgate::{
    Bounds, Durability, DurableObjectStore, Keyspace, KvStore, MemoryStore, NoRows, Reply, Store, Timestamp,
};

use crate::support::disk::World;
use crate::support::namespace::{Central, Place};
use crate::support::rng::Rng;
use crate::support::{Clock, command, now_or_never};

const ALGORITHMS: [&str; 8] = [
    "fixed-window",
    "fixed-window-from-first-hit",
    "sliding-window",
    "sliding-log",
    "token-bucket",
    "gcra",
    "calendar-day",
    "concurrency",
];

/// The fields of one limit's answer.
fn answer(reply: &Reply) -> (bool, u64, u64) {
    let Reply::Array(limits) = reply else { panic!("answered {reply:?}") };
    let Reply::Array(fields) = &limits[0] else { panic!("answered {reply:?}") };
    let number = |at: usize| fields[at].clone().into_count().unwrap();
    (number(0) == 1, number(1), number(2))
}

/// When to come again, of one limit's answer.
fn retry_after(reply: &Reply) -> Option<u64> {
    let Reply::Array(limits) = reply else { panic!("answered {reply:?}") };
    let Reply::Array(fields) = &limits[0] else { panic!("answered {reply:?}") };
    fields[3].clone().into_count().ok()
}

/// One of all that can be asked of limits.
fn any_line(rng: &mut Rng, algorithm: &str, charged: &mut Vec<(String, u64)>) -> String {
    let (key, cost, token) = (rng.below(3), rng.below(4), rng.below(5));
    let limit = format!("k{key}{{t}} {algorithm} 7 2000");
    let both = format!("{limit} all{{t}} {algorithm} 12 3000");
    let counts = algorithm != "concurrency";
    match rng.below(16) {
        0 => format!("TG.PEEK TOKEN t{token} {cost} {limit}"),
        1 => format!("TG.TAKE TOKEN t{token} {cost} {both}"),
        2 => format!("TG.TAKE TOKEN t{token} SHADOW 1 {cost},{} {both}", rng.below(4)),
        3 => format!("TG.TAKE PARTIAL TOKEN t{token} {} {both}", cost + 1),
        4 => format!("TG.TAKE TOKEN t{token} ESCALATE 0 2 300 2 2000 5000 {} {limit}", cost + 3),
        5 if rng.below(4) == 0 => format!("TG.BLOCK {} k{key}{{t}}", rng.below(1500)),
        6 if rng.below(4) == 0 => format!("TG.RESET k{key}{{t}} all{{t}}"),
        7 | 8 if !counts => format!("TG.RELEASE t{token} k{key}{{t}}"),
        9 if !counts => format!("TG.EXTEND t{token} {limit}"),
        7 => format!("TG.PENALTY {cost} {limit}"),
        8 => format!("TG.REWARD {cost} {limit}"),
        9 | 10 if !charged.is_empty() => {
            let (limit, reset_at) = charged.swap_remove(rng.below(charged.len()));
            if rng.below(2) == 0 {
                format!("TG.REFUND 1 {reset_at} {limit}")
            } else {
                format!("TG.SETTLE 1 {cost} {reset_at} {limit}")
            }
        }
        _ => format!("TG.TAKE TOKEN t{token} {} {limit}", cost + 1),
    }
}

#[test]
fn every_backend_decides_as_memory_does() {
    let seed = Rng::seed();
    let mut rng = Rng::new(seed);
    let mut refused = 0;
    for algorithm in ALGORITHMS {
        let clock = Clock::at(1_701_388_700_000);
        let mut memory = Keyspace::new(NoRows, Bounds::default(), 1);
        let world = World::new(clock.reader(), 1, Durability::Strict);
        let objects = DurableObjectStore::new(&world);
        let place = Place::local(&clock, &Central::default());
        let kv = KvStore::new(&place, clock.reader(), Bounds::default());
        let mut charged = Vec::new();
        let mut waits = Vec::new();
        for step in 0..400 {
            let reach = *rng.pick(&[1, 40, 3000]);
            clock.advance(rng.below(reach) as u64);
            if rng.below(4) == 0 {
                world.evict();
            }
            let line = any_line(&mut rng, algorithm, &mut charged);
            let batch = [command(&line)];
            let expected = vec![memory.apply(clock.now(), &batch[0])];
            let place = format!("{line}, step {step}, seed {seed}");
            assert_eq!(now_or_never(objects.exec(&batch)).unwrap(), expected, "an object: {place}");
            assert_eq!(now_or_never(kv.exec(&batch)).unwrap(), expected, "KV: {place}");
            if line.starts_with("TG.TAKE") && !line.contains("all") {
                let (allowed, _, reset_at) = answer(&expected[0]);
                refused += usize::from(!allowed);
                let limit = line.rsplitn(5, ' ').take(4).collect::<Vec<_>>();
                let limit = limit.into_iter().rev().collect::<Vec<_>>().join(" ");
                if allowed && algorithm != "concurrency" {
                    charged.push((limit.clone(), reset_at));
                }
                // To the millisecond: a copy of the store finds the same request allowed then, and no earlier.
                if let (false, Some(wait)) = (allowed, retry_after(&expected[0])) {
                    waits.push(wait);
                    let at = |now: u64| {
                        let look = line.replacen("TG.TAKE", "TG.PEEK", 1).replace("ESCALATE 0 2 300 2 2000 5000 ", "");
                        let now = Timestamp::from_millis(now);
                        answer(&memory.clone().apply(now, &command(&look))).0
                    };
                    let now = clock.now().as_millis();
                    assert!(at(now + wait) && !at(now + wait - 1), "after {wait} ms: {place}");
                }
            }
        }
        assert!(waits.len() > 5, "{algorithm} told when to come again {} times; seed {seed}", waits.len());
    }
    assert!(refused > 60, "the quota must be reached, {refused} were refused; seed {seed}");
}

#[test]
fn several_limits_of_different_algorithms_are_charged_together_or_not_at_all() {
    let clock = Clock::at(1_701_388_700_000);
    let store = MemoryStore::new(clock.reader(), Bounds::default(), 1);
    let limits: Vec<_> =
        ALGORITHMS.iter().enumerate().map(|(n, name)| format!("k{n} {name} {} 60000", n + 3)).collect();
    let take = |cost: u64| {
        now_or_never(store.exec(&[command(&format!("TG.TAKE TOKEN t{cost} {cost} {}", limits.join(" ")))]))
            .unwrap()
            .remove(0)
    };
    let left = |reply: &Reply| -> Vec<u64> {
        let Reply::Array(limits) = reply else { panic!("answered {reply:?}") };
        limits.iter().map(|limit| limit.clone().into_array().unwrap().swap_remove(1).into_count().unwrap()).collect()
    };
    assert_eq!(left(&take(2)), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(left(&take(2)), [1, 2, 3, 4, 5, 6, 7, 8], "the first has one left: nobody is charged");
    assert_eq!(left(&take(1)), [0, 1, 2, 3, 4, 5, 6, 7]);
    let foreign = command("TG.TAKE 1 k0 gcra 3 60000");
    let Reply::Error(error) = now_or_never(store.exec(&[foreign])).unwrap().remove(0) else { panic!("no error") };
    assert_eq!(error.text(), "ERR key: expected one that is counted by gcra, got one of another algorithm");
}
