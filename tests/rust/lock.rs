//! The lock facade, on virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tollgate::{Bounds, Duration, ErrorKind, KvStore, LockOptions, Locks, MemoryStore, Runtime, Timestamp};

use crate::support::namespace::{Central, Place};
use crate::support::{Clock, runtime};

/// Tokio's paused clock.
#[derive(Clone)]
struct Virtual {
    start: tokio::time::Instant,
    next: Rc<Cell<u128>>,
}

impl Virtual {
    fn new() -> Self {
        Self { start: tokio::time::Instant::now(), next: Rc::default() }
    }
}

impl Runtime for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_000_000 + self.start.elapsed().as_millis() as u64)
    }

    async fn sleep(&self, span: Duration) {
        tokio::time::sleep(std::time::Duration::from_millis(span.as_millis())).await;
    }

    fn random(&self) -> u128 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }
}

type Store = MemoryStore<Box<dyn Fn() -> Timestamp>>;

fn locks() -> Locks<Rc<Store>, Virtual> {
    let virtual_time = Virtual::new();
    let clock = virtual_time.clone();
    let store = MemoryStore::new(Box::new(move || clock.now()) as Box<dyn Fn() -> Timestamp>, Bounds::default(), 1);
    Locks::new(Rc::new(store), virtual_time)
}

fn waiting(millis: u64) -> LockOptions {
    LockOptions { wait: Some(Duration::from_millis(millis)), ..LockOptions::default() }
}

async fn pause(millis: u64) {
    tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
}

#[test]
fn the_seeds_lock_acquires_or_raises_locked() {
    runtime().block_on(async {
        let locks = locks();
        let held = locks.acquire(b"k", &LockOptions::default()).await.unwrap();
        assert_eq!(locks.acquire(b"k", &LockOptions::default()).await.unwrap_err().kind(), ErrorKind::Locked);
        locks.release(&held).await.unwrap();
        assert_eq!(locks.release(&held).await.unwrap_err().kind(), ErrorKind::LockLost);
        let again = locks.acquire(b"k", &LockOptions::default()).await.unwrap();
        assert!(again.fencing() > held.fencing());
    });
}

#[test]
fn a_lock_whose_owner_vanished_is_free_after_ten_seconds() {
    runtime().block_on(async {
        let locks = locks();
        let lost = locks.acquire(b"k", &LockOptions::default()).await.unwrap();
        assert_eq!(locks.acquire(b"k", &waiting(9_000)).await.unwrap_err().kind(), ErrorKind::WaitTimeout);
        let next = locks.acquire(b"k", &waiting(2_000)).await.unwrap();
        assert_eq!(
            locks.release(&lost).await.unwrap_err().kind(),
            ErrorKind::LockLost,
            "nobody else's lock is deleted"
        );
        locks.release(&next).await.unwrap();
    });
}

#[test]
fn those_who_wait_get_it_in_the_order_of_arrival() {
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime(), async {
        let (locks, order) = (Rc::new(locks()), Rc::new(RefCell::new(Vec::new())));
        let first = locks.acquire(b"k", &LockOptions::default()).await.unwrap();
        let tasks: Vec<_> = (0..5)
            .map(|turn| {
                let (locks, order) = (locks.clone(), order.clone());
                tokio::task::spawn_local(async move {
                    pause(10 * turn).await;
                    let held = locks.acquire(b"k", &waiting(60_000)).await.unwrap();
                    order.borrow_mut().push((turn, held.fencing()));
                    pause(100).await;
                    locks.release(&held).await.unwrap();
                })
            })
            .collect();
        pause(500).await;
        locks.release(&first).await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.borrow(), [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6)]);
    });
}

