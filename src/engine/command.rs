//! The commands: the part of Redis that the job needs, and the operations a script would do there.

use crate::rules::limit::Limit;
use crate::rules::limit::standing::Escalation;
use crate::rules::series::record::Outcome;
use crate::values::time::{Duration, Timestamp};

/// Bytes of a key, a field or a value; any bytes will do, as in Redis.
pub type Bytes = Vec<u8>;

/// One command. `docs/redis-semantics.md` has its words, its replies and where it differs from Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `PING [message]`
    Ping(Option<Bytes>),
    /// `GET key`
    Get(Bytes),
    /// `SET key value [NX|XX] [GET] [EX|PX|EXAT|PXAT time | KEEPTTL]`
    Set {
        /// The key.
        key: Bytes,
        /// The new value.
        value: Bytes,
        /// `NX` or `XX`.
        condition: Option<Existence>,
        /// What becomes of the time to live.
        expiry: SetExpiry,
        /// `GET`: answer with the old value.
        get: bool,
    },
    /// `SETNX key value`
    SetNx {
        /// The key.
        key: Bytes,
        /// The value it gets when it does not exist.
        value: Bytes,
    },
    /// `DEL key [key ...]`
    Del(Vec<Bytes>),
    /// `DELEX key IFEQ value` (Redis 8.4): compare and delete.
    DelIfEqual {
        /// The key.
        key: Bytes,
        /// Deleted only while it holds this value.
        value: Bytes,
    },
    /// `EXISTS key [key ...]`
    Exists(Vec<Bytes>),
    /// `INCR`, `INCRBY`, `DECR`, `DECRBY`
    IncrBy {
        /// The key.
        key: Bytes,
        /// What is added.
        by: i64,
    },
    /// `TG.INCRX key`: add one only to a counter that exists, as memcached's `incr` does. Nil when it does not.
    IncrExisting(Bytes),
    /// `EXPIRE`, `PEXPIRE`, `EXPIREAT`, `PEXPIREAT`
    Expire {
        /// The key.
        key: Bytes,
        /// When it goes.
        at: ExpireAt,
        /// `NX`, `XX`, `GT`, `LT`.
        condition: ExpireCondition,
    },
    /// `PEXPIRE key milliseconds IFEQ value`: compare and expire, how a lock kept as a plain value is renewed.
    /// A time that is not positive is refused: it would delete the key and say yes.
    ExpireIfEqual {
        /// The key.
        key: Bytes,
        /// The new time to live, positive.
        ttl: Duration,
        /// Changed only while it holds this value.
        value: Bytes,
    },
    /// `TTL` (in seconds) and `PTTL` (in milliseconds)
    Ttl {
        /// The key.
        key: Bytes,
        /// The unit of the reply.
        unit: TimeUnit,
    },
    /// `PERSIST key`
    Persist(Bytes),
    /// `HSET key field value [field value ...]`
    HSet {
        /// The key.
        key: Bytes,
        /// Fields and their values.
        pairs: Vec<(Bytes, Bytes)>,
    },
    /// `HINCRBY key field increment`
    HIncrBy {
        /// The key.
        key: Bytes,
        /// The field.
        field: Bytes,
        /// What is added.
        by: i64,
    },
    /// `HGET key field`
    HGet {
        /// The key.
        key: Bytes,
        /// The field.
        field: Bytes,
    },
    /// `HMGET key field [field ...]`
    HMGet {
        /// The key.
        key: Bytes,
        /// The fields.
        fields: Vec<Bytes>,
    },
    /// `HGETALL key`
    HGetAll(Bytes),
    /// `HDEL key field [field ...]`
    HDel {
        /// The key.
        key: Bytes,
        /// The fields.
        fields: Vec<Bytes>,
    },
    /// `PFADD key [element ...]`
    PfAdd {
        /// The key.
        key: Bytes,
        /// What is added to the sketch.
        elements: Vec<Bytes>,
    },
    /// `PFCOUNT key [key ...]`
    PfCount(Vec<Bytes>),
    /// `PFMERGE target [source ...]`
    PfMerge {
        /// The sketch that becomes the union.
        target: Bytes,
        /// What is added to it.
        sources: Vec<Bytes>,
    },
    /// `TG.TAKE [RECORD] [PARTIAL] [TOKEN token] [SHADOW index]... [ESCALATE index after block_ms factor longest_ms
    /// forget_ms]... costs (key algorithm quota window_ms)...`: charge all of the limits or none. `costs` is one number for
    /// all, or as many as there are limits, parted by commas. An array for each: allowed (1 or 0), remaining, reset at (ms),
    /// retry after (ms, nil when allowed), more at (ms), granted, blocked (1 or 0).
    Take(Take),
    /// `TG.PEEK`: what [`Command::Take`] would answer now. Nothing is charged.
    Peek(Take),
    /// `TG.REFUND [RECORD] amount reset_at_ms key algorithm quota window_ms`: give back what a take charged. 1, or 0
    /// when that window is over or unknown.
    Refund {
        /// Quota units.
        amount: u64,
        /// The `reset at` of the take.
        reset_at_ms: u64,
        /// The limit's key.
        key: Bytes,
        /// The limit.
        limit: Limit,
        /// Take back that it was recorded as allowed.
        record: bool,
    },
    /// `TG.SETTLE cost actual reset_at_ms key algorithm quota window_ms`: a take of `cost` turned out to have cost `actual`.
    /// The difference is given back as by `TG.REFUND`, or charged as by `TG.PENALTY`. Answers as a take of one limit.
    Settle {
        /// What was charged.
        cost: u64,
        /// What it was.
        actual: u64,
        /// The `reset at` of the take.
        reset_at_ms: u64,
        /// The limit's key.
        key: Bytes,
        /// The limit.
        limit: Limit,
    },
    /// `TG.PENALTY amount key algorithm quota window_ms`: charge it whether it fits or not, up to one quota beyond the quota.
    /// Answers as a take of one limit.
    Penalty {
        /// Quota units.
        amount: u64,
        /// The limit's key.
        key: Bytes,
        /// The limit.
        limit: Limit,
    },
    /// `TG.REWARD amount key algorithm quota window_ms`: give back of what is used now. Answers as a take of one limit.
    Reward {
        /// Quota units.
        amount: u64,
        /// The limit's key.
        key: Bytes,
        /// The limit.
        limit: Limit,
    },
    /// `TG.RESET key [key ...]`: forget what limits know of these keys, blocks too. How many there were.
    Reset(Vec<Bytes>),
    /// `TG.BLOCK ms key [key ...]`: refuse these keys for so long, whatever their limits say; 0 lifts it. `OK`.
    Block {
        /// From now on.
        span: Duration,
        /// The limits' keys.
        keys: Vec<Bytes>,
    },
    /// `TG.RELEASE [RECORD] token key [key ...]`: free the slots that are held under the token. How many keys had any.
    Release {
        /// The holder's token.
        token: Bytes,
        /// The limits' keys.
        keys: Vec<Bytes>,
        /// Take back that it was recorded as allowed.
        record: bool,
    },
    /// `TG.EXTEND token (key algorithm quota window_ms)...`: hold the slots for another window from now. How many keys had
    /// any.
    Extend {
        /// The holder's token.
        token: Bytes,
        /// The limits, each under its own key.
        limits: Vec<(Bytes, Limit)>,
    },
    /// `TG.POLICY [known]`: the document of policies that is in force here: its version and its text, nil when the version is
    /// the known one. Version 0 is none.
    Policy {
        /// The version that the caller has.
        known: Option<u64>,
    },
    /// `TG.SETPOLICY expected document`: put a document in the place of version `expected`, or of any with `*`; an empty one
    /// removes it. 1 and the new version, or 0 and the present one when that is not the expected.
    SetPolicy {
        /// The version that the caller has seen.
        expected: Option<u64>,
        /// The text.
        document: Bytes,
    },
    /// `TG.RECORD number policy outcome count [policy outcome count ...]`: record decisions that were made elsewhere,
    /// once for each number; 0 is none.
    Record {
        /// Says when the same comes again.
        number: u64,
        /// The decisions.
        tallies: Vec<Tally>,
    },
    /// `TG.SERIES rollup_ms start_ms end_ms [policy]`: what was recorded here. An array for each bucket and policy with
    /// any: the bucket's beginning (ms), the policy, allowed, denied, degraded, shadowed.
    Series(Window),
    /// `TG.TOP most outcomes rollup_ms start_ms end_ms [policy]`: the heaviest partition keys. An array for each:
    /// policy, label, allowed, denied, degraded, shadowed, and by how much these may be too low together.
    Top {
        /// How many.
        most: usize,
        /// Heaviest by the sum of these outcomes; by all of them if none is given.
        outcomes: Vec<Outcome>,
        /// When.
        window: Window,
    },
    /// `TG.DISTINCT rollup_ms start_ms end_ms [policy]`: about how many partition keys each policy saw. An array for
    /// each policy: its name and the number.
    Distinct(Window),
    /// `TG.TOTALS`: keys and bytes of this shard, then for each policy its name and all that was ever allowed, denied,
    /// degraded and shadowed. These never go down.
    Totals,
    /// `TG.LOCK key token ttl_ms [LABEL label] [WAIT wait_ms [POLL poll_ms]]`: acquire a lock.
    Lock(LockRequest),
    /// `TG.RENEW key token ttl_ms`: the owner's lock expires `ttl_ms` from now. Fencing number and expiry, or nil.
    Renew {
        /// The lock.
        key: Bytes,
        /// Its owner's token.
        token: Bytes,
        /// The new time to live, from now.
        ttl: Duration,
    },
    /// `TG.UNLOCK key token`: release by owner, and leave the queue. 1, or 0 when it was not the owner.
    Unlock {
        /// The lock.
        key: Bytes,
        /// Its owner's token.
        token: Bytes,
    },
    /// `TG.LOCKINFO key`: label, fencing number, ms left and number of waiters; nil when nobody holds it.
    LockInfo(Bytes),
}

