//! The seed itself, in Python on real servers, and the same schedules on ours.

use serde_json::{Value, json};
use tollgate::{
    Bounds, ErrorKind, MemcacheMode, MemoryStore, Store, Timestamp, incr_and_check_limit, incr_and_check_limit_memcache,
};

use crate::support::python::Python;
use crate::support::redis::RealRedis;
use crate::support::rng::Rng;
use crate::support::{Clock, command, now_or_never};

/// Users and seconds: some minutes of a few users, in the order of time.
fn schedule(rng: &mut Rng, with_losses: bool) -> Vec<(String, u64, bool)> {
    let mut now = 1_700_000_000;
    let step = |_| {
        now += rng.below(5) as u64;
        let user = format!("user{}", rng.below(3));
        (user, now, with_losses && rng.below(10) == 0)
    };
    (0..300).map(step).collect()
}

fn to_json(steps: &[(String, u64, bool)]) -> Value {
    let step = |(user, seconds, lost): &(String, u64, bool)| {
        if *lost { json!([user, seconds, true]) } else { json!([user, seconds]) }
    };
    steps.iter().map(step).collect()
}

#[test]
fn the_redis_limiter_answers_as_the_seed_does() {
    let seed = Rng::seed();
    let (python, mut rng) = (Python::new(), Rng::new(seed));
    for limit in [1, 3, 10] {
        let steps = schedule(&mut rng, false);
        let function = "incr_and_check_limit";
        let theirs = python.run(json!({ "function": function, "limit": limit, "steps": to_json(&steps) }));
        let clock = Clock::default();
        let store = MemoryStore::new(clock.reader(), Bounds::default(), 1);
        let ours: Vec<Value> = steps
            .iter()
            .map(|(user, seconds, _)| {
                clock.set(seconds * 1000);
                now_or_never(incr_and_check_limit(&store, clock.now(), user.as_bytes(), limit)).unwrap().into()
            })
            .collect();
        assert_eq!(Value::from(ours), theirs, "limit {limit}, seed {seed}");
        now_or_never(RealRedis::connect(python.redis.port).exec(&[command("DEL user0:28333333")])).unwrap();
        flush(&python);
    }
}

fn flush(python: &Python) {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/", python.redis.port)).unwrap();
    redis::cmd("FLUSHALL").exec(&mut client.get_connection().unwrap()).unwrap();
}

#[test]
fn the_classic_memcached_limiter_is_the_seed_to_the_letter() {
    let seed = Rng::seed();
    let (python, mut rng) = (Python::new(), Rng::new(seed));
    let steps = schedule(&mut rng, true);
    let function = "incr_and_check_limit_memcache";
    let theirs = python.run(json!({ "function": function, "limit": 3, "steps": to_json(&steps) }));
    let clock = Clock::default();
    let store = Losing { store: MemoryStore::new(clock.reader(), Bounds::default(), 1), lost: Default::default() };
    let ours: Vec<Value> = steps
        .iter()
        .map(|(user, seconds, lost)| {
            clock.set(seconds * 1000);
            store.lost.set(*lost);
            let now = clock.now();
            match now_or_never(incr_and_check_limit_memcache(&store, now, user.as_bytes(), 3, MemcacheMode::Classic)) {
                Ok(over) => over.into(),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::CounterExpired);
                    "error".into()
                }
            }
        })
        .collect();
    assert!(ours.contains(&Value::from("error")), "the schedule must reach the race");
    assert_eq!(Value::from(ours), theirs, "seed {seed}");
}

/// A store whose counter goes between the seed's two calls, when told so.
struct Losing<S> {
    store: S,
    lost: std::cell::Cell<bool>,
}

impl<S: Store> Store for Losing<S> {
    async fn exec(&self, batch: &[tollgate::Command]) -> Result<Vec<tollgate::Reply>, tollgate::Error> {
        if let ([tollgate::Command::IncrExisting(key)], true) = (batch, self.lost.get()) {
            self.store.exec(&[tollgate::Command::Del(vec![key.clone()])]).await?;
        }
        self.store.exec(batch).await
    }

    fn capabilities(&self) -> tollgate::Capabilities {
        self.store.capabilities()
    }
}

#[test]
fn the_classic_lets_one_more_through_and_the_default_does_not() {
    let python = Python::new();
    let steps: Vec<_> = (0..6).map(|_| ("u".to_owned(), 1_700_000_010, false)).collect();
    let request = json!({ "function": "incr_and_check_limit_memcache", "limit": 3, "steps": to_json(&steps) });
    assert_eq!(python.run(request), json!([false, false, false, false, true, true]));
    for (mode, expected) in [
        (MemcacheMode::Classic, [false, false, false, false, true, true]),
        (MemcacheMode::Exact, [false, false, false, true, true, true]),
    ] {
        let clock = Clock::at(1_700_000_010_000);
        let store = MemoryStore::new(clock.reader(), Bounds::default(), 1);
        let check = || now_or_never(incr_and_check_limit_memcache(&store, clock.now(), b"u", 3, mode)).unwrap();
        assert_eq!(std::array::from_fn(|_| check()), expected, "{mode:?}");
    }
}

#[test]
fn a_python_program_and_ours_share_one_count_on_one_redis() {
    let python = Python::new();
    let redis = RealRedis::connect(python.redis.port);
    let seconds = 1_700_000_010;
    let ours = |limit| {
        let now = Timestamp::from_millis(seconds * 1000);
        now_or_never(incr_and_check_limit(&redis, now, b"user", limit)).unwrap()
    };
    let theirs = |limit: u64| {
        let steps = to_json(&[("user".to_owned(), seconds, false)]);
        python.run(json!({ "function": "incr_and_check_limit", "limit": limit, "steps": steps }))[0].as_bool().unwrap()
    };
    assert_eq!([ours(4), theirs(4), ours(4), theirs(4), ours(4), theirs(4)], [false, false, false, false, true, true]);
    let key = now_or_never(redis.exec(&[command("GET user:28333333"), command("TTL user:28333333")])).unwrap();
    assert_eq!(key, [tollgate::Reply::Bulk(b"6".to_vec()), tollgate::Reply::Integer(60)]);
}

#[test]
fn the_seeds_lock_has_the_defects_that_ours_does_not() {
    let found = Python::new().run(json!({ "function": "lock" }));
    let expected = json!({
        "second": "Locked",
        "after release": 0,
        "ttl after a crash": -1,
        "b's lock after a's release": 0,
    });
    assert_eq!(found, expected, "for ever after a crash, and somebody else's deleted");
    // The same three steps on ours.
    let clock = Clock::at(1_000_000);
    let store = MemoryStore::new(clock.reader(), Bounds::default(), 1);
    let run = |line: &str| format!("{:?}", now_or_never(store.exec(&[command(line)])).unwrap()[0]);
    let is_granted = |reply: &str| reply.starts_with("Array([Integer(1)");
    assert!(is_granted(&run("TG.LOCK k a 10000")));
    assert!(!is_granted(&run("TG.LOCK k b 10000")));
    assert_eq!(run("PTTL k"), "Integer(10000)", "an expiry from the first moment");
    clock.advance(10_001);
    assert!(is_granted(&run("TG.LOCK k b 10000")));
    assert_eq!(run("TG.UNLOCK k a"), "Integer(0)");
    assert_eq!(run("EXISTS k"), "Integer(1)", "b's lock is still there");
}
