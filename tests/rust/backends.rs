//! The same scenario over every backend, and what only an object must show.

use tollgate::{
    Bounds, Durability, DurableObjectStore, ErrorKind, KvStore, MemcacheMode, MemoryStore, Reply, Store,
    incr_and_check_limit, incr_and_check_limit_memcache,
};

use crate::support::disk::World;
use crate::support::namespace::{Central, Place};
use crate::support::redis::RealRedis;
use crate::support::server::Server;
use crate::support::{Clock, command, now_or_never};

/// A minute of 2023, far from its edges.
const NOW: u64 = 1_700_000_010_000;

/// Runs `check` over every backend, real Redis among them.
macro_rules! over_every_store {
    ($check:path) => {{
        let clock = Clock::at(NOW);
        now_or_never($check(&MemoryStore::new(clock.reader(), Bounds::default(), 1), &clock));
        let world = World::new(clock.reader(), 5, Durability::Strict);
        now_or_never($check(&DurableObjectStore::new(&world), &clock));
        let place = Place::local(&clock, &Central::default());
        now_or_never($check(&KvStore::new(&place, clock.reader(), Bounds::default()), &clock));
        let server = Server::redis();
        now_or_never($check(&RealRedis::connect(server.port), &clock));
    }};
}

async fn exactly_limit_calls_a_minute_answer_false(store: &impl Store, clock: &Clock) {
    for limit in [1_u64, 5] {
        let user = format!("user-{limit}");
        for call in 1..=limit + 3 {
            let over = incr_and_check_limit(store, clock.now(), user.as_bytes(), limit).await.unwrap();
            assert_eq!(over, call > limit, "{}: call {call} of {limit}", store.capabilities().name);
        }
        let next_minute = clock.now().saturating_add(tollgate::Duration::from_secs(60));
        assert!(!incr_and_check_limit(store, next_minute, user.as_bytes(), limit).await.unwrap());
    }
}

#[test]
fn the_seeds_limiter_counts_right_everywhere() {
    over_every_store!(exactly_limit_calls_a_minute_answer_false);
}

async fn the_default_counts_right(store: &impl Store, clock: &Clock) {
    for call in 1..=7 {
        let over = incr_and_check_limit_memcache(store, clock.now(), b"m", 5, MemcacheMode::Exact).await.unwrap();
        assert_eq!(over, call > 5, "{}: call {call}", store.capabilities().name);
    }
}

#[test]
fn the_memcached_limiter_counts_right_by_default() {
    over_every_store!(the_default_counts_right);
}

async fn keys_cannot_collide(store: &impl Store, clock: &Clock) {
    // `user:1` at minute 2 and `user` at ... would both be `user:1:2` if parts were only joined.
    let minute = clock.now().as_millis() / 60_000;
    assert!(!incr_and_check_limit(store, clock.now(), b"a", 1).await.unwrap());
    let spoofed = format!("a:{minute}");
    assert!(!incr_and_check_limit(store, clock.now(), spoofed.as_bytes(), 1).await.unwrap());
    assert!(!incr_and_check_limit(store, clock.now(), b"\xff\x00{}% ", 1).await.unwrap(), "any bytes will do");
    let plain = store.exec(&[command(&format!("GET a:{minute}"))]).await.unwrap();
    assert_eq!(plain, [Reply::Bulk(b"1".to_vec())], "the plain key is the seed's");
}

#[test]
fn identities_cannot_collide() {
    over_every_store!(keys_cannot_collide);
}

async fn a_failing_command_undoes_nothing(store: &impl Store, _: &Clock) {
    let batch = ["SET s text", "INCR s", "INCR n", "HGET s f"].map(command);
    let replies = store.exec(&batch).await.unwrap();
    assert_eq!(replies[0], Reply::OK);
    assert!(matches!(replies[1], Reply::Error(_)) && matches!(replies[3], Reply::Error(_)));
    assert_eq!(replies[2], Reply::Integer(1));
}

