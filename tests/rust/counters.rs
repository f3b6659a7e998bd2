//! Time-series counters over every backend, against a plain list of what was counted.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};

use tollgate::{
    Bounds, Command, Counters, Durability, DurableObjectStore, Duration, Error, ErrorKind, Id, Increment, KvStore,
    Layout, MemoryStore, Model, Reply, Shards, Store, Timestamp, roll_up,
};

use crate::support::disk::World;
use crate::support::namespace::{Central, Place};
use crate::support::rng::Rng;
use crate::support::{Clock, command, now_or_never};

/// 2023-11-14T22:13:30Z
const NOW: u64 = 1_700_000_010_000;
const MODEL: Model = Model::new(20);
const LEVELS: [(u64, u64); 3] = [(10_000, 360), (3_600_000, 168), (86_400_000, 90)];

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn increment(id: impl Into<Id>, at_ms: u64, count: u64) -> Increment {
    Increment { model: MODEL, id: id.into(), at: at(at_ms), count }
}

/// What one id was counted from `start` to `end`, by buckets of `step`.
fn naive(log: &[(i64, u64, u64)], id: i64, start: u64, end: u64, step: u64) -> Vec<(Timestamp, u64)> {
    let mut sums: BTreeMap<u64, u64> = (start / step..=end / step).map(|bucket| (bucket * step, 0)).collect();
    for (_, at, count) in log.iter().filter(|(logged, ..)| *logged == id) {
        if let Some(sum) = sums.get_mut(&(at / step * step)) {
            *sum += count;
        }
    }
    sums.into_iter().map(|(bucket, sum)| (at(bucket), sum)).collect()
}

/// Writes at random times of the past while the clock goes on, and compares every level with the list.
async fn agrees_with_a_list(name: &str, store: &impl Store, clock: &Clock, after_each: &dyn Fn(&mut Rng)) {
    let seed = Rng::seed();
    let mut rng = Rng::new(seed);
    let counters = Counters::new(store);
    let ids = [-3, 0, 7, 130, 64];
    let mut log = Vec::new();
    for _ in 0..25 {
        clock.advance(rng.below(120_000) as u64);
        let now = clock.now().as_millis();
        let items: Vec<_> = (0..rng.below(6))
            .map(|_| {
                let reach = *rng.pick(&[1, 9000, 3_000_000, 500_000_000]);
                (*rng.pick(&ids), now - rng.below(reach) as u64, 1 + rng.below(5) as u64)
            })
            .collect();
        let increments: Vec<_> = items.iter().map(|(id, at, count)| increment(*id, *at, *count)).collect();
        counters.incr_multi(clock.now(), &increments).await.unwrap();
        log.extend(items);
        after_each(&mut rng);
    }
    let now = clock.now().as_millis();
    for (number, (step, samples)) in LEVELS.into_iter().enumerate() {
        let oldest = (now / step - (samples - 1)).max(now.saturating_sub(550_000_000) / step) * step;
        for _ in 0..8 {
            let start = oldest + rng.below((now - oldest) as usize) as u64;
            let end = start + rng.below((now - start + 1) as usize) as u64;
            let wanted: Vec<_> = ids[..=rng.below(ids.len())].iter().map(|id| Id::Integer(*id)).collect();
            let range =
                counters.get_range(clock.now(), MODEL, &wanted, at(start), at(end), Some(Duration::from_millis(step)));
            for (id, points) in range.await.unwrap().complete().unwrap() {
                let Id::Integer(number) = id else { panic!("{id:?}") };
                assert_eq!(points, naive(&log, number, start, end, step), "{name}: {number} by {step}, seed {seed}");
            }
            // Sums of an aligned range are the same at every level that still holds it.
            let Some((coarse, _)) =
                LEVELS.get(number + 1).filter(|(coarse, _)| now / coarse * coarse > oldest + coarse)
            else {
                continue;
            };
            let first = oldest.next_multiple_of(*coarse);
            let last = first + (now - first) / coarse * coarse - 1;
            if last > first {
                let sums = |step| {
                    counters.get_sums(
                        clock.now(),
                        MODEL,
                        &wanted,
                        at(first),
                        at(last),
                        Some(Duration::from_millis(step)),
                    )
                };
                let (fine, coarse) = (sums(step).await.unwrap().complete(), sums(*coarse).await.unwrap().complete());
                assert_eq!(fine, coarse, "{name}: {first} to {last}, seed {seed}");
            }
        }
    }
}

