//! What a shard records of policies' decisions: through eviction, crashes, broken disks and days of virtual time.

use std::collections::{BTreeMap, HashMap, HashSet};

use tollgate::resp::{decode_replies, encode_batch};
use tollgate::{
    Bounds, Changes, Command, Durability, Duration, Labels, Outcome, Recorder, Recording, Reply, Rollups, Row, Shard,
    StoredRows, Timestamp, Value, Window,
};

use crate::support::disk::Disk;
use crate::support::rng::Rng;
use crate::support::{Clock, command};

const FLUSH: u64 = 10_000;

struct Object {
    clock: Clock,
    disk: Disk,
    shard: Shard<Disk>,
    bounds: Bounds,
    is_readable: bool,
}

impl Object {
    fn new(now: u64) -> Self {
        Self::bounded(now, Bounds::default())
    }

    fn bounded(now: u64, bounds: Bounds) -> Self {
        let (clock, disk) = (Clock::at(now), Disk::default());
        let shard = Self::open(&disk, bounds, true);
        Self { clock, disk, shard, bounds, is_readable: true }
    }

    fn open(disk: &Disk, bounds: Bounds, is_readable: bool) -> Shard<Disk> {
        let labels = Labels::pseudonyms(b"secret").unwrap();
        let labels = if is_readable { labels.readable() } else { labels };
        let flush = Duration::from_millis(FLUSH);
        let recording = Recording { rollups: Rollups::default(), capacity: 500, flush, labels };
        Shard::new(disk.clone(), bounds, 1).recording(Recorder::new(recording))
    }

    /// The object loses its memory.
    fn lose_memory(&mut self) {
        self.shard = Self::open(&self.disk, self.bounds, self.is_readable);
    }

    fn save(&mut self) {
        self.shard.flush_all(self.clock.now()).unwrap();
    }

    /// The heaviest keys: label, then allowed, denied, degraded, shadowed.
    fn top(&mut self, most: usize, outcomes: &[Outcome], rollup: u64) -> Vec<(String, [u64; 4])> {
        let window = Self::window(rollup, MIDNIGHT, self.clock.now().as_millis());
        let rows = self.rows(&Command::Top { most, outcomes: outcomes.to_vec(), window });
        let label = |reply: &Reply| {
            let Reply::Bulk(label) = reply else { panic!("{reply:?}") };
            String::from_utf8(label.clone()).unwrap()
        };
        rows.iter().map(|row| (label(&row[1]), [2, 3, 4, 5].map(|cell: usize| count(&row[cell])))).collect()
    }

    fn distinct(&mut self, rollup: u64) -> u64 {
        let window = Self::window(rollup, MIDNIGHT, self.clock.now().as_millis());
        self.rows(&Command::Distinct(window)).iter().map(|row| count(&row[1])).sum()
    }

    fn run(&mut self, command: &Command) -> Reply {
        let batch = encode_batch([command.to_argv()].iter());
        let replies = self.shard.exec(self.clock.now(), &batch, Durability::Relaxed).unwrap();
        decode_replies(&replies).unwrap().remove(0)
    }

    fn take(&mut self, policy: &str, key: &str, quota: u64) -> bool {
        let line = format!("TG.TAKE RECORD 1 gate:{policy}:fixed-window:{{{key}}} fixed-window {quota} 86400000");
        let Reply::Array(answers) = self.run(&command(&line)) else { panic!("no answer to {line}") };
        let Reply::Array(answer) = &answers[0] else { panic!("no answer to {line}") };
        answer[0] == Reply::Integer(1)
    }

    /// What the runtime's timer does.
    fn tick(&mut self) {
        if self.shard.next_flush().is_some_and(|at| at <= self.clock.now()) {
            self.shard.flush_due(self.clock.now()).unwrap();
        }
    }

    fn window(rollup: u64, start: u64, end: u64) -> Window {
        let at = Timestamp::from_millis;
        Window { rollup: Duration::from_millis(rollup), start: at(start), end: at(end), policy: None }
    }

    fn rows(&mut self, command: &Command) -> Vec<Vec<Reply>> {
        let Reply::Array(rows) = self.run(command) else { panic!("{command:?} failed") };
        rows.into_iter().map(|row| row.into_array().unwrap()).collect()
    }

