//! The gate: `request -> facts -> matching policies -> partition keys -> take -> verdict -> response`.

use std::rc::Rc;

use crate::edges::exchange::{Answer, Call, Response, Step, Target};
use crate::engine::command::{Bytes, Command};
use crate::engine::headers::{self, Item, Problem};
use crate::engine::matching::Facts;
use crate::engine::path::path_readings;
use crate::engine::policy::{Config, DurabilityName, MissingKey, OnError, Policy, StoreName};
use crate::engine::reply::Reply;
use crate::engine::resp::decode_replies;
use crate::stores::durable_object::client::encode_commands;
use crate::stores::durable_object::shard::Durability;
use crate::values::error::Error;
use crate::values::key::{join_key, shard_of};
use crate::values::time::{Duration, Timestamp};

/// Names the policies that could not be counted.
const DEGRADED: &str = "tollgate-degraded";

/// How soon a client may come again when the gate cannot count.
const RETRY_WHEN_DEGRADED: Duration = Duration::from_secs(1);

/// The cost of a request.
const COST: u64 = 1;

/// One request on its way through the gate.
#[derive(Debug)]
pub struct Passage {
    config: Rc<Config>,
    accept: Option<String>,
    groups: Vec<Group>,
    phase: Phase,
}

/// Where several shards are asked, all of them are looked at before any is charged: a client that one policy refuses
/// must not use up what others share with it, not even for the moment until a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Peek,
    Take,
}

/// The policies that are asked in one call: their keys live in the same place.
#[derive(Debug)]
struct Group {
    target: Target,
    timeout_ms: u64,
    charges: Vec<Charge>,
}

#[derive(Debug)]
struct Charge {
    policy: usize,
    key: Bytes,
}

/// What a policy said.
struct Verdict<'a> {
    policy: &'a Policy,
    allowed: bool,
    remaining: u64,
    reset_at: Timestamp,
    retry_after: Option<Duration>,
}

impl Passage {
    /// Looks at a request: which policies apply, and what to ask where.
    pub fn begin(config: &Rc<Config>, facts: &Facts<'_>) -> (Self, Step) {
        let accept = (facts.header)("accept");
        let mut passage = Self { config: Rc::clone(config), accept, groups: Vec::new(), phase: Phase::Take };
        let readings = path_readings(facts.path);
        let applies = |policy: &Policy| policy.matches.matches(facts, &readings);
        for (index, policy) in config.policies.iter().enumerate().filter(|(_, policy)| applies(policy)) {
            let partition_key = match (policy.key.of(facts), policy.missing_key) {
                (Some(key), _) => key,
                (None, MissingKey::Shared) => b"none".to_vec(),
                (None, MissingKey::Skip) => continue,
                (None, MissingKey::Deny) => return (passage, Step::done(no_key(policy))),
            };
            passage.add(index, policy, &partition_key);
        }
        if passage.groups.len() > 1 {
            passage.phase = Phase::Peek;
        }
        let calls = passage.calls();
        let step = if calls.is_empty() { Step::done(Response::default()) } else { Step::Calls(calls) };
        (passage, step)
    }

    fn add(&mut self, index: usize, policy: &Policy, partition_key: &[u8]) {
        let key = state_key(policy, partition_key);
        let target = match policy.store {
            StoreName::Kv => Target::Kv { best_effort: policy.best_effort },
            StoreName::DurableObject => Target::Shard {
                shard: shard_of(&key, self.config.shard_count()),
                durability: match policy.durability {
                    DurabilityName::Relaxed => Durability::Relaxed,
                    DurabilityName::Strict => Durability::Strict,
                },
            },
        };
        let (charge, timeout_ms) = (Charge { policy: index, key }, policy.timeout_ms.get());
        match self.groups.iter_mut().find(|group| same_place(group.target, target)) {
            Some(group) => {
                // One batch is written once: as soon as its strictest policy asks, and waited for as long as the
                // most patient one allows.
                if target != group.target && matches!(target, Target::Shard { durability: Durability::Strict, .. }) {
                    group.target = target;
                }
                group.timeout_ms = group.timeout_ms.max(timeout_ms);
                group.charges.push(charge);
            }
            None => self.groups.push(Group { target, timeout_ms, charges: vec![charge] }),
        }
    }

    fn policy(&self, charge: &Charge) -> Option<&Policy> {
        self.config.policies.get(charge.policy)
    }

    fn calls(&self) -> Vec<Call> {
        self.groups.iter().map(|group| self.ask(group)).collect()
    }