#[test]
fn every_backend_and_every_level_agree_with_a_plain_list() {
    let clock = Clock::at(NOW);
    let memory = MemoryStore::new(clock.reader(), Bounds::default(), 1);
    now_or_never(agrees_with_a_list("memory", &memory, &clock, &|_| {}));
    for count in [1, 8] {
        let world = World::new(clock.reader(), count, Durability::Strict);
        let lose = |rng: &mut Rng| {
            if rng.below(3) == 0 {
                world.evict()
            }
        };
        now_or_never(agrees_with_a_list("objects", &DurableObjectStore::new(&world), &clock, &lose));
    }
    let place = Place::local(&clock, &Central::default());
    let kv = KvStore::new(&place, clock.reader(), Bounds::default());
    now_or_never(agrees_with_a_list("KV", &kv, &clock, &|_| {}));
}

#[test]
fn bad_input_is_named_and_writes_nothing() {
    let clock = Clock::at(NOW);
    let store = MemoryStore::new(clock.reader(), Bounds::default(), 1);
    let counters = Counters::new(&store);
    let good = increment(1, NOW, 1);
    let old = NOW - 91 * 86_400_000;
    for (bad, message) in [
        (increment(1, NOW + 5001, 1), "timestamp: expected no later than 1700000015000 ms"),
        (increment(1, u64::MAX, 1), "timestamp: expected no later than"),
        (increment(1, old, 1), "timestamp: expected later than 1692224010000 ms, older ones are not kept"),
        (increment(1, 0, 1), "timestamp: expected later than"),
        (increment(1, NOW, 0), "count: expected 1 to 2^53 - 1, got 0"),
        (increment(1, NOW, 1 << 53), "count: expected 1 to 2^53 - 1"),
        (increment("x".repeat(257).as_str(), NOW, 1), "id: expected at most 256 bytes, got 257"),
    ] {
        let error = now_or_never(counters.incr_multi(clock.now(), &[good.clone(), bad])).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidArgument && error.message().starts_with(message), "{error}");
    }
    let ask = |start: u64, end: u64, rollup: Option<u64>, ids: usize| {
        let ids: Vec<_> = (0..ids as i64).map(Id::Integer).collect();
        now_or_never(counters.get_range(
            clock.now(),
            MODEL,
            &ids,
            at(start),
            at(end),
            rollup.map(Duration::from_millis),
        ))
    };
    for (start, end, rollup, ids, message) in [
        (NOW, NOW - 1, None, 1, "end: expected 1700000010000 or later, got 1700000009999"),
        (NOW, NOW, Some(20_000), 1, "rollup: expected one of 10000, 3600000, 86400000 ms, got 20000 ms"),
        (
            NOW - 3_000_000,
            NOW,
            Some(10_000),
            100,
            "range: expected at most 10000 points, got 30100; the rollup of 3600000 ms would fit",
        ),
    ] {
        let error = ask(start, end, rollup, ids).unwrap_err();
        assert_eq!(error.message(), message);
    }
    let range = ask(NOW - 3_000_000, NOW, None, 3).unwrap().complete().unwrap();
    assert!(range.values().flatten().all(|(_, count)| *count == 0), "nothing was written");
    let batch = [command("EXISTS ts:20:170000001:{1}")];
    assert_eq!(now_or_never(store.exec(&batch)).unwrap(), [Reply::Integer(0)]);
}

#[test]
fn buckets_go_at_their_own_end_and_late_writes_land_where_they_still_are() {
    let clock = Clock::at(NOW);
    let counters = Counters::new(MemoryStore::new(clock.reader(), Bounds::default(), 1));
    let first = NOW / 10_000 * 10_000;
    let sum_by = |step: u64| {
        let span = Some(Duration::from_millis(step));
        let sums = counters.get_sums(clock.now(), MODEL, &[Id::Integer(1)], at(first), at(first + 9999), span);
        now_or_never(sums).unwrap().complete().unwrap()[&Id::Integer(1)]
    };
    let incr = || now_or_never(counters.incr_multi(clock.now(), &[increment(1, first + 1, 1)])).unwrap();
    incr();
    clock.set(first + 3_590_000);
    incr();
    assert_eq!((sum_by(10_000), sum_by(3_600_000), sum_by(86_400_000)), (2, 2, 2), "late, and in every level");
    clock.set(first + 3_600_000);
    assert_eq!(sum_by(10_000), 2, "a key lives through its last millisecond");
    incr();
    clock.set(first + 3_600_001);
    assert_eq!(
        (sum_by(10_000), sum_by(3_600_000)),
        (0, 3),
        "the late write did not prolong it, and found the levels left"
    );
    let hour = first / 3_600_000 * 3_600_000;
    clock.set(hour + 168 * 3_600_000 + 1);
    assert_eq!((sum_by(3_600_000), sum_by(86_400_000)), (0, 3));
}