    /// Bucket -> allowed, denied, degraded, shadowed of one policy.
    fn series(&mut self, policy: &str, rollup: u64, start: u64, end: u64) -> BTreeMap<u64, [u64; 4]> {
        let rows = self.rows(&Command::Series(Self::window(rollup, start, end)));
        let mine = rows.into_iter().filter(|row| row[1] == Reply::Bulk(policy.as_bytes().to_vec()));
        mine.map(|row| (count(&row[0]), [2, 3, 4, 5].map(|cell: usize| count(&row[cell])))).collect()
    }

    fn totals(&mut self, policy: &str) -> [u64; 4] {
        let Reply::Array(reply) = self.run(&Command::Totals) else { panic!("no totals") };
        let rows = reply.into_iter().skip(2).map(|row| row.into_array().unwrap());
        let mine = rows.filter(|row| row[0] == Reply::Bulk(policy.as_bytes().to_vec()));
        mine.map(|row| [1, 2, 3, 4].map(|cell: usize| count(&row[cell]))).next().unwrap_or_default()
    }
}

fn count(reply: &Reply) -> u64 {
    reply.clone().into_count().unwrap()
}

fn sum(series: &BTreeMap<u64, [u64; 4]>) -> [u64; 4] {
    series.values().fold([0; 4], |sum, counts| std::array::from_fn(|at| sum[at] + counts[at]))
}

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;
/// 2023-11-14T00:00:00Z
const MIDNIGHT: u64 = 1_699_920_000_000;

#[test]
fn every_level_tells_the_same_through_evictions_and_days() {
    let seed = Rng::seed();
    let mut rng = Rng::new(seed);
    let mut object = Object::new(MIDNIGHT);
    let mut exact = BTreeMap::<u64, [u64; 4]>::new();
    let mut decisions = 0;
    while object.clock.now().as_millis() < MIDNIGHT + 6 * DAY {
        for _ in 0..rng.below(20) {
            let allowed = object.take("p", &format!("ip:{}", rng.below(50)), 20);
            let bucket = object.clock.now().as_millis() / (10 * SECOND) * 10 * SECOND;
            exact.entry(bucket).or_default()[usize::from(!allowed)] += 1;
            decisions += 1;
        }
        let pause = *rng.pick(&[50, 900, 4000, 11_000, 600_000, 2 * HOUR]);
        let until = object.clock.now().as_millis() + pause;
        while object.clock.now().as_millis() < until {
            object.clock.advance((pause / 4).max(1));
            object.tick();
        }
        if rng.below(10) == 0 {
            let now = object.clock.now();
            object.shard.clean_up(now).unwrap();
        }
        // An object is not evicted while a timer waits, so it loses its memory only after a flush.
        if object.shard.next_flush().is_none() && rng.below(3) == 0 {
            object.lose_memory();
        }
    }
    let now = object.clock.now().as_millis();
    assert!(decisions > 500 && exact.len() > 50, "{decisions} in {} buckets, seed {seed}", exact.len());
    for (rollup, kept) in [(10 * SECOND, HOUR), (HOUR, 7 * DAY), (DAY, 90 * DAY)] {
        let start = (now - kept).max(MIDNIGHT).next_multiple_of(rollup);
        let mut wanted = BTreeMap::<u64, [u64; 4]>::new();
        for (at, counts) in exact.range(start..) {
            let bucket = wanted.entry(at / rollup * rollup).or_default();
            *bucket = std::array::from_fn(|outcome| bucket[outcome] + counts[outcome]);
        }
        assert_eq!(object.series("p", rollup, start, now), wanted, "rollup {rollup}, seed {seed}");
    }
    assert_eq!(object.totals("p"), sum(&exact), "seed {seed}");
    let (_, written) = (object.shard.flush_all(object.clock.now()), object.disk.written());
    println!("{decisions} decisions in six days of virtual time wrote {written} rows, counters included");
}

#[test]
fn a_crash_loses_only_what_was_decided_since_the_last_flush() {
    let mut object = Object::new(MIDNIGHT);
    let (mut since_flush, mut sent) = (0, 0);
    for _ in 0..750 {
        object.take("p", "ip:1", 1_000_000);
        (sent, since_flush) = (sent + 1, since_flush + 1);
        object.clock.advance(100);
        let before = object.shard.next_flush();
        object.tick();
        if object.shard.next_flush() != before && object.shard.next_flush().is_none() {
            since_flush = 0;
        }
    }
    object.lose_memory();
    let now = object.clock.now().as_millis();
    let [found, ..] = sum(&object.series("p", 10 * SECOND, MIDNIGHT, now));
    assert_eq!(found, sent - since_flush);
    assert!(since_flush <= FLUSH / 100, "at most one window is lost: {since_flush}");
    assert_eq!(object.totals("p"), [found, 0, 0, 0]);
    object.take("p", "ip:1", 1_000_000);
    assert_eq!(object.totals("p"), [found + 1, 0, 0, 0], "totals go on from what was stored");
    println!("{} of {sent} decisions were lost with the last {FLUSH} ms", sent - found);
}