    fn ask(&self, group: &Group) -> Call {
        let limits = group.charges.iter().filter_map(|charge| Some((charge.key.clone(), self.policy(charge)?.limit())));
        let limits = limits.collect();
        let ask = match self.phase {
            Phase::Peek => Command::Peek { cost: COST, limits },
            Phase::Take => Command::Take { cost: COST, limits },
        };
        Call { target: group.target, body: encode_commands([&ask].into_iter()), timeout_ms: group.timeout_ms }
    }

    /// Weighs the answers, one for each call.
    pub fn resume(&mut self, answers: Vec<Answer>, now: Timestamp) -> Step {
        let step = self.weigh(answers, now);
        match (self.phase, &step) {
            (Phase::Peek, Step::Done { response, .. }) if response.status.is_none() => {
                self.phase = Phase::Take;
                Step::Calls(self.calls())
            }
            _ => step,
        }
    }

    fn weigh(&self, answers: Vec<Answer>, now: Timestamp) -> Step {
        let (mut verdicts, mut failed, mut taken) = (Vec::new(), Vec::new(), Vec::new());
        for (group, answer) in self.groups.iter().zip(answers) {
            match answer.and_then(|bytes| self.read(group, &bytes)) {
                Ok(answered) => {
                    if self.phase == Phase::Take && answered.iter().all(|verdict| verdict.allowed) {
                        taken.extend(group.charges.iter().zip(answered.iter().map(|v| v.reset_at)).map(|c| (group, c)));
                    }
                    verdicts.extend(answered);
                }
                Err(_) => failed.extend(group.charges.iter().filter_map(|charge| self.policy(charge))),
            }
        }
        let response = self.respond(&verdicts, &failed, now);
        let passes = response.status.is_none();
        let refunds = taken.into_iter().filter(|_| !passes).filter_map(|(group, (charge, reset_at))| {
            let refund = Command::Refund {
                amount: COST,
                reset_at_ms: reset_at.as_millis(),
                key: charge.key.clone(),
                limit: self.policy(charge)?.limit(),
            };
            let body = encode_commands([&refund].into_iter());
            Some(Call { target: group.target, body, timeout_ms: group.timeout_ms })
        });
        Step::Done { afterwards: refunds.collect(), response }
    }

    fn read(&self, group: &Group, bytes: &[u8]) -> Result<Vec<Verdict<'_>>, Error> {
        let take = decode_replies(bytes)?.pop().unwrap_or(Reply::Nil);
        let answers = take.into_array()?;
        group.charges.iter().filter_map(|charge| self.policy(charge)).zip(answers).map(verdict).collect()
    }

    fn respond(&self, verdicts: &[Verdict<'_>], failed: &[&Policy], now: Timestamp) -> Response {
        let names = |policies: &[&Policy]| policies.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let accept = self.accept.as_deref();
        let denied: Vec<_> = verdicts.iter().filter(|verdict| !verdict.allowed).collect();
        let closed: Vec<_> = failed.iter().filter(|policy| policy.on_error == OnError::Deny).collect();
        let refuse = |problem: Problem, policies: &[&str], retry_after: Duration| {
            let body = headers::problem(problem, policies, Some(retry_after), accept);
            Response::new(problem.status(), body).with("retry-after", headers::retry_after(retry_after))
        };
        let mut response = if !denied.is_empty() {
            let policies: Vec<_> = denied.iter().map(|verdict| verdict.policy.name.as_str()).collect();
            let wait = denied.iter().filter_map(|verdict| verdict.retry_after).max().unwrap_or_default();
            refuse(Problem::QuotaExceeded, &policies, wait)
        } else if !closed.is_empty() {
            let policies: Vec<_> = closed.iter().map(|policy| policy.name.as_str()).collect();
            refuse(Problem::TemporaryReducedCapacity, &policies, RETRY_WHEN_DEGRADED)
        } else {
            Response::default()
        };
        if !failed.is_empty() {
            response = response.with(DEGRADED, names(failed));
        }
        let items: Vec<_> = verdicts.iter().map(|verdict| item(verdict, now)).collect();
        if items.is_empty() {
            return response;
        }
        response.with("ratelimit-policy", headers::policy_field(&items)).with("ratelimit", headers::limit_field(&items))
    }
}

/// The key of a policy's state. The partition key is its hash tag: all limits of one client live on one shard.
fn state_key(policy: &Policy, partition_key: &[u8]) -> Bytes {
    let mut key = join_key(&[b"gate", policy.name.as_str().as_bytes(), policy.limit().algorithm.name().as_bytes()]);
    key.extend_from_slice(b":{");
    key.extend_from_slice(partition_key);
    key.push(b'}');
    key
}

