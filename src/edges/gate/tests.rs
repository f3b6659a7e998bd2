//! Requests through a gate whose shards are in this process.

use super::*;
use crate::engine::keyspace::{Bounds, Keyspace, NoRows};
use crate::engine::resp::{decode_batch, encode_replies};
use crate::rules::series::recorder::Recorder;
use crate::values::error::ErrorKind;

const KEYED: &str = r#"{"policies":[
    {"name":"ip","limit":"3/minute","missing_key":"deny","on_error":"deny"},
    {"name":"api","limit":"2/minute","key":{"header":"x-key"},"missing_key":"skip","match":{"path":"/api/*"}}]}"#;

/// Shards in this process, and a way to break one.
struct World {
    config: Rc<Config>,
    tallies: Rc<Tallies>,
    shards: std::collections::HashMap<u16, Keyspace<NoRows>>,
    kv: Keyspace<NoRows>,
    broken: Option<ErrorKind>,
}

impl World {
    fn new(config: &str) -> Self {
        let config = Rc::new(Config::parse(config).unwrap());
        let kv = Keyspace::new(NoRows, Bounds::default(), 1);
        Self { config, tallies: Rc::default(), shards: Default::default(), kv, broken: None }
    }

    fn open(config: &Config) -> Keyspace<NoRows> {
        let recorder = config.series.recording("secret").map(Recorder::new);
        Keyspace::new(NoRows, Bounds::default(), 1).recording(recorder.unwrap())
    }

    fn call(&mut self, call: &Call, now: Timestamp) -> Answer {
        if let Some(kind) = self.broken {
            return Err(Error::new(kind, "broken"));
        }
        let keyspace = match call.target {
            Target::Shard { shard, .. } => self.shards.entry(shard).or_insert_with(|| Self::open(&self.config)),
            _ => &mut self.kv,
        };
        let batch = decode_batch(&call.body).unwrap();
        let replies = batch.into_iter().map(|argv| keyspace.apply(now, &Command::parse(argv).unwrap()));
        Ok(encode_replies(&replies.collect::<Vec<_>>()))
    }

    fn request(&mut self, path: &str, headers: &[(&str, &str)], now: u64) -> Response {
        let now = Timestamp::from_millis(now);
        let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let facts = Facts { method: "GET", host: "", path, query: "", header: &header, cf: &|_| None };
        let (mut passage, mut step) = Passage::begin(&self.config.clone(), &self.tallies.clone(), &facts);
        while let Step::Calls(calls) = &step {
            let answers = calls.iter().map(|call| self.call(call, now)).collect();
            step = passage.resume(answers, now);
        }
        let Step::Done { response, afterwards } = step else { panic!("no end") };
        for call in afterwards {
            let _ = self.call(&call, now);
        }
        response
    }
}

fn field(response: &Response, name: &str) -> Option<String> {
    response.headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone())
}

const ADDRESS: (&str, &str) = ("cf-connecting-ip", "198.18.0.1");