/// What is asked of several limits together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// The limits, each under its own key.
    pub charges: Vec<Charge>,
    /// Record the decision of each limit whose key is a policy's: allowed when all were charged, denied where it refused,
    /// shadowed where it would have.
    pub record: bool,
    /// Grant as much as all of them have, when that is not everything. All costs are the same then.
    pub partial: bool,
    /// Who holds the slots of concurrency limits.
    pub token: Option<Bytes>,
}

/// What is asked of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The limit's key.
    pub key: Bytes,
    /// The limit.
    pub limit: Limit,
    /// Quota units; 0 looks.
    pub cost: u64,
    /// Only say what it would do: it refuses nothing, and is charged when it would allow and the others do.
    pub shadow: bool,
    /// What repeated refusals lead to.
    pub escalation: Option<Escalation>,
}

impl Charge {
    /// A charge that is enforced and leads to no block.
    pub const fn new(key: Bytes, limit: Limit, cost: u64) -> Self {
        Self { key, limit, cost, shadow: false, escalation: None }
    }
}

/// Decisions that were made elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The policy's name.
    pub policy: Bytes,
    /// How they went.
    pub outcome: Outcome,
    /// How many there were.
    pub count: u64,
}

/// A range of what was recorded, both ends in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The step of its buckets: one of the levels that are recorded.
    pub rollup: Duration,
    /// The first instant.
    pub start: Timestamp,
    /// The last instant.
    pub end: Timestamp,
    /// Only this policy.
    pub policy: Option<Bytes>,
}