#[test]
fn the_edges_of_a_range_are_in_it() {
    let clock = Clock::at(NOW);
    let counters = Counters::new(MemoryStore::new(clock.reader(), Bounds::default(), 1));
    let items = [NOW - 20_001, NOW - 20_000, NOW - 10_001, NOW - 10_000, NOW - 1, NOW].map(|at| increment(1, at, 1));
    now_or_never(counters.incr_multi(clock.now(), &items)).unwrap();
    for (start, end, points) in [
        (NOW, NOW, vec![1]),
        (NOW - 1, NOW - 1, vec![2]),
        (NOW - 10_000, NOW - 10_000, vec![2]),
        (NOW - 10_001, NOW - 10_000, vec![2, 2]),
        (NOW - 20_001, NOW, vec![1, 2, 2, 1]),
    ] {
        let range = counters.get_range(
            clock.now(),
            MODEL,
            &[Id::Integer(1)],
            at(start),
            at(end),
            Some(Duration::from_secs(10)),
        );
        let range = now_or_never(range).unwrap().complete().unwrap();
        let found: Vec<_> = range[&Id::Integer(1)].iter().map(|(_, count)| *count).collect();
        assert_eq!(found, points, "{start} to {end}");
        let sum = |points: &[(Timestamp, u64)]| points.iter().map(|(_, count)| count).sum::<u64>();
        let points = &range[&Id::Integer(1)];
        assert_eq!(sum(&roll_up(points, Duration::from_secs(60))), sum(points));
    }
}

type Fails = Option<fn(u16) -> bool>;

/// Shards of which some do not answer.
struct Failing<S> {
    shards: S,
    fails: Cell<Fails>,
}

impl<S: Shards> Shards for &Failing<S> {
    fn count(&self) -> u16 {
        self.shards.count()
    }

    async fn call(&self, shard: u16, batch: Vec<u8>) -> Result<Vec<u8>, Error> {
        if self.fails.get().is_some_and(|fails| fails(shard)) {
            return Err(Error::new(ErrorKind::Unavailable, "the shard is down"));
        }
        self.shards.call(shard, batch).await
    }
}