#[test]
fn a_window_of_decisions_is_one_row_however_many_there_were() {
    for decisions in [1, 1000] {
        let mut object = Object::new(MIDNIGHT);
        for n in 0..decisions {
            object.take("p", &format!("ip:{n}"), 5);
        }
        object.shard.flush().unwrap();
        let counters = object.disk.written();
        object.shard.flush_all(object.clock.now()).unwrap();
        assert_eq!(object.disk.written() - counters, 1, "{decisions} decisions");
        println!("{decisions} decisions: {counters} rows of counters, 1 row of records");
    }
}

#[test]
fn a_broken_disk_delays_what_was_recorded_and_fails_no_request() {
    let mut object = Object::new(MIDNIGHT);
    object.disk.break_down(true);
    for _ in 0..30 {
        assert!(object.take("p", "ip:1", 100));
        object.clock.advance(5000);
        let _ = object.shard.flush_due(object.clock.now());
        let (next, now) = (object.shard.next_flush(), object.clock.now());
        assert!(next.is_none_or(|at| at >= now), "it is not tried again at once");
    }
    let now = object.clock.now().as_millis();
    assert_eq!(sum(&object.series("p", 10 * SECOND, MIDNIGHT, now))[0], 30);
    object.disk.break_down(false);
    object.shard.flush_all(object.clock.now()).unwrap();
    object.lose_memory();
    assert_eq!(sum(&object.series("p", 10 * SECOND, MIDNIGHT, now))[0], 30, "nothing was lost");
    assert_eq!(sum(&object.series("p", HOUR, MIDNIGHT, now))[0], 30);
}

#[test]
fn a_clock_that_goes_back_counts_nothing_twice_and_loses_nothing() {
    let mut object = Object::new(MIDNIGHT + HOUR - 5000);
    for now in [MIDNIGHT + HOUR - 5000, MIDNIGHT + HOUR + 5000, MIDNIGHT + HOUR - 1000, MIDNIGHT + HOUR - 500_000] {
        object.clock.set(now);
        object.take("p", "ip:1", 100);
        object.shard.flush_all(object.clock.now()).unwrap();
    }
    object.clock.set(MIDNIGHT + 2 * HOUR);
    object.shard.flush_all(object.clock.now()).unwrap();
    let until = MIDNIGHT + 2 * HOUR - 1;
    for rollup in [HOUR, DAY] {
        assert_eq!(sum(&object.series("p", rollup, MIDNIGHT, until))[0], 4, "rollup {rollup}");
    }
}

#[test]
fn only_gates_decisions_that_say_so_are_recorded() {
    let mut object = Object::new(MIDNIGHT);
    object.run(&command("TG.TAKE 1 gate:p:fixed-window:{k} fixed-window 1 60000"));
    object.run(&command("TG.PEEK 1 gate:p:fixed-window:{k} fixed-window 1 60000"));
    object.run(&command("TG.TAKE RECORD 1 user:1 fixed-window 1 60000"));
    object.run(&command("TG.TAKE RECORD 0 gate:p:fixed-window:{k} fixed-window 1 60000"));
    assert_eq!(object.totals("p"), [0, 0, 0, 0]);
    object.run(&command("TG.PEEK RECORD 1 gate:p:fixed-window:{j} fixed-window 1 60000"));
    assert_eq!(object.totals("p"), [0, 0, 0, 0], "a look that would pass has decided nothing");
    object.run(&command("TG.PEEK RECORD 1 gate:p:fixed-window:{k} fixed-window 1 60000"));
    assert_eq!(object.totals("p"), [0, 1, 0, 0], "a look that refuses has");
    let both = "gate:p:fixed-window:{k} fixed-window 1 60000 gate:q:fixed-window:{k} fixed-window 5 60000";
    object.run(&command(&format!("TG.TAKE RECORD 1 {both}")));
    assert_eq!((object.totals("p"), object.totals("q")), ([0, 2, 0, 0], [0, 0, 0, 0]), "q has decided nothing");
    object.run(&command("TG.RECORD 5 q degraded 7"));
    assert_eq!(object.totals("q"), [0, 0, 7, 0]);
}

