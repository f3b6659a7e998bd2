//! Whole-keyspace tests: bounds, stored rows, locks. Redis itself is the reference for the rest, in `tests/rust`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::values::error::Error;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn run<R: Rows>(keyspace: &mut Keyspace<R>, now: u64, line: &str) -> Reply {
    let argv = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    match Command::parse(argv) {
        Ok(command) => keyspace.apply(at(now), &command),
        Err(error) => Reply::Error(error),
    }
}

fn memory(keys: usize) -> Keyspace {
    Keyspace::new(NoRows, Bounds { keys, ..Bounds::default() }, 1)
}

fn error_of(reply: Reply) -> String {
    match reply {
        Reply::Error(error) => error.text().to_owned(),
        other => panic!("expected an error, got {other:?}"),
    }
}

/// A disk: what was committed survives the keyspace.
#[derive(Clone, Default)]
struct Disk(Rc<RefCell<(BTreeMap<Bytes, Row>, u64)>>);

impl Rows for Disk {
    fn is_stored(&self) -> bool {
        true
    }

    fn load(&self, key: &[u8]) -> Result<Option<Row>, Error> {
        Ok(self.0.borrow().0.get(key).cloned())
    }

    fn keys(&self, from: &[u8], until: &[u8]) -> Result<Vec<Bytes>, Error> {
        Ok(self.0.borrow().0.range(from.to_vec()..until.to_vec()).map(|(key, _)| key.clone()).collect())
    }

    fn usage(&self) -> Result<Usage, Error> {
        let disk = self.0.borrow();
        let bytes = disk.0.iter().map(|(key, row)| key.len() + row.weight()).sum();
        Ok(Usage { keys: disk.0.len(), bytes })
    }

    fn reclaim(&mut self, now: Timestamp) -> Result<Reclaimed, Error> {
        self.0.borrow_mut().0.retain(|_, row| !row.is_expired(now));
        let next_expiry = self.0.borrow().0.values().filter_map(|row| row.expires).min();
        Ok(Reclaimed { left: self.usage()?, next_expiry })
    }

    fn fencing(&self) -> Result<u64, Error> {
        Ok(self.0.borrow().1)
    }
}

fn stored(disk: &Disk) -> Keyspace<Disk> {
    Keyspace::new(disk.clone(), Bounds { keys: 4, ..Bounds::default() }, 1)
}

fn flush(keyspace: &mut Keyspace<Disk>) {
    let changes = keyspace.take_changes();
    let disk = keyspace.rows().0.clone();
    let mut disk = disk.borrow_mut();
    for (key, row) in changes.rows {
        match row {
            Some(row) => disk.0.insert(key, row),
            None => disk.0.remove(&key),
        };
    }
    disk.1 = changes.fencing.unwrap_or(disk.1);
}

#[test]
fn a_full_keyspace_refuses_new_keys_and_forgets_nothing_live() {
    let mut keyspace = memory(3);
    run(&mut keyspace, 0, "TG.LOCK lock t 1000");
    run(&mut keyspace, 0, "TG.TAKE 5 limit fixed-window 5 1000");
    run(&mut keyspace, 0, "SET plain v PX 500");
    assert!(error_of(run(&mut keyspace, 0, "SET more v")).starts_with("FULL "));
    assert!(error_of(run(&mut keyspace, 0, "TG.TAKE 1 other fixed-window 5 1000")).starts_with("FULL "));
    assert_eq!(run(&mut keyspace, 0, "SET plain w KEEPTTL"), Reply::OK, "a key that is there may change");
    assert_eq!(run(&mut keyspace, 501, "SET more v"), Reply::OK, "what has expired goes first");
    assert_eq!(run(&mut keyspace, 501, "EXISTS lock limit plain more"), Reply::Integer(3));
}

#[test]
fn several_limits_are_charged_together_even_when_there_is_no_room() {
    let mut keyspace = memory(1);
    let both = "TG.TAKE 1 a fixed-window 5 1000 b fixed-window 5 1000";
    assert!(error_of(run(&mut keyspace, 0, both)).starts_with("FULL "));
    assert_eq!(run(&mut keyspace, 0, "EXISTS a b"), Reply::Integer(0));
    assert!(error_of(run(&mut keyspace, 0, "TG.TAKE 1 a fixed-window 5 1000 a fixed-window 5 1000")).contains("twice"));
}