fn same_place(a: Target, b: Target) -> bool {
    match (a, b) {
        (Target::Shard { shard: a, .. }, Target::Shard { shard: b, .. }) => a == b,
        (a, b) => a == b,
    }
}

fn verdict((policy, reply): (&Policy, Reply)) -> Result<Verdict<'_>, Error> {
    let mut parts = reply.into_array()?.into_iter();
    let mut next = || parts.next().unwrap_or(Reply::Nil);
    Ok(Verdict {
        policy,
        allowed: next().into_integer()? == 1,
        remaining: next().into_count()?,
        reset_at: Timestamp::from_millis(next().into_count()?),
        retry_after: match next() {
            Reply::Nil => None,
            reply => Some(Duration::from_millis(reply.into_count()?)),
        },
    })
}

fn item<'a>(verdict: &Verdict<'a>, now: Timestamp) -> Item<'a> {
    let rate = verdict.policy.limit().rate;
    Item {
        policy: verdict.policy.name.as_str(),
        quota: rate.quota,
        window: rate.window,
        remaining: verdict.remaining,
        // The object's clock made it; ours may run a little behind.
        reset_after: verdict.reset_at.saturating_since(now).min(rate.window),
    }
}

fn no_key(policy: &Policy) -> Response {
    let body = serde_json::json!({
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "detail": format!("the policy {:?} counts by a key that this request does not have", policy.name.as_str()),
    });
    Response::new(403, headers::Body { media_type: "application/problem+json", text: body.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::keyspace::{Bounds, Keyspace, NoRows};
    use crate::engine::resp::{decode_batch, encode_replies};
    use crate::values::error::ErrorKind;

    const KEYED: &str = r#"{"policies":[
        {"name":"ip","limit":"3/minute","missing_key":"deny","on_error":"deny"},
        {"name":"api","limit":"2/minute","key":{"header":"x-key"},"missing_key":"skip","match":{"path":"/api/*"}}]}"#;

    /// Shards in this process, and a way to break one.
    struct World {
        config: Rc<Config>,
        shards: std::collections::HashMap<u16, Keyspace<NoRows>>,
        broken: Option<ErrorKind>,
    }

    impl World {
        fn new(config: &str) -> Self {
            let config = Rc::new(Config::parse(config).unwrap());
            Self { config, shards: Default::default(), broken: None }
        }

        fn call(&mut self, call: &Call, now: Timestamp) -> Answer {
            if let Some(kind) = self.broken {
                return Err(Error::new(kind, "broken"));
            }
            let Target::Shard { shard, .. } = call.target else { panic!("{call:?}") };
            let keyspace = self.shards.entry(shard).or_insert_with(|| Keyspace::new(NoRows, Bounds::default(), 1));
            let batch = decode_batch(&call.body).unwrap();
            let replies = batch.into_iter().map(|argv| keyspace.apply(now, &Command::parse(argv).unwrap()));
            Ok(encode_replies(&replies.collect::<Vec<_>>()))
        }

        fn request(&mut self, path: &str, headers: &[(&str, &str)], now: u64) -> Response {
            let now = Timestamp::from_millis(now);
            let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            let facts = Facts { method: "GET", path, header: &header };
            let (mut passage, mut step) = Passage::begin(&self.config.clone(), &facts);
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
        let facts = Facts { method: "GET", path: "/api/x", header: &header };
        let (mut passage, step) = Passage::begin(&config, &facts);
        let Step::Calls(calls) = step else { panic!("{step:?}") };
        assert_eq!(calls.len(), 2, "two keys on two shards");
        let answers = calls.iter().map(|call| world.call(call, Timestamp::default())).collect();
        let Step::Done { response, afterwards } = passage.resume(answers, Timestamp::default()) else {
            panic!("no end")
        };
        assert_eq!((response.status, afterwards.len()), (Some(429), 0), "nothing to give back");
    }

    #[test]
    fn a_failing_store_is_the_policys_choice_and_never_a_429() {
        let mut world = World::new(KEYED);
        world.broken = Some(ErrorKind::Unavailable);
        let response = world.request("/", &[ADDRESS], 0);
        assert_eq!(response.status, Some(503));
        assert_eq!(field(&response, DEGRADED).unwrap(), "ip");
        let mut world = World::new(&KEYED.replace("deny\"}", "allow\"}"));
        world.broken = Some(ErrorKind::Unavailable);
        let response = world.request("/", &[ADDRESS], 0);
        assert_eq!((response.status, field(&response, DEGRADED).as_deref()), (None, Some("ip")));
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
}