/// Keys by a weight of 1 / rank, or all alike.
fn stream(rng: &mut Rng, keys: usize, length: usize, is_skewed: bool) -> Vec<usize> {
    let weights: Vec<f64> = (1..=keys).map(|rank| if is_skewed { 1.0 / rank as f64 } else { 1.0 }).collect();
    let sums: Vec<f64> = weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let draw = |_| {
        let at = sums[keys - 1] * rng.below(1 << 30) as f64 / f64::from(1 << 30);
        sums.partition_point(|sum| *sum < at)
    };
    (0..length).map(draw).collect()
}

#[test]
fn the_top_and_the_number_of_keys_are_close_on_skewed_and_on_uniform_traffic() {
    let seed = Rng::seed();
    let mut rng = Rng::new(seed);
    for (name, is_skewed) in [("Zipf", true), ("uniform", false)] {
        let mut object = Object::new(MIDNIGHT);
        let mut exact = HashMap::<usize, u64>::new();
        for key in stream(&mut rng, 5000, 40_000, is_skewed) {
            object.take("p", &format!("ip:{key}"), 1_000_000);
            *exact.entry(key).or_default() += 1;
            object.clock.advance(7);
            object.tick();
        }
        let window = Object::window(10 * SECOND, MIDNIGHT, object.clock.now().as_millis());
        let top = object.rows(&Command::Top { most: 10, outcomes: vec![Outcome::Allowed], window: window.clone() });
        let mut ranked: Vec<_> = exact.iter().map(|(key, count)| (*count, format!("ip:{key}"))).collect();
        ranked.sort_by(|a, b| b.cmp(a));
        let truth: HashSet<_> = ranked.iter().take(10).map(|(_, key)| key.clone()).collect();
        let mut hits = 0;
        let mut worst = 0.0f64;
        for row in &top {
            let Reply::Bulk(label) = &row[1] else { panic!("no label in {row:?}") };
            let label = String::from_utf8(label.clone()).unwrap();
            let real = exact[&label["ip:".len()..].parse::<usize>().unwrap()];
            let (told, error) = (count(&row[2]), count(&row[6]));
            assert!(told <= real && real <= told + error, "{label}: {told} to {} and not {real}", told + error);
            worst = worst.max((real - told) as f64 / real as f64);
            hits += usize::from(truth.contains(&label));
        }
        let distinct = object.rows(&Command::Distinct(window));
        let (found, real) = (count(&distinct[0][1]), exact.len() as f64);
        let error = (found as f64 - real) / real;
        println!(
            "{name}: {hits} of the 10 heaviest of {real} keys found, counts short by at most {:.2} %, distinct off by {:+.2} %",
            worst * 100.0,
            error * 100.0
        );
        assert!(error.abs() < 0.03, "{name}: {found} of {real}, seed {seed}");
        if is_skewed {
            assert!(hits >= 9, "{name}: {hits} of 10, seed {seed}");
        }
    }
}

#[test]
fn records_take_no_room_from_limits_and_need_none() {
    let mut object = Object::bounded(MIDNIGHT, Bounds { keys: 3, ..Bounds::default() });
    for round in 0..40 {
        for n in 0..3 {
            assert!(object.take("p", &format!("ip:{n}"), 1_000_000), "the three keys there are room for");
        }
        let full = object.run(&command("TG.TAKE RECORD 1 gate:p:fixed-window:{ip:9} fixed-window 5 86400000"));
        assert!(matches!(full, Reply::Error(_)) || format!("{full:?}").contains("FULL"), "{full:?}");
        object.clock.advance(7 * SECOND);
        object.tick();
        let now = object.clock.now().as_millis();
        for rollup in [10 * SECOND, HOUR] {
            let [allowed, ..] = sum(&object.series("p", rollup, MIDNIGHT, now));
            assert_eq!(allowed, 3 * (round + 1), "rollup {rollup}, round {round}");
        }
    }
    let Reply::Array(totals) = object.run(&Command::Totals) else { panic!("no totals") };
    assert_eq!(count(&totals[0]), 3, "keys of limits alone");
}

