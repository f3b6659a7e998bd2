//! Random batches on a real redis-server and on ours, reply for reply, expiry included.
//!
//! A batch runs between two `TIME`s in one transaction. Redis 7.0 decides some commands at the time the transaction
//! began and others at their own, so a batch counts when all of it fell into one millisecond, which is then ours as
//! well. One that did not is thrown away on both sides: what it left behind could differ by a millisecond.

use tollgate::resp::Argv;
use tollgate::{Bounds, Command, Durability, DurableObjectStore, Keyspace, KvStore, NoRows, Reply, Store, Timestamp};

use crate::support::Clock;
use crate::support::disk::World;
use crate::support::namespace::{Central, Place};
use crate::support::now_or_never;
use crate::support::redis::{RealRedis, show};
use crate::support::rng::Rng;
use crate::support::server::{Server, pause};

const COMMANDS: usize = 120_000;

const KEYS: [&str; 7] = ["a", "b", "c", "h", "n", "{t}1", "{t}2"];
const FIELDS: [&str; 4] = ["f", "g", "n", ""];
const VALUES: [&str; 14] = [
    "",
    "v",
    "1",
    "-1",
    "10",
    "007",
    "1.5",
    " 1",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "words with spaces",
    "\u{1F600}",
    "-0",
];
const INTEGERS: [&str; 9] = ["1", "-1", "5", "0", "9223372036854775807", "-9223372036854775808", "x", "1.0", "+1"];
const SPANS_MS: [&str; 11] =
    ["1", "3", "10", "25", "80", "1000", "100000", "0", "-5", "9223372036854775807", "-9223372036854775808"];
const SPANS_S: [&str; 8] = ["1", "100", "0", "-1", "9223372036854775807", "9223372036854775", "1.5", "x"];

/// The two commands that Redis 7.0 has no word for, as the scripts one writes there.
const DELETE_IF: &str =
    "local v = redis.call('GET', KEYS[1]); if v == ARGV[1] then return redis.call('DEL', KEYS[1]) end; return 0";
const EXPIRE_IF: &str = "local v = redis.call('GET', KEYS[1]); if v == ARGV[2] then return redis.call('PEXPIRE', KEYS[1], ARGV[1]) end; return 0";

