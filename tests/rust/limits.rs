//! Every algorithm on every backend: the same decisions as in memory, through evictions, and never more than the quota.

use tollgate::{Bounds, Durability, DurableObjectStore, KvStore, MemoryStore, Reply, Store};

use crate::support::disk::World;
use crate::support::namespace::{Central, Place};
use crate::support::rng::Rng;
use crate::support::{Clock, command, now_or_never};

const ALGORITHMS: [&str; 7] = [
    "fixed-window",
    "fixed-window-from-first-hit",
    "sliding-window",
    "sliding-log",
    "token-bucket",
    "gcra",
    "calendar-day",
];

/// The fields of one limit's answer.
fn answer(reply: &Reply) -> (bool, u64, u64) {
    let Reply::Array(limits) = reply else { panic!("answered {reply:?}") };
    let Reply::Array(fields) = &limits[0] else { panic!("answered {reply:?}") };
    let number = |at: usize| fields[at].clone().into_count().unwrap();
    (number(0) == 1, number(1), number(2))
}

#[test]
fn every_backend_decides_as_memory_does() {
    let seed = Rng::seed();
    let mut rng = Rng::new(seed);
    let mut refused = 0;
    for algorithm in ALGORITHMS {
        let clock = Clock::at(1_701_388_700_000);
        let memory = MemoryStore::new(clock.reader(), Bounds::default(), 1);
        let world = World::new(clock.reader(), 1, Durability::Strict);
        let objects = DurableObjectStore::new(&world);
        let place = Place::local(&clock, &Central::default());
        let kv = KvStore::new(&place, clock.reader(), Bounds::default());
        let mut charged = Vec::new();
        for step in 0..400 {
            let reach = *rng.pick(&[1, 40, 3000]);
            clock.advance(rng.below(reach) as u64);
            if rng.below(4) == 0 {
                world.evict();
            }
            let (key, cost) = (rng.below(3), rng.below(4));
            let limit = format!("k{key}{{t}} {algorithm} 7 2000");
            let both = format!("{limit} all{{t}} {algorithm} 12 3000");
            let line = match rng.below(8) {
                0 => format!("TG.PEEK {cost} {limit}"),
                1 => format!("TG.TAKE {cost} {both}"),
                2 if !charged.is_empty() => {
                    let (limit, reset_at) = charged.swap_remove(rng.below(charged.len()));
                    format!("TG.REFUND 1 {reset_at} {limit}")
                }
                _ => format!("TG.TAKE {cost} {limit}"),
            };
            let batch = [command(&line)];
            let expected = now_or_never(memory.exec(&batch)).unwrap();
            assert_eq!(
                now_or_never(objects.exec(&batch)).unwrap(),
                expected,
                "an object: {line}, step {step}, seed {seed}"
            );
            assert_eq!(now_or_never(kv.exec(&batch)).unwrap(), expected, "KV: {line}, step {step}, seed {seed}");
            if line.starts_with("TG.TAKE") && !line.contains("all") {
                let (allowed, _, reset_at) = answer(&expected[0]);
                refused += usize::from(!allowed);
                if allowed && cost > 0 {
                    charged.push((limit, reset_at));
                }
            }
        }
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
        now_or_never(store.exec(&[command(&format!("TG.TAKE {cost} {}", limits.join(" ")))])).unwrap().remove(0)
    };
    let left = |reply: &Reply| -> Vec<u64> {
        let Reply::Array(limits) = reply else { panic!("answered {reply:?}") };
        limits.iter().map(|limit| limit.clone().into_array().unwrap().swap_remove(1).into_count().unwrap()).collect()
    };
    assert_eq!(left(&take(2)), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(left(&take(2)), [1, 2, 3, 4, 5, 6, 7], "the first has one left: nobody is charged");
    assert_eq!(left(&take(1)), [0, 1, 2, 3, 4, 5, 6]);
    let foreign = command("TG.TAKE 1 k0 gcra 3 60000");
    let Reply::Error(error) = now_or_never(store.exec(&[foreign])).unwrap().remove(0) else { panic!("no error") };
    assert_eq!(error.text(), "ERR key: expected one that is counted by gcra, got one of another algorithm");
}