#[test]
fn bytes_are_bounded_too() {
    let bounds = Bounds { value_bytes: 100, total_bytes: 440, ..Bounds::default() };
    let mut keyspace = Keyspace::new(NoRows, bounds, 1);
    let long = "x".repeat(101);
    assert!(error_of(run(&mut keyspace, 0, &format!("SET k {long}"))).contains("at most 100"));
    assert!(error_of(run(&mut keyspace, 0, &format!("HSET h f {long}"))).contains("at most 100"));
    assert!(error_of(run(&mut keyspace, 0, &format!("GET {}", "k".repeat(1025)))).contains("at most 1024"));
    let value = "x".repeat(100);
    assert_eq!(run(&mut keyspace, 0, &format!("SET a {value}")), Reply::OK);
    assert_eq!(run(&mut keyspace, 0, &format!("SET b {value}")), Reply::OK);
    assert!(error_of(run(&mut keyspace, 0, &format!("SET c {value}"))).starts_with("FULL "));
    assert_eq!(run(&mut keyspace, 0, "DEL a"), Reply::Integer(1));
    assert!(error_of(run(&mut keyspace, 0, &format!("HSET h f v g {value}"))).contains("at most 100"));
    assert_eq!(run(&mut keyspace, 0, &format!("SET c {value}")), Reply::OK, "room is given back");
    assert!(error_of(run(&mut keyspace, 0, &format!("HSET h f v g {}", "x".repeat(60)))).starts_with("FULL "));
    assert_eq!(run(&mut keyspace, 0, "EXISTS h"), Reply::Integer(0), "all fields or none");
    assert_eq!(run(&mut keyspace, 0, "HSET h f v"), Reply::Integer(1), "the rest is still of use");
}

#[test]
fn usage_is_what_is_there_after_any_commands() {
    let mut keyspace = memory(100);
    for line in
        ["SET a 1", "HSET h f v g w", "HDEL h f", "HINCRBY h n 5", "INCR a", "SET a longer", "HDEL h g n", "DEL zz"]
    {
        run(&mut keyspace, 0, line);
        let counted = keyspace.usage().unwrap();
        assert_eq!(keyspace.reclaim(at(0)).unwrap(), counted, "after {line}");
    }
}

#[test]
fn expired_keys_are_given_back_without_a_timer() {
    let mut keyspace = memory(1_000_000);
    for i in 0..10_000 {
        run(&mut keyspace, i, &format!("SET k{i} v PX 10"));
    }
    // Eleven of them live at any time; the sweep is allowed to lag, not to lose.
    assert!(keyspace.usage().unwrap().keys < 500, "{:?}", keyspace.usage());
}

#[test]
fn stored_rows_come_back_and_the_dead_stay_dead() {
    let disk = Disk::default();
    let mut keyspace = stored(&disk);
    run(&mut keyspace, 0, "SET k v PX 1000");
    run(&mut keyspace, 0, "SET gone v");
    flush(&mut keyspace);
    run(&mut keyspace, 0, "PEXPIRE k 10");
    run(&mut keyspace, 0, "DEL gone");
    assert_eq!(run(&mut keyspace, 11, "EXISTS k gone"), Reply::Integer(0), "the older rows on disk must not show");
    flush(&mut keyspace);
    assert_eq!(run(&mut stored(&disk), 11, "EXISTS k gone"), Reply::Integer(0));
    assert!(disk.0.borrow().0.is_empty());
}

#[test]
fn keys_on_disk_count_against_the_bound() {
    let disk = Disk::default();
    let mut keyspace = stored(&disk);
    for i in 0..4 {
        run(&mut keyspace, 0, &format!("SET k{i} v PX {}", 100 * (i + 1)));
    }
    flush(&mut keyspace);
    let mut woken = stored(&disk);
    assert!(error_of(run(&mut woken, 50, "SET more v")).starts_with("FULL "));
    assert_eq!(run(&mut woken, 101, "SET more v"), Reply::OK);
    assert!(error_of(run(&mut woken, 101, "SET again v")).starts_with("FULL "));
    assert_eq!(woken.usage().unwrap().keys, 4);
}

#[test]
fn written_rows_can_be_let_go_of_and_unwritten_ones_stay() {
    let disk = Disk::default();
    let bounds = Bounds { cache_bytes: 1000, ..Bounds::default() };
    let mut keyspace = Keyspace::new(disk.clone(), bounds, 1);
    for i in 0..20 {
        run(&mut keyspace, 0, &format!("SET k{i} v"));
    }
    assert!(keyspace.is_over_cache());
    flush(&mut keyspace);
    run(&mut keyspace, 0, "INCRBY new 5");
    keyspace.trim();
    assert!(!keyspace.is_over_cache());
    assert_eq!(run(&mut keyspace, 0, "GET new"), Reply::Bulk(b"5".to_vec()));
    assert_eq!(run(&mut keyspace, 0, "EXISTS k0 k19"), Reply::Integer(2));
    assert_eq!(keyspace.usage().unwrap().keys, 21);
}

#[test]
fn a_failed_write_leaves_what_is_stored() {
    let disk = Disk::default();
    let mut keyspace = stored(&disk);
    run(&mut keyspace, 0, "SET k old");
    flush(&mut keyspace);
    run(&mut keyspace, 0, "SET k new");
    run(&mut keyspace, 0, "SET other v");
    let lost = keyspace.take_changes();
    keyspace.forget_changes(&lost);
    assert_eq!(run(&mut keyspace, 0, "GET k"), Reply::Bulk(b"old".to_vec()));
    assert_eq!(run(&mut keyspace, 0, "EXISTS other"), Reply::Integer(0));
    assert_eq!(keyspace.usage().unwrap().keys, 1);
}