fn words(words: &[&str]) -> Argv {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A random command, as it is said to ours and to Redis.
fn random_command(rng: &mut Rng, now_ms: u64) -> (Argv, Argv) {
    let key = *rng.pick(&KEYS);
    let (value, other) = (*rng.pick(&VALUES), *rng.pick(&VALUES));
    let (field, second) = (*rng.pick(&FIELDS), *rng.pick(&FIELDS));
    let integer = *rng.pick(&INTEGERS);
    let near = (now_ms as i64 + rng.below(60) as i64 - 10).to_string();
    let near_s = (now_ms as i64 / 1000 + rng.below(4) as i64 - 1).to_string();
    let (span_ms, span_s) = (*rng.pick(&SPANS_MS), *rng.pick(&SPANS_S));
    let same = |argv: Argv| (argv.clone(), argv);
    match rng.below(38) {
        0 => same(words(&["GET", key])),
        1..=2 => same(set(rng, key, value, &near, &near_s)),
        3 => same(words(&["SETNX", key, value])),
        4 => same(words(&["DEL", key, *rng.pick(&KEYS)])),
        5 => same(words(&["EXISTS", key, *rng.pick(&KEYS), key])),
        6..=7 => same(words(&["INCR", key])),
        8 => same(words(&["DECR", key])),
        9..=10 => same(words(&["INCRBY", key, integer])),
        11 => same(words(&["DECRBY", key, integer])),
        12 => same(expire(rng, "EXPIRE", key, span_s)),
        13..=14 => same(expire(rng, "PEXPIRE", key, span_ms)),
        15 => same(expire(rng, "EXPIREAT", key, &near_s)),
        16..=17 => same(expire(rng, "PEXPIREAT", key, &near)),
        18 => same(words(&["TTL", key])),
        19..=20 => same(words(&["PTTL", key])),
        21 => same(words(&["PERSIST", key])),
        22 => same(words(&["HSET", key, field, value])),
        23 => same(words(&["HSET", key, field, value, second, other])),
        24 => same(words(&["HSET", key, field, value, second])),
        25..=26 => same(words(&["HINCRBY", key, field, integer])),
        27 => same(words(&["HGET", key, field])),
        28 => same(words(&["HMGET", key, field, second])),
        29 => same(words(&["HGETALL", key])),
        30 => same(words(&["HDEL", key, field, second])),
        31 => (words(&["DELEX", key, "IFEQ", value]), words(&["EVAL", DELETE_IF, "1", key, value])),
        32 => {
            let ttl = *rng.pick(&["1", "20", "5000"]);
            (words(&["PEXPIRE", key, ttl, "IFEQ", value]), words(&["EVAL", EXPIRE_IF, "1", key, ttl, value]))
        }
        33 => same(words(&["PING"])),
        _ => same(sketch(rng, key)),
    }
}

/// Sketches have keys of their own, on which there is no `GET`: two sparse forms of the same registers may part their
/// runs differently.
fn sketch(rng: &mut Rng, key: &str) -> Argv {
    let sketches = ["pf", "{t}pf"];
    let (mine, other) = (*rng.pick(&sketches), *rng.pick(&sketches));
    // Every tenth element comes with a few hundred others, so that some sketches become dense.
    let elements: Vec<_> = match rng.below(10) {
        0 => (0..rng.below(800)).map(|_| rng.below(100_000).to_string()).collect(),
        _ => (0..rng.below(4)).map(|_| rng.below(30).to_string()).collect(),
    };
    match rng.below(6) {
        0..=2 => {
            let mut argv = words(&["PFADD", mine]);
            argv.extend(elements.into_iter().map(String::into_bytes));
            argv
        }
        3 => words(&["PFCOUNT", *rng.pick(&[mine, key]), other]),
        4 => words(&["PFMERGE", mine, *rng.pick(&[other, key])]),
        _ => words(&[*rng.pick(&["DEL", "PERSIST", "EXISTS", "PTTL", "PFCOUNT"]), mine]),
    }
}

#[test]
fn a_sketch_counts_the_same_in_redis_and_in_ours_and_goes_to_and_fro() {
    let server = Server::redis();
    let redis = RealRedis::connect(server.port);
    let mut ours = Keyspace::new(NoRows, Bounds::default(), 1);
    for size in [0, 1, 100, 1000, 20_000, 200_000] {
        for from in (0..size).step_by(500) {
            let mut add = words(&["PFADD", "theirs"]);
            add.extend((from..size.min(from + 500)).map(|n: usize| format!("element {n}").into_bytes()));
            redis.transaction(&[add.clone()]);
            add[1] = b"mine".to_vec();
            run(&mut ours, 0, &[add]);
        }
        let get = |key| words(&["GET", key]);
        let set = |key: &str, value: &Reply| {
            let Reply::Bulk(bytes) = value else { return words(&["DEL", key]) };
            vec![b"SET".to_vec(), key.as_bytes().to_vec(), bytes.clone()]
        };
        let (theirs, mine) = (redis.transaction(&[get("theirs")]), run(&mut ours, 0, &[get("mine")]));
        run(&mut ours, 0, &[set("theirs", &theirs[0])]);
        redis.transaction(&[set("mine", &mine[0])]);
        let count = [words(&["PFCOUNT", "mine"]), words(&["PFCOUNT", "theirs"]), words(&["PFCOUNT", "mine", "theirs"])];
        let (in_redis, in_ours) = (redis.transaction(&count), run(&mut ours, 0, &count));
        assert_eq!(in_redis, in_ours, "{size} elements");
        assert_eq!((&in_ours[0], &in_ours[0]), (&in_ours[1], &in_ours[2]), "{size} elements");
        let one_more = ["PFMERGE copy mine", "PFADD copy more", "PFCOUNT copy", "DEL copy"];
        let one_more = one_more.map(|line| words(&line.split(' ').collect::<Vec<_>>()));
        assert_eq!(redis.transaction(&one_more), run(&mut ours, 0, &one_more), "it can be added to, {size} elements");
    }
    for line in
        ["PFADD text x", "PFCOUNT text", "PFADD hash x", "PFCOUNT mine hash", "PFMERGE mine text", "PFADD cut x"]
    {
        let setup = ["SET text v", "HSET hash f v", "SET cut HYLL\u{1}1234567890\u{1}x"]
            .map(|line| words(&line.split(' ').collect::<Vec<_>>()));
        redis.transaction(&setup);
        run(&mut ours, 0, &setup);
        let asked = [words(&line.split(' ').collect::<Vec<_>>())];
        assert_eq!(run(&mut ours, 0, &asked), redis.transaction(&asked), "{line}");
    }
}

fn set(rng: &mut Rng, key: &str, value: &str, near: &str, near_s: &str) -> Argv {
    let mut argv = words(&["SET", key, value]);
    for _ in 0..rng.below(3) {
        let more: &[&str] = match rng.below(9) {
            0 => &["NX"],
            1 => &["XX"],
            2 => &["KEEPTTL"],
            3 => &["GET"],
            4 => &["ex", *rng.pick(&SPANS_S)],
            5 => &["PX", *rng.pick(&SPANS_MS)],
            6 => &["PXAT", near],
            7 => &["EXAT", near_s],
            _ => &["PX"],
        };
        argv.extend(words(more));
    }
    argv
}

fn expire(rng: &mut Rng, name: &str, key: &str, when: &str) -> Argv {
    let mut argv = words(&[name, key, when]);
    for _ in 0..rng.below(3) {
        argv.extend(words(&[*rng.pick(&["NX", "XX", "GT", "LT", "gt", "NO"])]));
    }
    argv
}

fn run(keyspace: &mut Keyspace<NoRows>, now: u64, batch: &[Argv]) -> Vec<Reply> {
    let apply = |argv: &Argv| match Command::parse(argv.clone()) {
        Ok(command) => keyspace.apply(Timestamp::from_millis(now), &command),
        Err(error) => Reply::Error(error),
    };
    batch.iter().map(apply).collect()
}

/// The order of fields is no promise, and an error of a script carries the script's name.
fn comparable(argv: &Argv, reply: Reply) -> Reply {
    match reply {
        Reply::Array(parts) if argv[0] == b"HGETALL" => {
            let mut pairs: Vec<_> = parts.chunks(2).map(<[Reply]>::to_vec).collect();
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Reply::Array(pairs.concat())
        }
        Reply::Error(error) => Reply::Error(tollgate::CommandError::new(
            error.text().split(" script: ").next().unwrap().trim_end_matches(", with args beginning with:"),
        )),
        other => other,
    }
}

fn compare_all(batch: &[Argv], replies: Vec<Reply>) -> Vec<Reply> {
    batch.iter().zip(replies).map(|(argv, reply)| comparable(argv, reply)).collect()
}

fn micros(time: &Reply) -> u64 {
    let Reply::Array(parts) = time else { panic!("TIME answered {time:?}") };
    let number = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).parse::<u64>().unwrap(),
        other => panic!("TIME answered {other:?}"),
    };
    number(&parts[0]) * 1_000_000 + number(&parts[1])
}

