//! KV as production has it: its documented weakness is seen to happen, and nothing worse.

use tollgate::{Bounds, Error, ErrorKind, KvStore, Reply, Store, incr_and_check_limit};

use crate::support::namespace::{Central, Place};
use crate::support::{Clock, command, now_or_never};

const NOW: u64 = 1_700_000_010_000;

fn exec(place: &Place, clock: &Clock, line: &str) -> Result<Reply, Error> {
    let store = KvStore::new(place, clock.reader(), Bounds::default()).best_effort();
    now_or_never(store.exec(&[command(line)])).map(|mut replies| replies.remove(0))
}

#[test]
fn it_says_that_it_is_best_effort() {
    let (clock, central) = (Clock::at(NOW), Central::default());
    let place = Place::production(&clock, &central);
    let capabilities = KvStore::new(&place, clock.reader(), Bounds::default()).capabilities();
    assert!(!capabilities.atomic && !capabilities.fair_waiting);
    assert_eq!(capabilities.staleness.unwrap().as_millis(), 60_000);
    assert_eq!(capabilities.smallest_ttl.as_millis(), 60_000);
}

#[test]
fn locks_are_refused_unless_asked_for_by_name() {
    let (clock, central) = (Clock::at(NOW), Central::default());
    let place = Place::production(&clock, &central);
    let store = KvStore::new(&place, clock.reader(), Bounds::default());
    let error = now_or_never(store.exec(&[command("TG.LOCK k a 1000")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BestEffortRequired);
    assert!(now_or_never(store.best_effort().exec(&[command("TG.LOCK k a 1000")])).is_ok());
}

#[test]
fn a_second_write_within_a_second_is_a_clear_error() {
    let (clock, central) = (Clock::at(NOW), Central::default());
    let place = Place::production(&clock, &central);
    assert_eq!(exec(&place, &clock, "INCR n"), Ok(Reply::Integer(1)));
    clock.advance(999);
    assert_eq!(exec(&place, &clock, "INCR n").unwrap_err().kind(), ErrorKind::WriteConflict);
    clock.advance(1);
    assert_eq!(exec(&place, &clock, "INCR n"), Ok(Reply::Integer(2)), "the refused one was not counted");
}

#[test]
fn short_lives_end_on_time_although_kv_keeps_them_longer() {
    let (clock, central) = (Clock::at(NOW), Central::default());
    let place = Place::production(&clock, &central);
    exec(&place, &clock, "SET k v PX 1500").unwrap();
    clock.advance(1500);
    assert_eq!(exec(&place, &clock, "GET k"), Ok(Reply::Bulk(b"v".to_vec())));
    clock.advance(1);
    assert_eq!(exec(&place, &clock, "GET k"), Ok(Reply::Nil));
    assert_eq!(exec(&place, &clock, "PTTL k"), Ok(Reply::Integer(-2)));
}

#[test]
fn places_that_do_not_see_each_other_lose_updates_and_never_count_too_much() {
    let (clock, central) = (Clock::at(NOW), Central::default());
    let places = [Place::production(&clock, &central), Place::production(&clock, &central)];
    let mut admitted = 0;
    let limit = 10;
    for round in 0..20 {
        clock.set(NOW + round * 1500);
        for place in &places {
            let store = KvStore::new(place, clock.reader(), Bounds::default());
            match now_or_never(incr_and_check_limit(&store, clock.now(), b"user", limit)) {
                Ok(over) => admitted += u64::from(!over),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WriteConflict),
            }
        }
    }
    // Here the second place always writes in the same second as the first, and is refused: what it read is old too.
    assert!(admitted >= limit, "a lower bound: {admitted} of {limit}");
    assert!(admitted <= limit * places.len() as u64, "each place keeps the limit for itself: {admitted}");
}

#[test]
fn a_place_that_read_a_miss_lets_a_second_owner_in() {
    let (clock, central) = (Clock::at(NOW), Central::default());
    let (here, there) = (Place::production(&clock, &central), Place::production(&clock, &central));
    assert_eq!(exec(&there, &clock, "TG.LOCKINFO k"), Ok(Reply::Nil));
    let granted =
        |reply: Result<Reply, Error>| matches!(reply, Ok(Reply::Array(parts)) if parts[0] == Reply::Integer(1));
    assert!(granted(exec(&here, &clock, "TG.LOCK k a 120000")));
    clock.advance(2000);
    assert!(granted(exec(&there, &clock, "TG.LOCK k b 120000")), "the weakness: two owners");
    clock.advance(60_000);
    let info = exec(&here, &clock, "TG.LOCKINFO k").unwrap();
    let Reply::Array(info) = info else { panic!("{info:?}") };
    assert_eq!(info[1], Reply::Integer((NOW + 2001) as i64), "the last writer won, and its number is the larger one");
    assert_eq!(
        exec(&here, &clock, "TG.UNLOCK k a"),
        Ok(Reply::Integer(0)),
        "nothing worse: not even then by another token"
    );
}

#[test]
fn counters_of_different_keys_do_not_disturb_each_other() {
    let (clock, central) = (Clock::at(NOW), Central::default());
    let place = Place::production(&clock, &central);
    let store = KvStore::new(&place, clock.reader(), Bounds::default());
    for user in 0..100 {
        let over = now_or_never(incr_and_check_limit(&store, clock.now(), format!("u{user}").as_bytes(), 1)).unwrap();
        assert!(!over, "writes to different keys are not limited");
    }
}