#[test]
fn a_waiter_that_was_dropped_does_not_block_the_queue() {
    runtime().block_on(async {
        let locks = locks();
        let first = locks.acquire(b"k", &LockOptions::default()).await.unwrap();
        let options = waiting(60_000);
        let gone = tokio::time::timeout(std::time::Duration::from_millis(200), locks.acquire(b"k", &options));
        assert!(gone.await.is_err());
        locks.release(&first).await.unwrap();
        let _held = locks.acquire(b"k", &waiting(2_000)).await.unwrap();
    });
}

#[test]
fn work_longer_than_the_ttl_keeps_its_lock() {
    runtime().block_on(async {
        let locks = locks();
        let options = LockOptions { ttl: Duration::from_millis(300), ..LockOptions::default() };
        let result = locks.hold(b"k", &options, |fencing| {
            let locks = &locks;
            async move {
                pause(5_000).await;
                let other = locks.acquire(b"k", &LockOptions::default()).await.unwrap_err();
                (fencing, other.kind())
            }
        });
        assert_eq!(result.await.unwrap(), (1, ErrorKind::Locked));
        let free = locks.acquire(b"k", &LockOptions::default()).await;
        assert!(free.is_ok(), "released when the work was done");
    });
}

#[test]
fn work_has_a_longest_time() {
    runtime().block_on(async {
        let locks = locks();
        let options = LockOptions { max_hold: Duration::from_millis(1_000), ..LockOptions::default() };
        let error = locks.hold(b"k", &options, |_| pause(60_000)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LockLost);
    });
}

#[test]
fn work_is_dropped_when_its_lock_is_lost() {
    runtime().block_on(async {
        let locks = locks();
        let options = LockOptions { ttl: Duration::from_millis(300), ..LockOptions::default() };
        let finished = Cell::new(false);
        let held = locks.hold(b"k", &options, |_| async {
            pause(150).await;
            finished.set(true);
            pause(10_000).await;
            finished.set(false);
        });
        // Somebody with power over the store deletes the lock under the work.
        let thief = async {
            pause(200).await;
            locks.steal().await;
        };
        let (result, ()) = tokio::join!(held, thief);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::LockLost);
        assert!(finished.get(), "the work was stopped where it stood");
    });
}

trait Steal {
    async fn steal(&self);
}

impl Steal for Locks<Rc<Store>, Virtual> {
    async fn steal(&self) {
        use tollgate::Store as _;
        self.store().exec(&[crate::support::command("DEL k")]).await.unwrap();
    }
}

#[test]
fn impossible_times_are_refused() {
    runtime().block_on(async {
        let locks = locks();
        let zero = LockOptions { ttl: Duration::ZERO, ..LockOptions::default() };
        assert_eq!(locks.acquire(b"k", &zero).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let mut held = locks.acquire(b"k", &LockOptions::default()).await.unwrap();
        assert_eq!(locks.renew(&mut held, Duration::ZERO).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(locks.acquire(b"k", &LockOptions::default()).await.unwrap_err().kind(), ErrorKind::Locked);
    });
}

#[test]
fn renewing_sets_the_expiry_and_does_not_add_to_it() {
    runtime().block_on(async {
        let locks = locks();
        let mut held = locks.acquire(b"k", &LockOptions::default()).await.unwrap();
        for _ in 0..10 {
            pause(8_000).await;
            locks.renew(&mut held, Duration::from_secs(10)).await.unwrap();
        }
        assert_eq!(held.expires().as_millis(), 1_000_000 + 80_000 + 10_000, "case B88");
    });
}

#[test]
fn a_lock_on_kv_must_be_asked_for_by_name() {
    runtime().block_on(async {
        let (clock, central) = (Clock::at(1_000_000), Central::default());
        let place = Place::production(&clock, &central);
        let store = KvStore::new(&place, clock.reader(), Bounds::default()).best_effort();
        let locks = Locks::new(store, Virtual::new());
        let error = locks.acquire(b"k", &LockOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BestEffortRequired);
        let options = LockOptions { best_effort: true, ..LockOptions::default() };
        assert!(locks.acquire(b"k", &options).await.is_ok());
    });
}
