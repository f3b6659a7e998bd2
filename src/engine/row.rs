//! What a key holds, and the stored form of it.

use indexmap::IndexMap;

use crate::engine::command::Bytes;
use crate::rules::limit::standing::Standing;
use crate::rules::limit::{
    State as LimitState, concurrency, fixed_window, gcra, sliding_log, sliding_window, token_bucket,
};
use crate::values::error::{Error, ErrorKind};
use crate::values::time::{Duration, Timestamp};
use crate::values::units::Rate;

/// The fields of a hash. Their order is no promise, as in Redis.
pub type Fields = IndexMap<Bytes, Bytes, foldhash::quality::FixedState>;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string; a number is its decimal text.
    String(Bytes),
    /// A hash.
    Hash(Fields),
    /// What a limit remembers.
    Limit(Metered),
    /// A lock that somebody holds.
    Lock(Holder),
    /// What the gate has seen in a bucket of time: the stored form of a [`Stored`](crate::rules::series::record::Stored).
    Record(Bytes),
}

/// What a limit knows of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// What was counted, if anything was.
    pub state: Option<LimitState>,
    /// Whether it is blocked or about to be, if so.
    pub standing: Option<Standing>,
}

impl From<LimitState> for Metered {
    fn from(state: LimitState) -> Self {
        Self { state: Some(state), standing: None }
    }
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The secret that releases and renews.
    pub token: Bytes,
    /// Who the owner says it is.
    pub label: Bytes,
    /// The number of this grant, larger than that of every grant before it.
    pub fencing: u64,
}

/// A value and its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the key holds.
    pub value: Value,
    /// The last instant at which the key still lives; `None` is for ever.
    pub expires: Option<Timestamp>,
}

impl Row {
    /// Redis keeps a key through the millisecond of its expiry and drops it after (`now > when`).
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|at| now > at)
    }

    /// Bytes this row counts for against the shard's bound: its stored form and [`ROW_OVERHEAD`].
    pub fn weight(&self) -> usize {
        let value = match &self.value {
            Value::String(bytes) | Value::Record(bytes) => bytes.len(),
            Value::Hash(fields) => fields.iter().map(|(f, v)| field_weight(f, v)).sum(),
            Value::Limit(Metered { state, standing }) => {
                let standing = if standing.is_some() || state.is_none() { STANDING_BYTES } else { 0 };
                state.as_ref().map_or(0, limit_weight).saturating_add(standing)
            }
            Value::Lock(holder) => holder.token.len().saturating_add(holder.label.len()).saturating_add(16),
        };
        value.saturating_add(HEAD).saturating_add(ROW_OVERHEAD)
    }
}

/// Bytes of a limit's state in its stored form.
fn limit_weight(state: &LimitState) -> usize {
    match state {
        LimitState::SlidingLog(log) => log.hits.len().saturating_mul(16),
        LimitState::FixedWindow(_) => 24,
        LimitState::SlidingWindow(_) | LimitState::Gcra(_) => 32,
        LimitState::TokenBucket(_) => 40,
        LimitState::Concurrency(slots) => {
            slots.leases.iter().map(|lease| lease.token.len().saturating_add(20)).fold(0, usize::saturating_add)
        }
    }
}

/// Bytes of a standing, and of the kind of what follows it.
const STANDING_BYTES: usize = 33;

/// What a row takes in memory beside its bytes, about.
pub const ROW_OVERHEAD: usize = 64;

/// Bytes before the value: version, kind, expiry.
const HEAD: usize = 10;

/// Bytes one field of a hash counts for.
pub fn field_weight(field: &[u8], value: &[u8]) -> usize {
    field.len().saturating_add(value.len()).saturating_add(8)
}