#[test]
fn exactly_the_quota_passes_and_the_fields_say_so() {
    let mut world = World::new(KEYED);
    for left in [2, 1, 0] {
        let response = world.request("/", &[ADDRESS], 61_000);
        assert_eq!(response.status, None);
        assert_eq!(field(&response, "ratelimit-policy").unwrap(), r#""ip";q=3;w=60"#);
        assert_eq!(field(&response, "ratelimit").unwrap(), format!(r#""ip";r={left};t=59"#));
    }
    let response = world.request("/", &[ADDRESS], 61_500);
    assert_eq!(response.status, Some(429));
    assert_eq!(field(&response, "retry-after").unwrap(), "59");
    assert!(response.body.contains(r#""violated-policies":["ip"]"#));
    assert_eq!(world.request("/", &[("cf-connecting-ip", "198.18.0.2")], 61_500).status, None);
    assert_eq!(world.request("/", &[ADDRESS], 120_000).status, None);
}

#[test]
fn several_policies_charge_together_or_not_at_all() {
    let mut world = World::new(KEYED);
    for _ in 0..2 {
        assert_eq!(world.request("/api/x", &[ADDRESS, ("x-key", "k")], 0).status, None);
    }
    for _ in 0..5 {
        let refused = world.request("/api/x", &[ADDRESS, ("x-key", "k")], 0);
        assert_eq!(refused.status, Some(429), "the key's quota is used up");
    }
    let response = world.request("/", &[ADDRESS], 0);
    assert_eq!(response.status, None, "the refusals above did not cost the address anything");
    assert_eq!(field(&response, "ratelimit").unwrap(), r#""ip";r=0;t=60"#);
}

#[test]
fn a_request_that_one_policy_refuses_charges_no_shard_at_all() {
    let mut world = World::new(KEYED);
    for _ in 0..2 {
        let _ = world.request("/api/x", &[("cf-connecting-ip", "198.18.0.9"), ("x-key", "used-up")], 0);
    }
    let config = world.config.clone();
    let header =
        |name: &str| [ADDRESS, ("x-key", "used-up")].iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
    let facts = Facts { method: "GET", host: "", path: "/api/x", query: "", header: &header, cf: &|_| None };
    let (mut passage, step) = Passage::begin(&config, &Rc::default(), &facts);
    let Step::Calls(calls) = step else { panic!("{step:?}") };
    assert_eq!(calls.len(), 2, "two keys on two shards");
    let answers = calls.iter().map(|call| world.call(call, Timestamp::default())).collect();
    let Step::Done { response, afterwards } = passage.resume(answers, Timestamp::default()) else { panic!("no end") };
    assert_eq!((response.status, afterwards.len()), (Some(429), 0), "nothing to give back");
}

#[test]
fn a_failing_store_is_the_policys_choice_and_never_a_429() {
    let mut world = World::new(KEYED);
    world.broken = Some(ErrorKind::Unavailable);
    let response = world.request("/", &[ADDRESS], 0);
    assert_eq!(response.status, Some(503));
    assert_eq!(field(&response, "tollgate-degraded").unwrap(), "ip");
    let mut world = World::new(&KEYED.replace("deny\"}", "allow\"}"));
    world.broken = Some(ErrorKind::Unavailable);
    let response = world.request("/", &[ADDRESS], 0);
    assert_eq!((response.status, field(&response, "tollgate-degraded").as_deref()), (None, Some("ip")));
}

#[test]
fn a_request_without_key_is_the_policys_choice() {
    assert_eq!(World::new(KEYED).request("/", &[], 0).status, Some(403));
    let skip = KEYED.replace("\"missing_key\":\"deny\"", "\"missing_key\":\"skip\"");
    assert_eq!(World::new(&skip).request("/", &[], 0), Response::default());
    let mut shared = World::new(&KEYED.replace("\"missing_key\":\"deny\"", "\"missing_key\":\"shared\""));
    let statuses: Vec<_> = (0..4).map(|_| shared.request("/", &[], 0).status).collect();
    assert_eq!(statuses, [None, None, None, Some(429)]);
}

#[test]
fn odd_spellings_of_a_path_do_not_dodge_a_policy() {
    let mut world = World::new(KEYED);
    let path = |world: &mut World, path: &str| world.request(path, &[ADDRESS, ("x-key", "k")], 0).status;
    assert_eq!([path(&mut world, "/api/x"), path(&mut world, "//API/./x/")], [None, None]);
    assert_eq!(path(&mut world, "/%61pi/y"), Some(429));
}

fn recorded(world: &mut World, policy: &str) -> [u64; 4] {
    let mut sum = [0; 4];
    for keyspace in world.shards.values_mut() {
        let Reply::Array(totals) = keyspace.apply(Timestamp::default(), &Command::Totals) else { panic!("no totals") };
        for row in totals.into_iter().skip(2).map(|row| row.into_array().unwrap()) {
            if row[0] == Reply::Bulk(policy.as_bytes().to_vec()) {
                sum = [0, 1, 2, 3].map(|at: usize| sum[at] + row[at + 1].clone().into_count().unwrap());
            }
        }
    }
    sum
}

#[test]
fn each_decision_is_recorded_once_by_the_shard_that_made_it() {
    let mut world = World::new(KEYED);
    for _ in 0..4 {
        world.request("/", &[ADDRESS], 0);
    }
    assert_eq!(recorded(&mut world, "ip"), [3, 1, 0, 0]);
    // On two shards: what one policy refuses, the other has not decided.
    let other = ("cf-connecting-ip", "198.18.0.9");
    for _ in 0..3 {
        world.request("/api/x", &[other, ("x-key", "k")], 0);
    }
    assert_eq!((recorded(&mut world, "ip"), recorded(&mut world, "api")), ([5, 1, 0, 0], [2, 1, 0, 0]));
}

#[test]
fn what_no_shard_could_record_rides_along_with_the_next_call() {
    let mut world = World::new(KEYED);
    world.broken = Some(ErrorKind::Unavailable);
    for _ in 0..5 {
        assert_eq!(world.request("/", &[ADDRESS], 0).status, Some(503));
    }
    assert_eq!(recorded(&mut world, "ip"), [0, 0, 0, 0]);
    world.broken = None;
    world.request("/", &[ADDRESS], 0);
    assert_eq!(recorded(&mut world, "ip"), [1, 0, 1, 0], "the first load, which nobody knew of whether it arrived");
    world.request("/", &[ADDRESS], 0);
    assert_eq!(recorded(&mut world, "ip"), [2, 0, 5, 0], "and the others, each once");
    assert_eq!(world.request("/", &[], 0).status, Some(403), "no key, and no shard is asked");
    world.request("/", &[ADDRESS], 0);
    assert_eq!(recorded(&mut world, "ip"), [3, 1, 5, 0]);
}

#[test]
fn decisions_on_kv_are_sent_on_their_own_at_most_every_ten_seconds() {
    let config =
        r#"{"policies":[{"name":"kv","limit":"3/minute","missing_key":"shared","store":"kv","best_effort":true}]}"#;
    let mut world = World::new(config);
    for (second, sent) in [(100, 1), (101, 0), (109, 0), (110, 3)] {
        let before = recorded(&mut world, "kv");
        world.request("/", &[], second * 1000);
        let after = recorded(&mut world, "kv");
        let (before, after): (u64, u64) = (before.iter().sum(), after.iter().sum());
        assert_eq!(after - before, sent, "at {second} s");
    }
    assert_eq!(recorded(&mut world, "kv"), [3, 1, 0, 0]);
}
