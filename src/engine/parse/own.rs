//! The commands of our own: `TG.*`.

use super::{Args, Parsed, out_of_range};
use crate::engine::command::{Bytes, Command, LockRequest, Tally, Window};
use crate::engine::reply::CommandError;
use crate::rules::limit::Limit;
use crate::rules::series::record::Outcome;
use crate::values::time::{Duration, Timestamp};

/// Reads `[RECORD] cost (key algorithm quota window_ms)...`.
pub(super) fn take(name: &str, mut args: Args) -> Parsed {
    let record = args.records();
    let cost = args.count("cost")?;
    let mut limits: Vec<(Bytes, Limit)> = Vec::with_capacity(args.0.len().div_ceil(4));
    while args.0.len() > 0 {
        limits.push(args.limit()?);
    }
    if limits.is_empty() {
        return Err(CommandError::syntax());
    }
    Ok(if name == "tg.take" { Command::Take { cost, limits, record } } else { Command::Peek { cost, limits, record } })
}

/// Reads `[RECORD] amount reset_at_ms key algorithm quota window_ms`.
pub(super) fn refund(_: &str, mut args: Args) -> Parsed {
    let record = args.records();
    let (amount, reset_at_ms) = (args.count("amount")?, args.count("reset_at_ms")?);
    let (key, limit) = args.limit()?;
    args.end()?;
    Ok(Command::Refund { amount, reset_at_ms, key, limit, record })
}

/// Reads `number (policy outcome count)...`.
pub(super) fn record(_: &str, mut args: Args) -> Parsed {
    let number = args.count("number")?;
    let mut tallies = Vec::with_capacity(args.0.len().div_ceil(3));
    while args.0.len() > 0 {
        tallies.push(Tally { policy: args.word()?, outcome: outcome(&args.word()?)?, count: args.count("count")? });
    }
    Ok(Command::Record { number, tallies })
}

/// Reads `rollup_ms start_ms end_ms [policy]`.
pub(super) fn series(name: &str, mut args: Args) -> Parsed {
    let window = args.window()?;
    Ok(if name == "tg.series" { Command::Series(window) } else { Command::Distinct(window) })
}

/// Reads `most outcomes rollup_ms start_ms end_ms [policy]`; outcomes are parted by commas, and `*` is all of them.
pub(super) fn top(_: &str, mut args: Args) -> Parsed {
    let most = usize::try_from(args.count("most")?).unwrap_or(usize::MAX);
    let outcomes = match args.word()?.as_slice() {
        b"*" => Vec::new(),
        names => names.split(|byte| *byte == b',').map(outcome).collect::<Result<_, _>>()?,
    };
    Ok(Command::Top { most, outcomes, window: args.window()? })
}

fn outcome(name: &[u8]) -> Result<Outcome, CommandError> {
    let expected = || out_of_range("outcome", "\"allowed\", \"denied\" or \"degraded\"");
    Outcome::from_name(name).ok_or_else(expected)
}

impl Args {
    /// Takes the leading `RECORD`, if it is there.
    fn records(&mut self) -> bool {
        let says_so = self.0.as_slice().first().is_some_and(|word| word.eq_ignore_ascii_case(b"RECORD"));
        says_so && self.0.next().is_some()
    }

    fn window(&mut self) -> Result<Window, CommandError> {
        Ok(Window {
            rollup: Duration::from_millis(self.count("rollup_ms")?),
            start: Timestamp::from_millis(self.count("start_ms")?),
            end: Timestamp::from_millis(self.count("end_ms")?),
            policy: self.0.next(),
        })
    }

    fn end(&mut self) -> Result<(), CommandError> {
        if self.0.len() == 0 { Ok(()) } else { Err(CommandError::syntax()) }
    }
}

/// Reads `key token ttl_ms [LABEL label] [WAIT wait_ms [POLL poll_ms]]`.
pub(super) fn lock(_: &str, mut args: Args) -> Parsed {
    let (key, token, ttl) = (args.word()?, args.token()?, args.ttl()?);
    let mut request = LockRequest { key, token, ttl, label: Vec::new(), wait: None, poll: None };
    while let Some(option) = args.option() {
        match option.as_str() {
            "LABEL" => request.label = args.word()?,
            "WAIT" => request.wait = Some(args.wait("wait_ms")?),
            "POLL" => request.poll = Some(args.wait("poll_ms")?),
            _ => return Err(CommandError::syntax()),
        }
    }
    Ok(Command::Lock(request))
}