/// The version this code writes. It reads this one only; a newer one is an error, never a guess.
const VERSION: u8 = 1;
const STRING: u8 = 0;
const HASH: u8 = 1;
const FIXED_WINDOW: u8 = 2;
const LOCK: u8 = 3;
const RECORD: u8 = 4;
const SLIDING_WINDOW: u8 = 5;
const SLIDING_LOG: u8 = 6;
const TOKEN_BUCKET: u8 = 7;
const GCRA: u8 = 8;
const CONCURRENCY: u8 = 9;
const STANDING: u8 = 10;
/// After a standing: nothing was counted.
const NONE: u8 = u8::MAX;

/// Writes a row: version, kind, expiry (`u64::MAX` is never), then the value. Integers are little-endian.
pub fn encode(row: &Row) -> Vec<u8> {
    let mut out = vec![VERSION];
    let expires = row.expires.map_or(u64::MAX, Timestamp::as_millis);
    let mut head = |kind: u8| {
        out.push(kind);
        out.extend_from_slice(&expires.to_le_bytes());
    };
    match &row.value {
        Value::String(bytes) => {
            head(STRING);
            out.extend_from_slice(bytes);
        }
        Value::Record(bytes) => {
            head(RECORD);
            out.extend_from_slice(bytes);
        }
        Value::Hash(fields) => {
            head(HASH);
            fields.iter().for_each(|(field, value)| {
                push_bytes(&mut out, field);
                push_bytes(&mut out, value);
            });
        }
        Value::Limit(Metered { state: Some(state), standing: None }) => {
            head(limit_kind(state));
            push_limit(&mut out, state);
        }
        Value::Limit(Metered { state, standing }) => {
            head(STANDING);
            let Standing { blocked_until, strikes, level, forgotten_at } = standing.unwrap_or_default();
            for number in [blocked_until.as_millis(), strikes, level.into(), forgotten_at.as_millis()] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.push(state.as_ref().map_or(NONE, limit_kind));
            state.iter().for_each(|state| push_limit(&mut out, state));
        }
        Value::Lock(holder) => {
            head(LOCK);
            out.extend_from_slice(&holder.fencing.to_le_bytes());
            push_bytes(&mut out, &holder.token);
            push_bytes(&mut out, &holder.label);
        }
    }
    out
}

/// Reads a row.
pub fn decode(bytes: &[u8]) -> Result<Row, Error> {
    let mut reader = Reader(bytes);
    let (version, kind) = (reader.byte()?, reader.byte()?);
    if version != VERSION {
        return Err(Error::new(ErrorKind::Protocol, format!("a stored row has version {version}, expected {VERSION}")));
    }
    let expires = Some(reader.number()?).filter(|&at| at != u64::MAX).map(Timestamp::from_millis);
    let value = match kind {
        STRING => Value::String(reader.rest().to_vec()),
        HASH => {
            let mut fields = Fields::default();
            while !reader.0.is_empty() {
                fields.insert(reader.bytes()?, reader.bytes()?);
            }
            Value::Hash(fields)
        }
        STANDING => {
            let standing = reader.standing()?;
            let state = match reader.byte()? {
                NONE => None,
                kind => Some(reader.limit(kind)?),
            };
            Value::Limit(Metered { state, standing: Some(standing) })
        }
        LOCK => {
            let fencing = reader.number()?;
            Value::Lock(Holder { fencing, token: reader.bytes()?, label: reader.bytes()? })
        }
        RECORD => Value::Record(reader.rest().to_vec()),
        kind => Value::Limit(reader.limit(kind)?.into()),
    };
    Ok(Row { value, expires })
}

const fn limit_kind(state: &LimitState) -> u8 {
    match state {
        LimitState::FixedWindow(_) => FIXED_WINDOW,
        LimitState::SlidingWindow(_) => SLIDING_WINDOW,
        LimitState::SlidingLog(_) => SLIDING_LOG,
        LimitState::TokenBucket(_) => TOKEN_BUCKET,
        LimitState::Gcra(_) => GCRA,
        LimitState::Concurrency(_) => CONCURRENCY,
    }
}

