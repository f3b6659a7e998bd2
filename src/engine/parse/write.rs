//! From commands to words: what [`Command::parse`] reads.

use crate::engine::command::{
    Bytes, Command, Existence, ExpireAt, ExpireCondition, LockRequest, SetExpiry, Take, TimeUnit, Window,
};
use crate::engine::resp::Argv;
use crate::rules::limit::Limit;
use crate::rules::limit::standing::Escalation;

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
            Self::Take(take) => words.text("TG.TAKE").take(take),
            Self::Peek(take) => words.text("TG.PEEK").take(take),
            Self::Settle { cost, actual, reset_at_ms, key, limit } => {
                words.text("TG.SETTLE").number(cost).number(actual).number(reset_at_ms).limit(key, limit)
            }
            Self::Penalty { amount, key, limit } => words.text("TG.PENALTY").number(amount).limit(key, limit),
            Self::Reward { amount, key, limit } => words.text("TG.REWARD").number(amount).limit(key, limit),
            Self::Reset(keys) => words.text("TG.RESET").all(keys),
            Self::Block { span, keys } => words.text("TG.BLOCK").number(span.as_millis()).all(keys),
            Self::Release { token, keys, record } => words.text("TG.RELEASE").recorded(*record).all([token]).all(keys),
            Self::Extend { token, limits } => {
                limits.iter().fold(words.text("TG.EXTEND").all([token]), |words, (key, limit)| words.limit(key, limit))
            }
            Self::Policy { known } => match known {
                Some(known) => words.text("TG.POLICY").number(known),
                None => words.text("TG.POLICY"),
            },
            Self::SetPolicy { expected, document } => {
                let expected = expected.map_or_else(|| "*".to_owned(), |version| version.to_string());
                words.text("TG.SETPOLICY").text(&expected).all([document])
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

    fn take(&mut self, take: &Take) -> &mut Self {
        self.recorded(take.record);
        if take.partial {
            self.text("PARTIAL");
        }
        if let Some(token) = &take.token {
            self.text("TOKEN").all([token]);
        }
        for (index, charge) in take.charges.iter().enumerate() {
            if charge.shadow {
                self.text("SHADOW").number(index);
            }
            if let Some(Escalation { after, block, factor, longest, forget }) = charge.escalation {
                self.text("ESCALATE").number(index).number(after).number(block.as_millis()).number(factor);
                self.number(longest.as_millis()).number(forget.as_millis());
            }
        }
        let costs: Vec<_> = take.charges.iter().map(|charge| charge.cost).collect();
        let is_one = costs.windows(2).all(|pair| pair.first() == pair.last());
        let shown = if is_one { costs.get(..1).unwrap_or(&costs) } else { &costs };
        let shown: Vec<_> = shown.iter().map(u64::to_string).collect();
        self.text(&shown.join(","));
        take.charges.iter().fold(self, |words, charge| words.limit(&charge.key, &charge.limit))
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
