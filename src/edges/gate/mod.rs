//! The gate: `request -> facts -> matching policies -> partition keys -> take -> verdict -> response`.

mod respond;

use std::rc::Rc;

use crate::edges::exchange::{Answer, Call, Response, Step, Target};
use crate::edges::tallies::Tallies;
use crate::engine::command::{self, Bytes, Command, Take};
use crate::engine::matching::Facts;
use crate::engine::path::path_readings;
use crate::engine::policy::{Config, DurabilityName, MissingKey, Policy, StoreName};
use crate::engine::policy_key::policy_key;
use crate::engine::reply::Reply;
use crate::engine::resp::decode_replies;
use crate::rules::series::record::Outcome;
use crate::stores::durable_object::client::encode_commands;
use crate::stores::durable_object::shard::Durability;
use crate::values::error::Error;
use crate::values::key::shard_of;
use crate::values::time::{Duration, Timestamp};

/// How long the call may take that only records, in milliseconds. Nobody waits for it.
const RECORD_TIMEOUT_MS: u64 = 5000;

/// The cost of a request.
const COST: u64 = 1;

/// One request on its way through the gate.
#[derive(Debug)]
pub struct Passage {
    config: Rc<Config>,
    tallies: Rc<Tallies>,
    accept: Option<String>,
    groups: Vec<Group>,
    phase: Phase,
    /// The number of what rides along with the first call to a shard.
    carried: Option<u64>,
    decisions: Vec<(usize, Outcome)>,
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
    index: usize,
    policy: &'a Policy,
    allowed: bool,
    remaining: u64,
    reset_at: Timestamp,
    retry_after: Option<Duration>,
    /// When more is left than now.
    more_at: Timestamp,
}