fn push_limit(out: &mut Vec<u8>, state: &LimitState) {
    let mut numbers = |numbers: &[u64]| numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    match state {
        LimitState::FixedWindow(s) => numbers(&[s.start.as_millis(), s.window.as_millis(), s.used]),
        LimitState::SlidingWindow(s) => numbers(&[s.start.as_millis(), s.window.as_millis(), s.previous, s.current]),
        LimitState::SlidingLog(s) => s.hits.iter().for_each(|(at, cost)| numbers(&[at.as_millis(), *cost])),
        LimitState::TokenBucket(s) => {
            numbers(&[s.rate.quota, s.rate.window.as_millis(), s.at.as_millis()]);
            out.extend_from_slice(&s.missing.to_le_bytes());
        }
        LimitState::Gcra(s) => {
            numbers(&[s.rate.quota, s.rate.window.as_millis()]);
            out.extend_from_slice(&s.arrival.to_le_bytes());
        }
        LimitState::Concurrency(s) => s.leases.iter().for_each(|lease| {
            out.extend_from_slice(&lease.until.as_millis().to_le_bytes());
            out.extend_from_slice(&lease.slots.to_le_bytes());
            push_bytes(out, &lease.token);
        }),
    }
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Values are bounded far below 4 GiB.
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (head, tail) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "a stored row ends early"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| Error::new(ErrorKind::Protocol, "a stored row ends early"))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        self.array().map(u8::from_le_bytes)
    }

    fn number(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<Bytes, Error> {
        let length = self.array().map(u32::from_le_bytes)?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX)).map(<[u8]>::to_vec)
    }

    fn timestamp(&mut self) -> Result<Timestamp, Error> {
        self.number().map(Timestamp::from_millis)
    }

    fn duration(&mut self) -> Result<Duration, Error> {
        self.number().map(Duration::from_millis)
    }

    fn rate(&mut self) -> Result<Rate, Error> {
        Rate::new(self.number()?, self.duration()?)
    }

    fn standing(&mut self) -> Result<Standing, Error> {
        let (blocked_until, strikes) = (self.timestamp()?, self.number()?);
        let level = u32::try_from(self.number()?).unwrap_or(u32::MAX);
        Ok(Standing { blocked_until, strikes, level, forgotten_at: self.timestamp()? })
    }

    fn limit(&mut self, kind: u8) -> Result<LimitState, Error> {
        Ok(match kind {
            SLIDING_WINDOW => LimitState::SlidingWindow(sliding_window::State {
                start: self.timestamp()?,
                window: self.duration()?,
                previous: self.number()?,
                current: self.number()?,
            }),
            SLIDING_LOG => {
                let mut log = sliding_log::State::default();
                while !self.0.is_empty() {
                    log.hits.push_back((self.timestamp()?, self.number()?));
                }
                LimitState::SlidingLog(log)
            }
            TOKEN_BUCKET => LimitState::TokenBucket(token_bucket::State {
                rate: self.rate()?,
                at: self.timestamp()?,
                missing: self.array().map(u128::from_le_bytes)?,
            }),
            GCRA => {
                LimitState::Gcra(gcra::State { rate: self.rate()?, arrival: self.array().map(u128::from_le_bytes)? })
            }
            CONCURRENCY => {
                let mut slots = concurrency::State::default();
                while !self.0.is_empty() {
                    let (until, count) = (self.timestamp()?, self.number()?);
                    slots.leases.push(concurrency::Lease { until, slots: count, token: self.bytes()? });
                }
                LimitState::Concurrency(slots)
            }
            FIXED_WINDOW => LimitState::FixedWindow(fixed_window::State {
                start: self.timestamp()?,
                window: self.duration()?,
                used: self.number()?,
            }),
            _ => return Err(Error::new(ErrorKind::Protocol, format!("a stored row has the unknown kind {kind}"))),
        })
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(value: Value) -> Row {
        Row { value, expires: Some(Timestamp::from_millis(0x0102)) }
    }

    #[test]
    fn the_stored_form_does_not_drift() {
        let state =
            fixed_window::State { start: Timestamp::from_millis(60_000), window: Duration::from_millis(1000), used: 7 };
        let holder = Holder { token: b"t".to_vec(), label: b"me".to_vec(), fencing: 9 };
        for (value, golden) in [
            (Value::String(b"hi".to_vec()), "0100020100000000000068 69"),
            (
                Value::Limit(Metered::from(LimitState::FixedWindow(state))),
                "01020201000000000000 60ea000000000000 e803000000000000 0700000000000000",
            ),
            (
                Value::Limit(Metered::from(LimitState::SlidingWindow(sliding_window::State {
                    start: Timestamp::from_millis(60_000),
                    window: Duration::from_millis(1000),
                    previous: 7,
                    current: 8,
                }))),
                "01050201000000000000 60ea000000000000 e803000000000000 0700000000000000 0800000000000000",
            ),
            (
                Value::Limit(Metered::from(LimitState::SlidingLog(sliding_log::State {
                    hits: [(Timestamp::from_millis(1), 2)].into(),
                }))),
                "01060201000000000000 0100000000000000 0200000000000000",
            ),
            (
                Value::Limit(Metered::from(LimitState::TokenBucket(token_bucket::State {
                    rate: Rate { quota: 5, window: Duration::from_millis(1000) },
                    at: Timestamp::from_millis(1),
                    missing: 9,
                }))),
                "01070201000000000000 0500000000000000 e803000000000000 0100000000000000 09000000000000000000000000000000",
            ),
            (
                Value::Limit(Metered::from(LimitState::Gcra(gcra::State {
                    rate: Rate { quota: 5, window: Duration::from_millis(1000) },
                    arrival: 9,
                }))),
                "01080201000000000000 0500000000000000 e803000000000000 09000000000000000000000000000000",
            ),
            (
                Value::Limit(Metered::from(LimitState::Concurrency(concurrency::State {
                    leases: vec![concurrency::Lease {
                        token: b"t".to_vec(),
                        slots: 2,
                        until: Timestamp::from_millis(1),
                    }],
                }))),
                "01090201000000000000 0100000000000000 0200000000000000 01000000 74",
            ),
            (
                Value::Limit(Metered {
                    state: Some(LimitState::FixedWindow(state)),
                    standing: Some(Standing {
                        blocked_until: Timestamp::from_millis(1),
                        strikes: 2,
                        level: 3,
                        forgotten_at: Timestamp::from_millis(4),
                    }),
                }),
                "010a0201000000000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000 02 60ea000000000000 e803000000000000 0700000000000000",
            ),
            (
                Value::Limit(Metered { state: None, standing: Some(Standing::default()) }),
                "010a0201000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 ff",
            ),
            (Value::Record(b"hi".to_vec()), "0104020100000000000068 69"),
            (Value::Lock(holder), "01030201000000000000 0900000000000000 01000000 74 02000000 6d65"),
            (
                Value::Hash(Fields::from_iter([(b"f".to_vec(), b"v".to_vec())])),
                "01010201000000000000 01000000 66 01000000 76",
            ),
        ] {
            let bytes = encode(&row(value.clone()));
            assert_eq!(crate::values::key::hex(&bytes), golden.replace(' ', ""), "{value:?}");
            assert_eq!(decode(&bytes).unwrap(), row(value.clone()));
            assert_eq!(row(value).weight(), bytes.len() + ROW_OVERHEAD, "what a store counts is what is counted here");
        }
    }

    #[test]
    fn a_newer_version_is_an_error_not_a_guess() {
        assert!(decode(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err().message().contains("version 2"));
    }

    proptest! {
        #[test]
        fn odd_bytes_are_errors_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&[&[VERSION], bytes.as_slice()].concat());
        }
    }
}