#[test]
fn a_shard_that_fails_makes_the_answer_partial_and_not_silently_smaller() {
    let clock = Clock::at(NOW);
    let world = World::new(clock.reader(), 8, Durability::Strict);
    let failing = Failing { shards: &world, fails: Cell::new(None) };
    let fail = |which: fn(u16) -> bool| failing.fails.set(Some(which));
    let store = DurableObjectStore::new(&failing);
    let counters = Counters::new(&store).tracking_distinct();
    let items: Vec<_> = (0..64).map(|id| increment(id, NOW, 1)).collect();
    now_or_never(counters.incr_multi(clock.now(), &items)).unwrap();
    let ids: Vec<_> = (0..64).map(Id::Integer).collect();
    let sums = || now_or_never(counters.get_sums(clock.now(), MODEL, &ids, at(NOW), at(NOW), None));
    let top = || now_or_never(counters.top(clock.now(), MODEL, 100, at(NOW), at(NOW), None));
    let distinct = || now_or_never(counters.distinct(clock.now(), MODEL, at(NOW), at(NOW), None));
    assert_eq!(sums().unwrap().complete().unwrap().values().sum::<u64>(), 64);
    assert_eq!(top().unwrap().complete().unwrap().len(), 64);
    assert_eq!(distinct().unwrap().complete().unwrap(), 64);
    fail(|shard| shard == 3);
    let found = sums().unwrap();
    let (left, listed) = (found.value.values().sum::<u64>(), top().unwrap());
    assert!(found.is_partial() && (1..64).contains(&left), "{left} of 64");
    assert_eq!((listed.is_partial(), listed.value.len() as u64), (true, left));
    let estimate = distinct().unwrap();
    assert_eq!((estimate.is_partial(), estimate.value), (true, left));
    assert_eq!(found.complete().unwrap_err().message(), "the shard is down");
    let error = now_or_never(counters.incr_multi(clock.now(), &items)).unwrap_err();
    assert!(error.message().contains("commands failed: the shard is down"), "{error}");
    fail(|_| true);
    assert_eq!(sums().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(top().is_err() && distinct().is_err());
}

#[test]
fn every_layout_reads_what_it_wrote_also_on_shards() {
    let clock = Clock::at(NOW);
    let ids = [Id::Integer(5), Id::from("it's"), Id::from("a:b")];
    for layout in [Layout::default(), Layout::sentry(), Layout::seed(), Layout::flat().with_prefix("mine:")] {
        let world = World::new(clock.reader(), 8, Durability::Strict);
        let counters = Counters::new(DurableObjectStore::new(&world)).with_layout(layout.clone()).tracking_distinct();
        let items: Vec<_> = ids.iter().map(|id| increment(id.clone(), NOW, 3)).collect();
        now_or_never(counters.incr_multi(clock.now(), &items)).unwrap();
        let sums = counters.get_sums(clock.now(), MODEL, &ids, at(NOW - 3_000_000), at(NOW), None);
        let sums = now_or_never(sums).unwrap().complete().unwrap();
        assert!(sums.values().all(|sum| *sum == 3) && sums.len() == 3, "{layout:?}: {sums:?}");
        let distinct = now_or_never(counters.distinct(clock.now(), MODEL, at(NOW - 60_000), at(NOW), None));
        assert_eq!(distinct.unwrap().complete().unwrap(), 3, "{layout:?}");
        let top = now_or_never(counters.top(clock.now(), MODEL, 5, at(NOW), at(NOW), None));
        match layout.lists_ids() {
            true => assert_eq!(top.unwrap().complete().unwrap().len(), 3),
            false => assert!(top.unwrap_err().message().starts_with("layout: expected")),
        }
    }
    let counters = Counters::new(MemoryStore::new(clock.reader(), Bounds::default(), 1));
    let error = now_or_never(counters.distinct(clock.now(), MODEL, at(NOW), at(NOW), None)).unwrap_err();
    assert!(error.message().starts_with("counters: expected ones that track distinct ids"));
}

#[test]
fn top_is_exact_and_distinct_is_close_on_skewed_and_on_uniform_input() {
    let seed = Rng::seed();
    let mut rng = Rng::new(seed);
    let clock = Clock::at(NOW);
    for (name, skew) in [("Zipf-like", 3), ("uniform", 1)] {
        let counters = Counters::new(MemoryStore::new(clock.reader(), Bounds::default(), 1)).tracking_distinct();
        let mut exact = HashMap::<i64, u64>::new();
        for _ in 0..100 {
            let items: Vec<_> = (0..150)
                .map(|_| {
                    let uniform = rng.below(1 << 30) as f64 / f64::from(1 << 30);
                    ((uniform.powi(skew) * 8000.0) as i64, NOW - rng.below(500_000) as u64)
                })
                .collect();
            items.iter().for_each(|(id, _)| *exact.entry(*id).or_default() += 1);
            let items: Vec<_> = items.iter().map(|(id, at)| increment(*id, *at, 1)).collect();
            now_or_never(counters.incr_multi(clock.now(), &items)).unwrap();
        }
        let top = counters.top(clock.now(), MODEL, 20, at(NOW - 600_000), at(NOW), None);
        let mut wanted: Vec<_> = exact.iter().map(|(id, count)| (Id::Integer(*id), *count)).collect();
        wanted.sort_by_key(|(id, count)| {
            let Id::Integer(id) = id else { panic!("{id:?}") };
            (std::cmp::Reverse(*count), id.to_string())
        });
        assert_eq!(now_or_never(top).unwrap().complete().unwrap(), wanted[..20], "{name}, seed {seed}");
        let distinct = counters.distinct(clock.now(), MODEL, at(NOW - 600_000), at(NOW), None);
        let (found, real) = (now_or_never(distinct).unwrap().complete().unwrap() as f64, exact.len() as f64);
        println!("{name}: {found} of {real} distinct ids, off by {:+.2} %", (found - real) / real * 100.0);
        assert!((found - real).abs() / real < 0.03, "{name}: {found} of {real}, seed {seed}");
    }
}

#[test]
fn what_is_too_large_for_one_answer_is_asked_again() {
    let clock = Clock::at(NOW);
    let world = World::new(clock.reader(), 1, Durability::Strict);
    let store = DurableObjectStore::new(&world);
    let counters = Counters::new(&store);
    // Eight hashes of half a megabyte in one bucket; a batch answers with two.
    let mut names = HashSet::new();
    for vnode in 0..8 {
        let pairs =
            (0..2000).map(|n| (format!("{vnode}-{n}-{}", "x".repeat(240)).into_bytes(), b"1".to_vec())).collect();
        let key = Layout::default().bucket_key(MODEL, NOW / 10_000, vnode);
        names.extend((0..2000).map(|n| (vnode, n)));
        now_or_never(store.exec(&[Command::HSet { key, pairs }])).unwrap();
    }
    let top =
        now_or_never(counters.top(clock.now(), MODEL, 100_000, at(NOW), at(NOW), None)).unwrap().complete().unwrap();
    assert_eq!(top.len(), names.len());
}
