//! What the limits' commands promise beyond the algorithms' own: together or not at all, and what is done from outside.

use crate::engine::command::Command;
use crate::engine::keyspace::{Bounds, Keyspace, NoRows};
use crate::engine::reply::Reply;
use crate::rules::series::recorder::{Labels, Recorder, Recording};
use crate::rules::series::rollup::Rollups;
use crate::values::time::{Duration, Timestamp};

struct Limits(Keyspace<NoRows>);

impl Limits {
    fn new() -> Self {
        Self(Keyspace::new(NoRows, Bounds::default(), 1))
    }

    fn run(&mut self, now: u64, line: &str) -> Reply {
        let argv = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        match Command::parse(argv) {
            Ok(command) => self.0.apply(Timestamp::from_millis(now), &command),
            Err(error) => Reply::Error(error),
        }
    }

    /// Each limit's answer: allowed, remaining, retry after, granted, blocked.
    fn take(&mut self, now: u64, line: &str) -> Vec<(bool, u64, Option<u64>, u64, bool)> {
        let Reply::Array(limits) = self.run(now, line) else { panic!("{line}") };
        let fields = |limit: Reply| {
            let field = limit.into_array().unwrap();
            let number = |at: usize| field[at].clone().into_count().unwrap();
            let retry = (field[3] != Reply::Nil).then(|| number(3));
            (number(0) == 1, number(1), retry, number(5), number(6) == 1)
        };
        limits.into_iter().map(fields).collect()
    }

    fn left(&mut self, now: u64, limit: &str) -> u64 {
        self.take(now, &format!("TG.PEEK 0 {limit}"))[0].1
    }
}

const MINUTE: &str = "k fixed-window 10 60000";

#[test]
fn a_shadowed_limit_refuses_nothing_and_is_charged_when_it_would_allow() {
    let mut limits = Limits::new();
    let both = "TG.TAKE SHADOW 1 1 a gcra 5 60000 b gcra 2 60000";
    let found: Vec<_> = (0..3).map(|_| limits.take(0, both)).map(|pair| (pair[0].0, pair[1].0, pair[1].3)).collect();
    assert_eq!(found, [(true, true, 1), (true, true, 1), (true, false, 0)]);
    assert_eq!((limits.left(0, "a gcra 5 60000"), limits.left(0, "b gcra 2 60000")), (2, 0));
    // What the other refuses costs it nothing.
    let other = limits.take(0, "TG.TAKE SHADOW 1 3,1 a gcra 5 60000 c gcra 2 60000");
    assert_eq!((other[0].0, other[1].0, other[1].3), (false, true, 0));
    assert_eq!(limits.left(0, "c gcra 2 60000"), 2);
}

#[test]
fn a_partial_take_grants_what_all_of_them_have() {
    let mut limits = Limits::new();
    let both = |cost: u64| format!("TG.TAKE PARTIAL {cost} a gcra 5 60000 b fixed-window 8 60000");
    let granted =
        |found: Vec<(bool, u64, Option<u64>, u64, bool)>| found.iter().map(|limit| limit.3).collect::<Vec<_>>();
    assert_eq!(granted(limits.take(0, &both(3))), [3, 3]);
    assert_eq!(granted(limits.take(0, &both(9))), [2, 2], "the rest, also when more than a quota is asked");
    let refused = limits.take(0, &both(3));
    assert_eq!((refused[0].0, refused[0].3, refused[1].0, refused[1].1), (false, 0, true, 3));
    assert!(refused[0].2.is_some_and(|wait| wait > 0));
}

#[test]
fn each_limit_may_have_its_own_cost() {
    let mut limits = Limits::new();
    let found = limits.take(0, "TG.TAKE 1,700 a gcra 5 60000 bytes gcra 1000 60000");
    assert_eq!(found.iter().map(|limit| (limit.1, limit.3)).collect::<Vec<_>>(), [(4, 1), (300, 700)]);
}

#[test]
fn a_block_refuses_until_it_ends_or_is_lifted() {
    let mut limits = Limits::new();
    assert_eq!(limits.run(0, "TG.BLOCK 500 k"), Reply::OK);
    assert_eq!(limits.take(0, &format!("TG.TAKE 1 {MINUTE}")), [(false, 0, Some(500), 0, true)]);
    assert_eq!(limits.take(499, &format!("TG.TAKE 1 {MINUTE}")), [(false, 0, Some(1), 0, true)]);
    assert_eq!(limits.take(500, &format!("TG.TAKE 1 {MINUTE}")), [(true, 9, None, 1, false)]);
    limits.run(500, "TG.BLOCK 60000 k");
    limits.run(501, "TG.BLOCK 0 k");
    assert_eq!(limits.left(501, MINUTE), 9, "what was counted stays counted");
    limits.run(501, "TG.BLOCK 60000 k");
    assert_eq!(limits.run(501, "TG.RESET k unknown"), Reply::Integer(1));
    assert_eq!(limits.left(501, MINUTE), 10);
    limits.run(501, "SET text x");
    assert!(matches!(limits.run(501, "TG.BLOCK 5 text"), Reply::Error(_)));
    assert!(matches!(limits.run(501, "TG.RESET k text"), Reply::Error(_)));
}

