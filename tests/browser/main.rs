//! The memory store, the seed's functions and the lock, in a real browser.
#![cfg(target_arch = "wasm32")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that goes wrong should stop")]

use std::rc::Rc;

use tollgate::edges::js::JsRuntime;
use tollgate::{
    Bounds, Command, Duration, ErrorKind, LockOptions, Locks, MemcacheMode, MemoryStore, Reply, Runtime, Store,
    Timestamp, incr_and_check_limit, incr_and_check_limit_memcache,
};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

fn store() -> MemoryStore<fn() -> Timestamp> {
    MemoryStore::new(|| JsRuntime.now(), Bounds::default(), 1)
}

fn command(line: &str) -> Command {
    Command::parse(line.split(' ').map(|word| word.as_bytes().to_vec()).collect()).unwrap()
}

#[wasm_bindgen_test]
async fn the_seeds_limiter_counts_right() {
    let (store, now) = (store(), Timestamp::from_millis(1_700_000_000_000));
    for call in 1..=8 {
        assert_eq!(incr_and_check_limit(&store, now, b"user", 5).await.unwrap(), call > 5);
    }
}

#[wasm_bindgen_test]
async fn both_memcached_limiters_count_as_they_say() {
    let now = Timestamp::from_millis(1_700_000_000_000);
    for (mode, admitted) in [(MemcacheMode::Exact, 5), (MemcacheMode::Classic, 6)] {
        let store = store();
        for call in 1..=8 {
            let over = incr_and_check_limit_memcache(&store, now, b"user", 5, mode).await.unwrap();
            assert_eq!(over, call > admitted, "{mode:?}, call {call}");
        }
    }
}

#[wasm_bindgen_test]
async fn keys_expire_by_the_browsers_clock() {
    let store = store();
    store.exec(&[command("SET k v PX 300")]).await.unwrap();
    assert_eq!(store.exec(&[command("EXISTS k")]).await.unwrap(), [Reply::Integer(1)]);
    let end = JsRuntime.now().saturating_add(Duration::from_millis(310));
    while JsRuntime.now() < end {
        JsRuntime.sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(store.exec(&[command("EXISTS k")]).await.unwrap(), [Reply::Integer(0)]);
}

#[wasm_bindgen_test]
async fn a_lock_is_held_waited_for_and_renewed() {
    let locks = Locks::new(Rc::new(store()), JsRuntime);
    let short = LockOptions { ttl: Duration::from_millis(1500), ..LockOptions::default() };
    let work = |fencing| async move {
        JsRuntime.sleep(Duration::from_millis(3500)).await;
        fencing
    };
    assert_eq!(locks.hold(b"k", &short, work).await.unwrap(), 1, "more than twice its time to live");
    let held = locks.acquire(b"k", &short).await.unwrap();
    assert_eq!(locks.acquire(b"k", &short).await.unwrap_err().kind(), ErrorKind::Locked);
    let waiting = LockOptions { wait: Some(Duration::from_secs(10)), ..short };
    let next = locks.acquire(b"k", &waiting).await.expect("the first one expires");
    assert!(next.fencing() > held.fencing() && next.token() != held.token());
    assert_eq!(locks.release(&held).await.unwrap_err().kind(), ErrorKind::LockLost);
}

#[wasm_bindgen_test]
fn tokens_are_random() {
    let tokens: std::collections::HashSet<u128> = (0..1000).map(|_| JsRuntime.random()).collect();
    assert_eq!(tokens.len(), 1000);
}