impl Window {
    /// Whether the policy of that name is asked for.
    pub fn wants(&self, policy: &str) -> bool {
        self.policy.as_deref().is_none_or(|wanted| wanted == policy.as_bytes())
    }
}

/// The arguments of `TG.LOCK`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The lock.
    pub key: Bytes,
    /// The owner's secret, random for each attempt.
    pub token: Bytes,
    /// How long the lock lives without renewal.
    pub ttl: Duration,
    /// Who the owner says it is, for people who look.
    pub label: Bytes,
    /// Queue for this long when the lock is held, at most [`MAX_WAIT`].
    pub wait: Option<Duration>,
    /// The caller asks again within this span, or has given up: a second if not given, at most [`MAX_WAIT`].
    pub poll: Option<Duration>,
}

/// The longest wait for a lock: five minutes.
pub const MAX_WAIT: Duration = Duration::from_secs(300);

/// `NX` and `XX` of `SET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    /// `NX`: only when the key does not exist.
    Absent,
    /// `XX`: only when it does.
    Present,
}

/// What `SET` does to the time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetExpiry {
    /// None is given: the key lives for ever.
    Never,
    /// `KEEPTTL`.
    Keep,
    /// `EX`, `PX`, `EXAT` or `PXAT`.
    At(ExpireAt),
}