#[test]
fn repeated_refusals_block_for_longer_each_time() {
    let mut limits = Limits::new();
    let take = "TG.TAKE ESCALATE 0 2 1000 4 10000 60000 1 k gcra 1 100";
    assert!(limits.take(0, take)[0].0);
    assert_eq!(limits.take(0, take), [(false, 0, Some(100), 0, false)]);
    assert_eq!(limits.take(0, take), [(false, 0, Some(1000), 0, true)], "the second refusal blocks");
    assert_eq!(limits.take(900, take), [(false, 0, Some(100), 0, true)], "and asking on does not make it longer");
    assert!(limits.take(1000, take)[0].0);
    limits.take(1000, take);
    assert_eq!(limits.take(1000, take)[0].2, Some(4000));
    assert_eq!(limits.take(1001, &take.replace("TG.TAKE", "TG.PEEK"))[0].2, Some(3999));
}

#[test]
fn settle_gives_back_or_charges_the_difference() {
    let mut limits = Limits::new();
    let settle = |cost: u64, actual: u64| format!("TG.SETTLE {cost} {actual} 60000 {MINUTE}");
    limits.take(0, &format!("TG.TAKE 4 {MINUTE}"));
    limits.run(0, &settle(4, 1));
    assert_eq!(limits.left(0, MINUTE), 9);
    limits.run(0, &settle(1, 8));
    assert_eq!(limits.left(0, MINUTE), 2);
    limits.run(0, &settle(0, 5));
    assert_eq!(limits.left(0, MINUTE), 0, "the cost was more than there was: it is overdrawn");
    limits.run(0, &format!("TG.REWARD 4 {MINUTE}"));
    assert_eq!(limits.left(0, MINUTE), 1);
    limits.run(0, &format!("TG.PENALTY 900 {MINUTE}"));
    assert_eq!(limits.take(0, &format!("TG.TAKE 1 {MINUTE}")), [(false, 0, Some(60_000), 0, false)]);
    limits.run(60_000, &settle(9, 2));
    assert_eq!(limits.left(60_000, MINUTE), 10, "never into another window");
    assert!(matches!(limits.run(0, "TG.PENALTY 1 s concurrency 5 1000"), Reply::Error(_)));
}

#[test]
fn slots_are_released_once_and_renewed_while_they_are_held() {
    let mut limits = Limits::new();
    let slot = "s concurrency 2 1000";
    for (token, allowed) in [("a", true), ("b", true), ("c", false), ("a", true)] {
        assert_eq!(limits.take(0, &format!("TG.TAKE TOKEN {token} 1 {slot}"))[0].0, allowed, "{token}");
    }
    assert_eq!(limits.run(0, "TG.RELEASE a s other"), Reply::Integer(1));
    assert_eq!(limits.run(0, "TG.RELEASE a s"), Reply::Integer(0), "once more changes nothing");
    assert_eq!(limits.run(900, &format!("TG.EXTEND b {slot}")), Reply::Integer(1));
    assert_eq!((limits.left(1000, slot), limits.left(1900, slot)), (1, 2));
    assert_eq!(limits.run(1900, &format!("TG.EXTEND b {slot}")), Reply::Integer(0));
    let Reply::Error(error) = limits.run(0, &format!("TG.TAKE 1 {slot}")) else { panic!("nobody holds it") };
    assert_eq!(error.text(), "ERR token: expected 1 to 64 bytes for a slot, got 0");
}

#[test]
fn what_watches_only_is_recorded_as_such() {
    let recording = Recording {
        rollups: Rollups::default(),
        capacity: 16,
        flush: Duration::from_secs(10),
        labels: Labels::pseudonyms(b"secret").unwrap(),
    };
    let mut limits = Limits(Keyspace::new(NoRows, Bounds::default(), 1).recording(Recorder::new(recording)));
    let both = "TG.TAKE RECORD SHADOW 1 1 gate:e:gcra:{k} gcra 3 60000 gate:s:gcra:{k} gcra 1 60000";
    (0..5).for_each(|_| drop(limits.take(0, both)));
    let Reply::Array(rows) = limits.run(0, "TG.TOTALS") else { panic!("no totals") };
    let counts = |row: &Reply| -> Vec<u64> {
        row.clone().into_array().unwrap().into_iter().skip(1).map(|count| count.into_count().unwrap()).collect()
    };
    // What the first refused, the second has not decided.
    assert_eq!(rows[2..].iter().map(counts).collect::<Vec<_>>(), [[3, 2, 0, 0], [1, 0, 0, 2]]);
}

#[test]
fn a_document_of_policies_changes_only_for_who_has_seen_the_present_one() {
    let mut limits = Limits::new();
    let version = |reply: Reply| reply.into_array().unwrap();
    assert_eq!(version(limits.run(0, "TG.POLICY")), [Reply::Integer(0), Reply::Nil]);
    assert_eq!(version(limits.run(0, "TG.SETPOLICY 0 one")), [Reply::Integer(1), Reply::Integer(1)]);
    assert_eq!(version(limits.run(0, "TG.SETPOLICY 0 two")), [Reply::Integer(0), Reply::Integer(1)]);
    assert_eq!(version(limits.run(0, "TG.POLICY 0")), [Reply::Integer(1), Reply::Bulk(b"one".to_vec())]);
    assert_eq!(version(limits.run(0, "TG.POLICY 1")), [Reply::Integer(1), Reply::Nil]);
    assert_eq!(version(limits.run(0, "TG.SETPOLICY * ")), [Reply::Integer(1), Reply::Integer(2)]);
    assert_eq!(version(limits.run(0, "TG.POLICY 1")), [Reply::Integer(2), Reply::Nil], "removed, and not version 0");
    let key = Command::Get(b"\0policy".to_vec());
    assert!(matches!(limits.0.apply(Timestamp::default(), &key), Reply::Error(_)));
}