#[test]
fn every_watched_policy_stays_watched_when_it_is_written() {
    let mut object = Object::new(MIDNIGHT);
    for n in (0..64).rev() {
        object.take(&format!("p{n:02}"), "ip:1", 5);
    }
    let before = (object.top(100, &[], 10 * SECOND), object.distinct(10 * SECOND));
    assert_eq!((before.0.len(), before.1), (32, 32));
    object.save();
    for rollup in [10 * SECOND, HOUR, DAY] {
        assert_eq!((object.top(100, &[], rollup), object.distinct(rollup)), before, "rollup {rollup}");
    }
    object.clock.advance(2 * HOUR);
    object.save();
    object.lose_memory();
    assert_eq!((object.top(100, &[], HOUR), object.distinct(HOUR)), before);
}

#[test]
fn the_heaviest_are_so_by_the_outcomes_that_are_asked_for_and_over_all_policies() {
    let mut object = Object::new(MIDNIGHT);
    for n in 0..30 {
        for key in 0..20 {
            object.take(&format!("p{n:02}"), &format!("ip:{key}"), 1000);
        }
    }
    for _ in 0..9 {
        object.take("p29", "ip:hot", 2);
    }
    let hot = ("ip:hot".to_owned(), [2, 7, 0, 0]);
    assert_eq!(object.top(1, &[], 10 * SECOND), std::slice::from_ref(&hot));
    assert_eq!(object.top(5, &[Outcome::Denied, Outcome::Degraded], 10 * SECOND), [hot]);
}

#[test]
fn keys_that_were_readable_are_hidden_when_they_are_not_to_be() {
    let mut object = Object::new(MIDNIGHT);
    (0..5).for_each(|_| assert!(object.take("p", "ip:secret", 100)));
    object.save();
    assert_eq!(object.top(9, &[], HOUR), [("ip:secret".to_owned(), [5, 0, 0, 0])]);
    object.is_readable = false;
    object.lose_memory();
    (0..3).for_each(|_| assert!(object.take("p", "ip:secret", 100)));
    for _ in 0..2 {
        for rollup in [10 * SECOND, HOUR] {
            let [(label, counts)] = &object.top(9, &[], rollup)[..] else { panic!("one client") };
            assert_eq!((label.len(), counts), (16, &[8, 0, 0, 0]));
            assert_eq!(object.distinct(rollup), 1);
        }
        object.save();
    }
}

#[test]
fn a_clock_that_was_ahead_for_once_neither_hides_what_follows_nor_takes_totals_back() {
    let mut object = Object::new(MIDNIGHT);
    let mut sent = 0;
    for now in [0, 10, 20, 30, 86_500, 40, 50, 60, 86_500, 70, 3700, 3710, 80].map(|secs| MIDNIGHT + secs * SECOND) {
        object.clock.set(now);
        for n in 0..10 {
            object.take("p", &format!("ip:{n}"), 1000);
        }
        sent += 10;
        object.save();
        assert_eq!(object.totals("p")[0], sent);
        if sent % 30 == 0 {
            object.lose_memory();
            assert_eq!(object.totals("p")[0], sent, "in the next life");
        }
        for rollup in [HOUR, DAY] {
            assert_eq!(sum(&object.series("p", rollup, MIDNIGHT, MIDNIGHT + 2 * DAY))[0], sent, "{rollup} at {now}");
        }
    }
    object.clock.set(MIDNIGHT + 100 * SECOND);
    assert_eq!(sum(&object.series("p", 10 * SECOND, MIDNIGHT, MIDNIGHT + 99 * SECOND))[0], 90, "also the finest level");
}

#[test]
fn a_stored_bucket_that_cannot_be_read_is_passed_over() {
    let mut object = Object::new(MIDNIGHT + 30 * SECOND);
    object.take("p", "ip:1", 5);
    object.save();
    let expires = Some(Timestamp::from_millis(MIDNIGHT + DAY));
    let junk = |level: &str, index: u64| {
        let key = format!("\0record:{level}:{index:020}").into_bytes();
        (key, Some(Row { value: Value::Record(b"\x07junk".to_vec()), expires }))
    };
    let rows = [junk("10", MIDNIGHT / 10_000), junk("10", MIDNIGHT / 10_000 + 400), junk("3600", MIDNIGHT / HOUR + 5)];
    object.disk.clone().commit(&Changes { rows: rows.to_vec(), fencing: None }).unwrap();
    object.lose_memory();
    for hours in [2, 30, 60] {
        object.clock.set(MIDNIGHT + hours * HOUR);
        object.save();
    }
    let now = object.clock.now().as_millis();
    assert_eq!(sum(&object.series("p", DAY, MIDNIGHT, now)), [1, 0, 0, 0]);
}