/// A time as a command gives it: a number, its unit and what it counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpireAt {
    /// The number; negative and past times are allowed and delete the key.
    pub value: i64,
    /// Its unit.
    pub unit: TimeUnit,
    /// Counted from the epoch instead of from now.
    pub absolute: bool,
}

/// Seconds or milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
}

/// When `EXPIRE` changes an expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpireCondition {
    /// Only when there is none (`NX`).
    pub nx: bool,
    /// Only when there is one (`XX`).
    pub xx: bool,
    /// Only when the new one is later (`GT`).
    pub gt: bool,
    /// Only when the new one is earlier (`LT`).
    pub lt: bool,
}

impl ExpireAt {
    /// The instant in ms since the epoch, or `None` when it is outside of 64 bits.
    pub fn resolve(self, now_ms: i64) -> Option<i64> {
        let value = match self.unit {
            TimeUnit::Seconds => self.value.checked_mul(1000)?,
            TimeUnit::Millis => self.value,
        };
        if self.absolute { Some(value) } else { value.checked_add(now_ms) }
    }

    /// The Redis command that says this.
    pub const fn command_name(self) -> &'static str {
        match (self.unit, self.absolute) {
            (TimeUnit::Seconds, false) => "expire",
            (TimeUnit::Millis, false) => "pexpire",
            (TimeUnit::Seconds, true) => "expireat",
            (TimeUnit::Millis, true) => "pexpireat",
        }
    }
}

impl Command {
    /// The keys that the command reads or writes, in its order.
    pub fn keys(&self) -> Vec<&[u8]> {
        match self {
            Self::Ping(_)
            | Self::Record { .. }
            | Self::Series(_)
            | Self::Top { .. }
            | Self::Distinct(_)
            | Self::Policy { .. }
            | Self::SetPolicy { .. }
            | Self::Totals => Vec::new(),
            Self::PfMerge { target, sources } => [target].into_iter().chain(sources).map(Vec::as_slice).collect(),
            Self::Del(keys)
            | Self::Exists(keys)
            | Self::PfCount(keys)
            | Self::Reset(keys)
            | Self::Block { keys, .. }
            | Self::Release { keys, .. } => keys.iter().map(Vec::as_slice).collect(),
            Self::Take(take) | Self::Peek(take) => take.charges.iter().map(|charge| charge.key.as_slice()).collect(),
            Self::Extend { limits, .. } => limits.iter().map(|(key, _)| key.as_slice()).collect(),
            Self::Lock(LockRequest { key, .. })
            | Self::Get(key)
            | Self::Set { key, .. }
            | Self::SetNx { key, .. }
            | Self::DelIfEqual { key, .. }
            | Self::IncrBy { key, .. }
            | Self::IncrExisting(key)
            | Self::Expire { key, .. }
            | Self::ExpireIfEqual { key, .. }
            | Self::Ttl { key, .. }
            | Self::Persist(key)
            | Self::HSet { key, .. }
            | Self::HIncrBy { key, .. }
            | Self::HGet { key, .. }
            | Self::HMGet { key, .. }
            | Self::HGetAll(key)
            | Self::HDel { key, .. }
            | Self::PfAdd { key, .. }
            | Self::Refund { key, .. }
            | Self::Settle { key, .. }
            | Self::Penalty { key, .. }
            | Self::Reward { key, .. }
            | Self::Renew { key, .. }
            | Self::Unlock { key, .. }
            | Self::LockInfo(key) => vec![key],
        }
    }

    /// Whether its effect must be on disk before the reply leaves, whatever the batch asks: a lock that a
    /// crash forgets is two owners, and a document of policies was said to be in force.
    pub const fn is_always_durable(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Renew { .. } | Self::Unlock { .. } | Self::SetPolicy { .. })
    }

    /// Whether it asks for a lock. Stores that cannot promise one refuse it.
    pub const fn is_lock(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Renew { .. } | Self::Unlock { .. } | Self::LockInfo(_))
    }
}