impl Passage {
    /// Looks at a request: which policies apply, and what to ask where.
    pub fn begin(config: &Rc<Config>, tallies: &Rc<Tallies>, facts: &Facts<'_>) -> (Self, Step) {
        let mut passage = Self {
            config: Rc::clone(config),
            tallies: Rc::clone(tallies),
            accept: (facts.header)("accept"),
            groups: Vec::new(),
            phase: Phase::Take,
            carried: None,
            decisions: Vec::new(),
        };
        let readings = path_readings(facts.path);
        let applies = |policy: &Policy| policy.matches.matches(facts, &readings);
        for (index, policy) in config.policies.iter().enumerate().filter(|(_, policy)| applies(policy)) {
            let partition_key = match (policy.key.of(facts, policy.matches.path.as_ref()), policy.missing_key) {
                (Some(key), _) => key,
                (None, MissingKey::Shared) => b"none".to_vec(),
                (None, MissingKey::Skip) => continue,
                (None, MissingKey::Deny) => {
                    // No shard is asked, so none records it.
                    passage.decisions = vec![(index, Outcome::Denied)];
                    passage.tallies.add(policy.name.as_str(), Outcome::Denied);
                    return (passage, Step::done(respond::no_key(policy)));
                }
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
        let key = policy_key(policy.name.as_str(), &policy.limit().algorithm.to_string(), partition_key);
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

    fn calls(&mut self) -> Vec<Call> {
        let carrier = self.carrier();
        let shard = carrier.and_then(|carrier| match self.groups.get(carrier)?.target {
            Target::Shard { shard, .. } => Some(shard),
            _ => None,
        });
        let (number, along) = shard.and_then(|shard| self.tallies.load(shard)).unzip();
        self.carried = number;
        let ask = |(at, group)| self.ask(group, along.as_ref().filter(|_| Some(at) == carrier));
        self.groups.iter().enumerate().map(ask).collect()
    }

    /// The first group that asks a shard: what was counted elsewhere is recorded there.
    fn carrier(&self) -> Option<usize> {
        self.groups.iter().position(|group| matches!(group.target, Target::Shard { .. }))
    }

    fn ask(&self, group: &Group, along: Option<&Command>) -> Call {
        let one = |charge: &Charge| Some(command::Charge::new(charge.key.clone(), self.policy(charge)?.limit(), COST));
        let take = Take {
            charges: group.charges.iter().filter_map(one).collect(),
            record: matches!(group.target, Target::Shard { .. }),
            ..Take::default()
        };
        let ask = match self.phase {
            Phase::Peek => Command::Peek(take),
            Phase::Take => Command::Take(take),
        };
        let body = encode_commands([&ask].into_iter().chain(along));
        Call { target: group.target, body, timeout_ms: group.timeout_ms }
    }

    /// Weighs the answers, one for each call.
    pub fn resume(&mut self, answers: Vec<Answer>, now: Timestamp) -> Step {
        if let Some(number) = self.carried.take() {
            let arrived = self.carrier().and_then(|carrier| answers.get(carrier)).is_some_and(Result::is_ok);
            self.tallies.settle(number, arrived);
        }
        let step = self.weigh(answers, now);
        match (self.phase, &step) {
            (Phase::Peek, Step::Done { response, .. }) if response.status.is_none() => {
                self.phase = Phase::Take;
                Step::Calls(self.calls())
            }
            _ => self.finish(step, now),
        }
    }

    fn finish(&self, mut step: Step, now: Timestamp) -> Step {
        if let Step::Done { afterwards, .. } = &mut step {
            afterwards.extend(self.tally(now));
        }
        step
    }

    /// How each policy decided, at the end: one whose quota was there when another refused has decided nothing.
    pub fn decisions(&self) -> impl Iterator<Item = (&str, Outcome)> {
        let named =
            |(index, outcome): &(usize, Outcome)| Some((self.config.policies.get(*index)?.name.as_str(), *outcome));
        self.decisions.iter().filter_map(named)
    }

    /// Counts the decisions that no shard has recorded, and says whether to send them on their own.
    fn tally(&self, now: Timestamp) -> Option<Call> {
        if self.config.series.off {
            return None;
        }
        let is_kv = |index: usize| self.config.policies.get(index).is_some_and(|policy| policy.store == StoreName::Kv);
        let unrecorded =
            self.decisions.iter().filter(|(index, outcome)| *outcome == Outcome::Degraded || is_kv(*index));
        for (index, outcome) in unrecorded {
            if let Some(policy) = self.config.policies.get(*index) {
                self.tallies.add(policy.name.as_str(), *outcome);
            }
        }
        if self.carrier().is_some() {
            return None;
        }
        let tallies = self.tallies.take_if_due(now);
        let shard = shard_of(&tallies.first()?.policy, self.config.shard_count());
        let target = Target::Shard { shard, durability: Durability::Relaxed };
        let body = encode_commands([&Command::Record { number: 0, tallies }].into_iter());
        Some(Call { target, body, timeout_ms: RECORD_TIMEOUT_MS })
    }

    fn weigh(&mut self, answers: Vec<Answer>, now: Timestamp) -> Step {
        let mut decisions = Vec::new();
        let step = self.judge(answers, now, &mut decisions);
        self.decisions = decisions;
        step
    }

    fn judge(&self, answers: Vec<Answer>, now: Timestamp, decisions: &mut Vec<(usize, Outcome)>) -> Step {
        let (mut verdicts, mut failed, mut taken) = (Vec::new(), Vec::new(), Vec::new());
        for (group, answer) in self.groups.iter().zip(answers) {
            match answer.and_then(|bytes| self.read(group, &bytes)) {
                Ok(answered) => {
                    if self.phase == Phase::Take && answered.iter().all(|verdict| verdict.allowed) {
                        taken.extend(group.charges.iter().zip(answered.iter().map(|v| v.reset_at)).map(|c| (group, c)));
                    }
                    verdicts.extend(answered);
                }
                Err(_) => {
                    decisions.extend(group.charges.iter().map(|charge| (charge.policy, Outcome::Degraded)));
                    failed.extend(group.charges.iter().filter_map(|charge| self.policy(charge)));
                }
            }
        }
        let response = self.respond(&verdicts, &failed, now);
        let passes = response.status.is_none();
        for verdict in &verdicts {
            if !verdict.allowed {
                decisions.push((verdict.index, Outcome::Denied));
            } else if passes {
                decisions.push((verdict.index, Outcome::Allowed));
            }
        }
        let refunds = taken.into_iter().filter(|_| !passes).filter_map(|(group, (charge, reset_at))| {
            let refund = Command::Refund {
                amount: COST,
                reset_at_ms: reset_at.as_millis(),
                key: charge.key.clone(),
                limit: self.policy(charge)?.limit(),
                record: true,
            };
            let body = encode_commands([&refund].into_iter());
            Some(Call { target: group.target, body, timeout_ms: group.timeout_ms })
        });
        Step::Done { afterwards: refunds.collect(), response }
    }

    fn read(&self, group: &Group, bytes: &[u8]) -> Result<Vec<Verdict<'_>>, Error> {
        let take = decode_replies(bytes)?.into_iter().next().unwrap_or(Reply::Nil);
        let answers = take.into_array()?;
        let policies = group.charges.iter().filter_map(|charge| Some((charge.policy, self.policy(charge)?)));
        policies.zip(answers).map(verdict).collect()
    }
}

fn same_place(a: Target, b: Target) -> bool {
    match (a, b) {
        (Target::Shard { shard: a, .. }, Target::Shard { shard: b, .. }) => a == b,
        (a, b) => a == b,
    }
}

fn verdict(((index, policy), reply): ((usize, &Policy), Reply)) -> Result<Verdict<'_>, Error> {
    let mut parts = reply.into_array()?.into_iter();
    let mut next = || parts.next().unwrap_or(Reply::Nil);
    let mut verdict = Verdict {
        index,
        policy,
        allowed: next().into_integer()? == 1,
        remaining: next().into_count()?,
        reset_at: Timestamp::from_millis(next().into_count()?),
        retry_after: match next() {
            Reply::Nil => None,
            reply => Some(Duration::from_millis(reply.into_count()?)),
        },
        more_at: Timestamp::default(),
    };
    verdict.more_at = match next() {
        // A shard of an older version.
        Reply::Nil => verdict.reset_at,
        reply => Timestamp::from_millis(reply.into_count()?),
    };
    Ok(verdict)
}

#[cfg(test)]
mod tests;