fn granted(fencing: i64, expires: i64) -> Reply {
    Reply::Array(vec![Reply::Integer(1), Reply::Integer(fencing), Reply::Integer(expires)])
}

fn held(left: i64, waiters: i64) -> Reply {
    Reply::Array(vec![Reply::Integer(0), Reply::Integer(left), Reply::Integer(waiters)])
}

#[test]
fn a_lock_belongs_to_its_token_and_fencing_numbers_grow() {
    let disk = Disk::default();
    let mut keyspace = stored(&disk);
    assert_eq!(run(&mut keyspace, 0, "TG.LOCK k a 100"), granted(1, 100));
    assert_eq!(run(&mut keyspace, 0, "TG.LOCK k b 100"), held(100, 0));
    assert_eq!(
        run(&mut keyspace, 10, "TG.LOCK k a 100"),
        granted(1, 110),
        "the holder whose reply was lost asks again"
    );
    assert_eq!(run(&mut keyspace, 10, "TG.UNLOCK k b"), Reply::Integer(0));
    assert_eq!(run(&mut keyspace, 10, "TG.RENEW k b 500"), Reply::Nil);
    assert_eq!(run(&mut keyspace, 20, "TG.RENEW k a 500"), granted(1, 520), "set, not added (case B88)");
    assert_eq!(run(&mut keyspace, 20, "SETNX k 1"), Reply::Integer(0), "the seed's SETNX sees it");
    assert_eq!(run(&mut keyspace, 521, "TG.LOCK k b 100"), granted(2, 621));
    assert_eq!(run(&mut keyspace, 530, "TG.UNLOCK k a"), Reply::Integer(0), "the old owner deletes nothing");
    flush(&mut keyspace);
    let mut restarted = stored(&disk);
    assert_eq!(run(&mut restarted, 531, "TG.LOCK k c 100"), held(90, 0));
    assert_eq!(run(&mut restarted, 531, "TG.UNLOCK k b"), Reply::Integer(1));
    assert_eq!(run(&mut restarted, 531, "TG.LOCK other c 100"), granted(3, 631), "after a restart and on another key");
}

#[test]
fn the_queue_is_served_in_order_and_not_overtaken() {
    let mut keyspace = memory(10);
    run(&mut keyspace, 0, "TG.LOCK k a 100");
    assert_eq!(run(&mut keyspace, 0, "TG.LOCK k b 100 WAIT 1000"), held(100, 1));
    assert_eq!(run(&mut keyspace, 0, "TG.LOCK k c 100 WAIT 50"), held(100, 2));
    assert_eq!(keyspace.next_turn(at(0), b"k").unwrap(), Some(at(50)));
    run(&mut keyspace, 10, "TG.UNLOCK k a");
    assert_eq!(
        run(&mut keyspace, 10, "TG.LOCK k d 100"),
        Reply::Array(vec![Reply::Integer(0), Reply::Nil, Reply::Integer(2),]),
        "it is free, but it is b's turn"
    );
    let turn = keyspace.turn(at(60), b"k").unwrap();
    assert_eq!((turn.next, turn.over), (Some(b"b".to_vec()), vec![b"c".to_vec()]));
    assert_eq!(run(&mut keyspace, 60, "TG.LOCK k b 100"), granted(2, 160));
    assert_eq!(keyspace.next_turn(at(60), b"k").unwrap(), None);
}

#[test]
fn a_poller_that_died_does_not_block_the_queue() {
    let mut keyspace = memory(10);
    run(&mut keyspace, 0, "TG.LOCK k a 100");
    run(&mut keyspace, 0, "TG.LOCK k dead 100 WAIT 10000 POLL 200");
    run(&mut keyspace, 0, "TG.LOCK k alive 100 WAIT 10000 POLL 200");
    run(&mut keyspace, 150, "TG.LOCK k alive 100 WAIT 10000 POLL 200");
    assert_eq!(run(&mut keyspace, 201, "TG.LOCK k alive 100 WAIT 10000 POLL 200"), granted(2, 301));
}

#[test]
fn no_time_panics() {
    let mut keyspace = memory(10);
    for now in [0, 1, u64::MAX / 2, u64::MAX] {
        for line in [
            "SET k v EX 9223372036854775",
            "SET k v PX 9223372036854775807",
            "PEXPIRE k 9223372036854775807",
            "PTTL k",
            "TTL k",
            "EXPIRE k -9223372036854775808",
            "TG.LOCK l t 9007199254740991",
            "TG.RENEW l t 1",
            "TG.TAKE 1 t fixed-window 9007199254740991 31622400000",
            "TG.REFUND 1 9007199254740991 t fixed-window 5 1",
        ] {
            let _ = run(&mut keyspace, now, line);
        }
    }
}