#[test]
fn a_batch_is_redis_multi_exec() {
    let clock = Clock::at(NOW);
    now_or_never(a_failing_command_undoes_nothing(&MemoryStore::new(clock.reader(), Bounds::default(), 1), &clock));
    let world = World::new(clock.reader(), 1, Durability::Strict);
    now_or_never(a_failing_command_undoes_nothing(&DurableObjectStore::new(&world), &clock));
    let server = Server::redis();
    now_or_never(a_failing_command_undoes_nothing(&RealRedis::connect(server.port), &clock));
}

#[test]
fn a_batch_that_spans_shards_is_refused_and_hash_tags_keep_it_together() {
    let clock = Clock::at(NOW);
    let world = World::new(clock.reader(), 64, Durability::Strict);
    let store = DurableObjectStore::new(&world);
    let error = now_or_never(store.exec(&[command("INCR a"), command("INCR b")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CrossShard);
    assert_eq!(now_or_never(store.exec(&[command("EXISTS a")])).unwrap(), [Reply::Integer(0)], "nothing was changed");
    let replies = now_or_never(store.exec(&[command("INCR {u}a"), command("INCR {u}b")])).unwrap();
    assert_eq!(replies, [Reply::Integer(1), Reply::Integer(1)]);
}

#[test]
fn too_long_a_batch_is_refused() {
    let clock = Clock::at(NOW);
    let store = MemoryStore::new(clock.reader(), Bounds { batch_commands: 2, ..Bounds::default() }, 1);
    let batch = ["INCR a", "INCR a", "INCR a"].map(command);
    let error = now_or_never(store.exec(&batch)).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::InvalidArgument, "batch: expected at most 2 commands, got 3")
    );
}

#[test]
fn strict_counters_survive_an_eviction_and_relaxed_ones_share_a_row() {
    let clock = Clock::at(NOW);
    for (durability, survivors, rows) in [(Durability::Strict, 50, 50), (Durability::Relaxed, 0, 0)] {
        let world = World::new(clock.reader(), 1, durability);
        let store = DurableObjectStore::new(&world);
        for _ in 0..50 {
            now_or_never(store.exec(&[command("INCR n")])).unwrap();
        }
        assert_eq!(world.disk(0).written(), rows);
        world.evict();
        assert_eq!(now_or_never(store.exec(&[command("INCRBY n 0")])).unwrap(), [Reply::Integer(survivors)]);
    }
    let world = World::new(clock.reader(), 1, Durability::Relaxed);
    let store = DurableObjectStore::new(&world);
    for _ in 0..50 {
        now_or_never(store.exec(&[command("INCR n")])).unwrap();
    }
    assert_eq!(world.with(0, tollgate::Shard::flush).unwrap(), 1, "fifty hits, one row");
}

#[test]
fn a_lock_is_on_disk_before_the_answer_whatever_the_durability() {
    let clock = Clock::at(NOW);
    let world = World::new(clock.reader(), 1, Durability::Relaxed);
    let store = DurableObjectStore::new(&world);
    now_or_never(store.exec(&[command("TG.LOCK k a 1000")])).unwrap();
    world.evict();
    let held = now_or_never(store.exec(&[command("TG.LOCK k b 1000")])).unwrap();
    assert!(matches!(&held[0], Reply::Array(parts) if parts[0] == Reply::Integer(0)), "{held:?}");
}

#[test]
fn a_batch_that_cannot_be_written_leaves_nothing() {
    let clock = Clock::at(NOW);
    let world = World::new(clock.reader(), 1, Durability::Strict);
    let store = DurableObjectStore::new(&world);
    now_or_never(store.exec(&[command("SET n 5")])).unwrap();
    world.disk(0).break_down(true);
    let error = now_or_never(store.exec(&[command("INCR n"), command("SET m 1")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let lock = now_or_never(store.exec(&[command("TG.LOCK k a 1000")]));
    assert!(lock.is_err());
    world.disk(0).break_down(false);
    let replies = now_or_never(store.exec(&["GET n", "EXISTS m k", "TG.LOCK k b 1000"].map(command))).unwrap();
    assert_eq!(replies[..2], [Reply::Bulk(b"5".to_vec()), Reply::Integer(0)]);
    let Reply::Array(grant) = &replies[2] else { panic!("{replies:?}") };
    assert_eq!(grant[..2], [Reply::Integer(1), Reply::Integer(1)]);
}
