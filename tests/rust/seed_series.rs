//! The seed's time series in Python and ours on one real Redis: each reads what the other wrote.

use serde_json::{Value, json};
use tollgate::resp::Argv;
use tollgate::{Counters, Duration, Id, Increment, Layout, Model, Reply, Rollups, Timestamp};

use crate::support::now_or_never;
use crate::support::python::Python;
use crate::support::redis::RealRedis;
use crate::support::rng::Rng;

const ROLLUPS: [u64; 3] = [10, 3600, 86_400];

fn words(words: &[&str]) -> Argv {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// The time of the server: it expires keys by its own.
fn server_time(redis: &RealRedis) -> u64 {
    let time = redis.transaction(&[words(&["TIME"])]).remove(0).into_array().unwrap();
    let Reply::Bulk(secs) = &time[0] else { panic!("TIME answered {time:?}") };
    String::from_utf8_lossy(secs).parse().unwrap()
}

fn keys() -> Vec<Value> {
    let texts =
        ["foo", "user:123", "it's", "say \"hi\"", "it's \"both\"", "é", "日本", "a\\b", "tab\t", "\u{7f}", "", "130"];
    [0, 1, 130, -1, -64, 9_007_199_254_740_991_i64].map(Value::from).into_iter().chain(texts.map(Value::from)).collect()
}

fn id(key: &Value) -> Id {
    key.as_i64().map_or_else(|| Id::from(key.as_str().unwrap()), Id::Integer)
}

/// Model, key, seconds, count: over the last ten days, most of them in the last hours.
fn items(rng: &mut Rng, now: u64) -> Vec<(u16, Value, u64, u64)> {
    let keys = keys();
    let item = |_| {
        let reach = *rng.pick(&[50, 3000, 20_000, 864_000]);
        let ago = rng.below(reach) as u64;
        ([1, 4, 300][rng.below(3)], rng.pick(&keys).clone(), now - ago, 1 + rng.below(9) as u64)
    };
    // Between the two writers some seconds pass: nothing may expire in them.
    let stays = |(.., at, _): &(u16, Value, u64, u64)| {
        let ends = [(10, 360), (3600, 168), (86_400, 90)].map(|(step, samples)| at / step * step + step * samples);
        ends.iter().all(|end| *end + 5 < now || now + 120 < *end)
    };
    (0..900).map(item).filter(stays).collect()
}

/// Model, keys, start, end, rollup or null.
type Question = (u16, Vec<Value>, u64, u64, Option<u64>);

fn questions(rng: &mut Rng, now: u64) -> Vec<Question> {
    let keys = keys();
    let question = |_| {
        let rollup = [None, Some(10), Some(3600), Some(86_400)][rng.below(4)];
        let reach = match rollup {
            Some(10) => 3000,
            Some(3600) => 200_000,
            _ => 864_000,
        };
        let start = now - rng.below(reach) as u64;
        let end = start + rng.below((now - start + 1) as usize) as u64;
        let wanted = (0..=rng.below(4)).map(|_| rng.pick(&keys).clone()).collect();
        ([1, 4, 300][rng.below(3)], wanted, start, end, rollup)
    };
    (0..100).map(question).collect()
}

/// Asks both. Where the seed leaves the first bucket out, and only there, ours has one point more.
fn compare(python: &Python, redis: &RealRedis, now: u64, seed: u64) -> (usize, usize) {
    let mut rng = Rng::new(seed ^ 1);
    let questions = questions(&mut rng, now);
    let request: Vec<_> =
        questions.iter().map(|(model, keys, start, end, rollup)| json!([model, keys, start, end, rollup])).collect();
    let theirs = python.run(json!({ "function": "series_get_range", "questions": request }));
    let counters = Counters::new(redis).with_layout(Layout::sentry());
    let (at, mut counted, mut left_out) = (|secs: u64| Timestamp::from_millis(secs * 1000), 0, 0);
    for ((model, keys, start, end, rollup), theirs) in questions.into_iter().zip(theirs.as_array().unwrap()) {
        let optimal = Rollups::default().get_optimal_rollup(at(start), at(end)).step().as_millis() / 1000;
        let rollup = rollup.unwrap_or(optimal);
        let ids: Vec<_> = keys.iter().map(id).collect();
        let step = Some(Duration::from_secs(rollup));
        let range = counters.get_range(at(now), Model::new(model), &ids, at(start), at(end), step);
        let ours = now_or_never(range).unwrap().complete().unwrap();
        let leaves_out = start % rollup > end % rollup;
        for pair in theirs.as_array().unwrap() {
            let points: Vec<(u64, u64)> = serde_json::from_value(pair[1].clone()).unwrap();
            let mine: Vec<_> = ours[&id(&pair[0])].iter().map(|(at, count)| (at.as_millis() / 1000, *count)).collect();
            let shared = if leaves_out { &mine[1..] } else { &mine[..] };
            assert_eq!(shared, points, "{} from {start} to {end} by {rollup}, seed {seed}", pair[0]);
            assert_eq!(mine[0].0, start / rollup * rollup, "the bucket of the start is there");
            counted += points.iter().filter(|(_, count)| *count > 0).count();
            left_out += usize::from(leaves_out);
        }
    }
    (counted, left_out)
}

#[test]
fn the_seed_reads_what_ours_wrote_and_ours_what_the_seed_wrote() {
    let seed = Rng::seed();
    let python = Python::new();
    let redis = RealRedis::connect(python.redis.port);
    let mut expiries = Vec::new();
    let now = server_time(&redis);
    for writer in ["ours", "Python's"] {
        redis.transaction(&[words(&["FLUSHALL"])]);
        let items = items(&mut Rng::new(seed), now);
        if writer == "ours" {
            let counters = Counters::new(&redis).with_layout(Layout::sentry());
            let increment = |(model, key, at, count): &(u16, Value, u64, u64)| Increment {
                model: Model::new(*model),
                id: id(key),
                at: Timestamp::from_millis(at * 1000),
                count: *count,
            };
            let items: Vec<_> = items.iter().map(increment).collect();
            now_or_never(counters.incr_multi(Timestamp::from_millis(now * 1000), &items)).unwrap();
        } else {
            python.run(json!({ "function": "series_incr", "items": items }));
        }
        let (counted, left_out) = compare(&python, &redis, now, seed);
        assert!(counted > 100 && left_out > 10, "{counted} counts and {left_out} ranges, seed {seed}");
        println!("{writer} writer: {counted} counts equal, {left_out} ranges whose first bucket the seed leaves out");
        expiries.push(all_expiries(&redis));
    }
    assert!(expiries[0].len() > 100, "seed {seed}");
    assert_eq!(expiries[0], expiries[1], "the same keys with the same expiries, seed {seed}");
    assert!(ROLLUPS.iter().all(|rollup| Rollups::default().of_step(Duration::from_secs(*rollup)).is_ok()));
}

/// Every key with its fields and its expiry.
fn all_expiries(redis: &RealRedis) -> Vec<String> {
    let keys = redis.transaction(&[words(&["KEYS", "ts:*"])]).remove(0).into_array().unwrap();
    let mut found: Vec<_> = keys
        .into_iter()
        .map(|key| {
            let Reply::Bulk(key) = key else { panic!("a key is {key:?}") };
            let asked = [vec![b"EXPIRETIME".to_vec(), key.clone()], vec![b"HGETALL".to_vec(), key.clone()]];
            let mut replies = redis.transaction(&asked);
            let mut fields: Vec<_> =
                replies.remove(1).into_array().unwrap().chunks(2).map(|pair| format!("{pair:?}")).collect();
            fields.sort();
            format!("{} {:?} {fields:?}", String::from_utf8_lossy(&key), replies[0])
        })
        .collect();
    found.sort();
    found
}
