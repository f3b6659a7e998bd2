//! Callers that wait inside an object: what its class in JavaScript keeps are promises; this is what it is told.

use tollgate::resp::{decode_replies, encode_batch};
use tollgate::{Command, Durability, LockAnswer, Reply, Timestamp};

use crate::support::disk::World;
use crate::support::{Clock, command};

fn body(lines: &[&str]) -> Vec<u8> {
    let batch: Vec<_> = lines.iter().map(|line| command(line).to_argv()).collect();
    encode_batch(batch.iter())
}

fn wait(token: &str, millis: u64) -> Vec<u8> {
    body(&[&format!("TG.LOCK k {token} 10000 WAIT {millis} POLL {millis}"), &format!("TG.LOCK k {token} 2000")])
}

fn replies(bytes: &[u8]) -> Vec<Reply> {
    decode_replies(bytes).unwrap()
}

fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(parts) if parts[0] == Reply::Integer(1))
}

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

#[test]
fn waiters_are_called_in_order_with_a_provisional_grant() {
    let clock = Clock::default();
    let world = World::new(clock.reader(), 1, Durability::Strict);
    world.with(0, |shard| {
        let first = shard.lock(AT(0), &wait("a", 1000)).unwrap();
        let LockAnswer::Now(reply) = first else { panic!("{first:?}") };
        assert!(is_granted(&replies(&reply)[0]), "free: granted at once, with its whole life");
        assert_eq!(replies(&reply).len(), 1);
        assert_eq!(shard.lock(AT(1), &wait("b", 5000)).unwrap(), LockAnswer::Queued);
        assert_eq!(shard.lock(AT(2), &wait("c", 5000)).unwrap(), LockAnswer::Queued);
        assert_eq!(shard.turns(AT(3)).unwrap(), Vec::<Vec<u8>>::new(), "nobody yet");
        shard.exec(AT(4), &body(&["TG.UNLOCK k a"]), Durability::Strict).unwrap();
        assert_eq!(shard.turns(AT(4)).unwrap(), [b"b".to_vec()]);
        let turn = replies(&shard.turn(AT(4), &wait("b", 5000)).unwrap());
        assert_eq!((turn.len(), &turn[0]), (2, &Reply::Nil), "two replies: it has waited");
        let Reply::Array(grant) = &turn[1] else { panic!("{turn:?}") };
        assert_eq!(grant[2], Reply::Integer(2004), "two seconds to confirm");
        assert_eq!(shard.next_turn(AT(4)).unwrap(), Some(AT(2005)), "if b is dead, c is next");
        assert_eq!(shard.turns(AT(2005)).unwrap(), [b"c".to_vec()]);
    });
}

#[test]
fn a_wait_that_runs_out_is_answered_and_forgotten() {
    let clock = Clock::default();
    let world = World::new(clock.reader(), 1, Durability::Strict);
    world.with(0, |shard| {
        shard.lock(AT(0), &wait("a", 1)).unwrap();
        assert_eq!(shard.lock(AT(0), &wait("b", 50)).unwrap(), LockAnswer::Queued);
        assert_eq!(shard.next_turn(AT(0)).unwrap(), Some(AT(50)));
        assert_eq!(shard.turns(AT(50)).unwrap(), [b"b".to_vec()]);
        assert!(!is_granted(&replies(&shard.turn(AT(50), &wait("b", 50)).unwrap())[1]));
        assert_eq!(shard.next_turn(AT(50)).unwrap(), None);
    });
}

#[test]
fn a_caller_that_hangs_up_leaves_and_gives_back_what_came_just_then() {
    let clock = Clock::default();
    let world = World::new(clock.reader(), 1, Durability::Strict);
    world.with(0, |shard| {
        shard.lock(AT(0), &wait("a", 1)).unwrap();
        shard.lock(AT(0), &wait("b", 5000)).unwrap();
        shard.lock(AT(0), &wait("c", 5000)).unwrap();
        assert_eq!(shard.leave(AT(1), &body(&["TG.UNLOCK k b"])).unwrap(), b"b");
        shard.exec(AT(2), &body(&["TG.UNLOCK k a"]), Durability::Strict).unwrap();
        assert_eq!(shard.turns(AT(2)).unwrap(), [b"c".to_vec()]);
        shard.turn(AT(2), &wait("c", 5000)).unwrap();
        shard.leave(AT(3), &body(&["TG.UNLOCK k c"])).unwrap();
        let free = shard.exec(AT(3), &body(&["EXISTS k"]), Durability::Strict).unwrap();
        assert_eq!(replies(&free), [Reply::Integer(0)]);
    });
}

#[test]
fn odd_bodies_are_errors() {
    let clock = Clock::default();
    let world = World::new(clock.reader(), 1, Durability::Strict);
    world.with(0, |shard| {
        for odd in [&b""[..], b"*0\r\n", &body(&["TG.LOCK k a 5"]), &body(&["GET k", "GET k"])] {
            assert!(shard.lock(AT(0), odd).is_err() && shard.turn(AT(0), odd).is_err());
        }
        assert!(shard.leave(AT(0), &body(&["GET k"])).is_err());
    });
    assert!(matches!(command("TG.LOCK k a 5"), Command::Lock(_)));
}
