//! From commands to words: what [`Command::parse`] reads.

use crate::engine::command::{
    Bytes, Command, Existence, ExpireAt, ExpireCondition, LockRequest, SetExpiry, TimeUnit, Window,
};
use crate::engine::resp::Argv;
use crate::rules::limit::Limit;

impl Command {
    /// The words of this command: what [`Command::parse`] reads.
    pub fn to_argv(&self) -> Argv {
        let mut words = Words(Vec::new());
        match self {
            Self::Ping(message) => words.text("PING").all(message.as_ref()),
            Self::Get(key) => words.text("GET").all([key]),
            Self::Set { key, value, condition, expiry, get } => {
                words.text("SET").all([key, value]);
                match condition {
                    Some(Existence::Absent) => words.text("NX"),
                    Some(Existence::Present) => words.text("XX"),
                    None => &mut words,
                };
                if *get {
                    words.text("GET");
                }
                match expiry {
                    SetExpiry::Never => &mut words,
                    SetExpiry::Keep => words.text("KEEPTTL"),
                    SetExpiry::At(at) => words.text(set_option(*at)).number(at.value),
                }
            }
            Self::SetNx { key, value } => words.text("SETNX").all([key, value]),
            Self::Del(keys) => words.text("DEL").all(keys),
            Self::DelIfEqual { key, value } => words.text("DELEX").all([key]).text("IFEQ").all([value]),
            Self::Exists(keys) => words.text("EXISTS").all(keys),
            Self::IncrBy { key, by } => words.text("INCRBY").all([key]).number(by),
            Self::IncrExisting(key) => words.text("TG.INCRX").all([key]),
            Self::Expire { key, at, condition } => {
                words.text(at.command_name()).all([key]).number(at.value);
                let ExpireCondition { nx, xx, gt, lt } = *condition;
                for (on, option) in [(nx, "NX"), (xx, "XX"), (gt, "GT"), (lt, "LT")] {
                    if on {
                        words.text(option);
                    }
                }
                &mut words
            }
            Self::ExpireIfEqual { key, ttl, value } => {
                words.text("PEXPIRE").all([key]).number(ttl.as_millis()).text("IFEQ").all([value])
            }
            Self::Ttl { key, unit: TimeUnit::Seconds } => words.text("TTL").all([key]),
            Self::Ttl { key, unit: TimeUnit::Millis } => words.text("PTTL").all([key]),
            Self::Persist(key) => words.text("PERSIST").all([key]),
            Self::HSet { key, pairs } => words.text("HSET").all([key]).all(pairs.iter().flat_map(|(f, v)| [f, v])),
            Self::HIncrBy { key, field, by } => words.text("HINCRBY").all([key, field]).number(by),
            Self::HGet { key, field } => words.text("HGET").all([key, field]),
            Self::HMGet { key, fields } => words.text("HMGET").all([key]).all(fields),
            Self::HGetAll(key) => words.text("HGETALL").all([key]),
            Self::HDel { key, fields } => words.text("HDEL").all([key]).all(fields),
            Self::PfAdd { key, elements } => words.text("PFADD").all([key]).all(elements),
            Self::PfCount(keys) => words.text("PFCOUNT").all(keys),
            Self::PfMerge { target, sources } => words.text("PFMERGE").all([target]).all(sources),
            Self::Take { cost, limits, record } | Self::Peek { cost, limits, record } => {
                let is_take = matches!(self, Self::Take { .. });
                words.text(if is_take { "TG.TAKE" } else { "TG.PEEK" }).recorded(*record).number(cost);
                limits.iter().fold(&mut words, |words, (key, limit)| words.limit(key, limit))
            }
            Self::Refund { amount, reset_at_ms, key, limit, record } => {
                words.text("TG.REFUND").recorded(*record).number(amount).number(reset_at_ms).limit(key, limit)
            }
            Self::Record { number, tallies } => {
                tallies.iter().fold(words.text("TG.RECORD").number(number), |words, tally| {
                    words.all([&tally.policy]).text(tally.outcome.name()).number(tally.count)
                })
            }
            Self::Series(window) => words.text("TG.SERIES").window(window),
            Self::Top { most, outcomes, window } => {
                let names: Vec<_> = outcomes.iter().map(|outcome| outcome.name()).collect();
                let names = if names.is_empty() { "*".to_owned() } else { names.join(",") };
                words.text("TG.TOP").number(most).text(&names).window(window)
            }
            Self::Distinct(window) => words.text("TG.DISTINCT").window(window),
            Self::Totals => words.text("TG.TOTALS"),
            Self::Lock(request) => words.lock(request),
            Self::Renew { key, token, ttl } => words.text("TG.RENEW").all([key, token]).number(ttl.as_millis()),
            Self::Unlock { key, token } => words.text("TG.UNLOCK").all([key, token]),
            Self::LockInfo(key) => words.text("TG.LOCKINFO").all([key]),
        };
        words.0
    }
}

const fn set_option(at: ExpireAt) -> &'static str {
    match (at.unit, at.absolute) {
        (TimeUnit::Seconds, false) => "EX",
        (TimeUnit::Millis, false) => "PX",
        (TimeUnit::Seconds, true) => "EXAT",
        (TimeUnit::Millis, true) => "PXAT",
    }
}

struct Words(Argv);

impl Words {
    fn text(&mut self, word: &str) -> &mut Self {
        self.0.push(word.as_bytes().to_vec());
        self
    }

    fn number(&mut self, number: impl std::fmt::Display) -> &mut Self {
        self.text(&number.to_string())
    }

    fn all<'a>(&mut self, words: impl IntoIterator<Item = &'a Bytes>) -> &mut Self {
        self.0.extend(words.into_iter().cloned());
        self
    }

    fn recorded(&mut self, record: bool) -> &mut Self {
        if record { self.text("RECORD") } else { self }
    }

    fn window(&mut self, window: &Window) -> &mut Self {
        let Window { rollup, start, end, policy } = window;
        self.number(rollup.as_millis()).number(start.as_millis()).number(end.as_millis()).all(policy)
    }

    fn limit(&mut self, key: &Bytes, limit: &Limit) -> &mut Self {
        let Limit { algorithm, rate } = limit;
        self.all([key]).text(&algorithm.to_string()).number(rate.quota).number(rate.window.as_millis())
    }

    fn lock(&mut self, request: &LockRequest) -> &mut Self {
        let LockRequest { key, token, ttl, label, wait, poll } = request;
        self.text("TG.LOCK").all([key, token]).number(ttl.as_millis());
        if !label.is_empty() {
            self.text("LABEL").all([label]);
        }
        for (option, span) in [("WAIT", wait), ("POLL", poll)] {
            if let Some(span) = span {
                self.text(option).number(span.as_millis());
            }
        }
        self
    }
}