/// The millisecond in which all of the transaction ran. It begins a little before its first `TIME`.
fn millisecond(first: u64, last: u64) -> Option<u64> {
    const BEGINNING: u64 = 100;
    ((first - BEGINNING) / 1000 == last / 1000).then_some(last / 1000)
}

/// The other backends, and whether their replies are those of the memory keyspace.
struct Others {
    clock: Clock,
    world: World<Box<dyn Fn() -> Timestamp>>,
    kv: Place,
}

impl Others {
    fn new() -> Self {
        let clock = Clock::default();
        let world = World::new(Box::new(clock.reader()) as Box<dyn Fn() -> Timestamp>, 1, Durability::Strict);
        let kv = Place::local(&clock, &Central::default());
        Self { clock, world, kv }
    }

    fn check(&self, rng: &mut Rng, now: u64, batch: &[Argv], expected: &[Reply]) {
        self.clock.set(now);
        if rng.below(4) == 0 {
            self.world.evict();
        }
        let parsed = batch.iter().zip(expected).filter_map(|(argv, reply)| {
            Some((argv, Command::parse(argv.clone()).ok()?, comparable(argv, reply.clone())))
        });
        let parsed: Vec<_> = parsed.collect();
        let commands: Vec<_> = parsed.iter().map(|(_, command, _)| command.clone()).collect();
        let object = now_or_never(DurableObjectStore::new(&self.world).exec(&commands)).unwrap();
        let kv = KvStore::new(&self.kv, self.clock.reader(), Bounds::default());
        let kv = now_or_never(kv.exec(&commands)).unwrap();
        for (((argv, _, expected), object), kv) in parsed.into_iter().zip(object).zip(kv) {
            assert_eq!(comparable(argv, object), expected, "in an object: {}", show(argv));
            assert_eq!(comparable(argv, kv), expected, "in KV: {}", show(argv));
        }
    }
}

#[test]
fn every_reply_is_that_of_a_real_redis() {
    let seed = Rng::seed();
    let mut rng = Rng::new(seed);
    let server = Server::redis();
    let redis = RealRedis::connect(server.port);
    let fresh = || (Keyspace::new(NoRows, Bounds::default(), seed), Others::new());
    let (mut ours, mut others) = fresh();
    let (mut done, mut thrown_away, mut errors, mut expired) = (0, 0, 0, 0);
    let mut now = micros(&redis.transaction(&[words(&["TIME"])])[0]) / 1000;
    while done < COMMANDS {
        let batch: Vec<_> = (0..=rng.below(20)).map(|_| random_command(&mut rng, now)).collect();
        let (batch, theirs): (Vec<Argv>, Vec<Argv>) = batch.into_iter().unzip();
        let timed: Vec<Argv> = [words(&["TIME"])].into_iter().chain(theirs).chain([words(&["TIME"])]).collect();
        let mut replies = redis.transaction(&timed);
        let (last, first) = (micros(&replies.pop().unwrap()), micros(&replies.remove(0)));
        now = last / 1000;
        let Some(at) = millisecond(first, last) else {
            redis.transaction(&[words(&["FLUSHALL"])]);
            (ours, others) = fresh();
            thrown_away += 1;
            continue;
        };
        let wanted = compare_all(&batch, replies);
        let raw = run(&mut ours, at, &batch);
        let got = compare_all(&batch, raw.clone());
        if got != wanted {
            report(seed, &batch, &wanted, &got);
        }
        others.check(&mut rng, at, &batch, &raw);
        done += batch.len();
        errors += wanted.iter().filter(|reply| matches!(reply, Reply::Error(_))).count();
        expired += wanted.iter().filter(|reply| **reply == Reply::Integer(-2)).count();
        if rng.below(100) == 0 {
            pause(10);
        }
    }
    println!("{done} commands: {errors} errors, {expired} looks at a key that was gone, {thrown_away} batches astride");
    assert!(errors > 1000 && expired > 1000, "the batches must reach the errors and the expiry; seed {seed}");
}

fn report(seed: u64, batch: &[Argv], wanted: &[Reply], got: &[Reply]) -> ! {
    for ((argv, wanted), got) in batch.iter().zip(wanted).zip(got) {
        let mark = if wanted == got { "  " } else { "=>" };
        println!("{mark} {}\n     Redis {wanted:?}\n     ours  {got:?}", show(argv));
    }
    panic!("a batch differs; seed {seed} (TOLLGATE_SEED makes the same choices)");
}

#[test]
fn malformed_commands_have_the_words_of_redis() {
    let server = Server::redis();
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port)).unwrap();
    let mut connection = client.get_connection().unwrap();
    for line in [
        "GET",
        "GET a b",
        "SET a",
        "DEL",
        "EXISTS",
        "INCR",
        "INCRBY a",
        "EXPIRE a",
        "TTL",
        "HSET a f",
        "HSET a",
        "HINCRBY a f",
        "HGET a",
        "HMGET a",
        "HGETALL",
        "HDEL a",
        "PERSIST",
        "SETNX a",
        "PING a b",
        "NOSUCH",
        "nosuch a b",
        "SET a b EX",
        "SET a b EX 0",
        "SET a b EX x",
        "SET a b NX XX",
        "SET a b KEEPTTL EX 5",
        "EXPIRE a x",
        "INCRBY a x",
        "DECRBY a -9223372036854775808",
        "EXPIRE a 9223372036854775807",
        "EXPIRE a 10 NX GT",
        "EXPIRE a 10 GT LT",
    ] {
        let argv: Argv = words(&line.split(' ').collect::<Vec<_>>());
        let mut command = redis::Cmd::new();
        for word in &argv {
            command.arg(word.as_slice());
        }
        let error = command.query::<redis::Value>(&mut connection).expect_err(line);
        let (code, detail) = (error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
        let mut ours = Keyspace::new(NoRows, Bounds::default(), 1);
        let Reply::Error(got) = &run(&mut ours, 0, &[argv])[0] else { panic!("{line} is no error") };
        assert_eq!(got.text().trim_end(), format!("{code} {detail}").trim_end(), "{line}");
    }
}
