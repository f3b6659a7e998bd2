//! The commands of our own: `TG.*`.

use super::{Args, Parsed, out_of_range};
use crate::engine::command::{Bytes, Charge, Command, LockRequest, Take, Tally, Window};
use crate::engine::reply::CommandError;
use crate::rules::limit::standing::Escalation;
use crate::rules::series::record::Outcome;
use crate::values::number::parse_count;
use crate::values::time::{Duration, Timestamp};
use crate::values::units::MAX_WINDOW;

/// Reads `[RECORD] [PARTIAL] [TOKEN token] [SHADOW index]... [ESCALATE ...]... costs (key algorithm quota window_ms)...`.
pub(super) fn take(name: &str, mut args: Args) -> Parsed {
    let mut take = Take::default();
    let (mut shadows, mut escalations) = (Vec::new(), Vec::new());
    loop {
        if args.skip("RECORD") {
            take.record = true;
        } else if args.skip("PARTIAL") {
            take.partial = true;
        } else if args.skip("TOKEN") {
            take.token = Some(args.token()?);
        } else if args.skip("SHADOW") {
            shadows.push(args.index()?);
        } else if args.skip("ESCALATE") {
            escalations.push((args.index()?, args.escalation()?));
        } else {
            break;
        }
    }
    let costs = args.costs()?;
    while args.0.len() > 0 {
        let (key, limit) = args.limit()?;
        let cost = costs.get(if costs.len() == 1 { 0 } else { take.charges.len() });
        take.charges.push(Charge::new(key, limit, *cost.ok_or_else(wrong_costs)?));
    }
    if take.charges.is_empty() {
        return Err(CommandError::syntax());
    }
    if costs.len() > 1 && costs.len() != take.charges.len() {
        return Err(wrong_costs());
    }
    if costs.len() > 1 && take.partial {
        return Err(out_of_range("cost", "one number with PARTIAL"));
    }
    let beyond = || out_of_range("index", "less than the number of limits");
    for index in shadows {
        take.charges.get_mut(index).ok_or_else(beyond)?.shadow = true;
    }
    for (index, escalation) in escalations {
        take.charges.get_mut(index).ok_or_else(beyond)?.escalation = Some(escalation);
    }
    Ok(if name == "tg.take" { Command::Take(take) } else { Command::Peek(take) })
}

fn wrong_costs() -> CommandError {
    out_of_range("cost", "one number, or one for each of the limits")
}

/// Reads `[RECORD] amount reset_at_ms key algorithm quota window_ms`.
pub(super) fn refund(_: &str, mut args: Args) -> Parsed {
    let record = args.skip("RECORD");
    let (amount, reset_at_ms) = (args.count("amount")?, args.count("reset_at_ms")?);
    let (key, limit) = args.limit()?;
    args.end()?;
    Ok(Command::Refund { amount, reset_at_ms, key, limit, record })
}

/// Reads `cost actual reset_at_ms key algorithm quota window_ms`.
pub(super) fn settle(_: &str, mut args: Args) -> Parsed {
    let (cost, actual) = (args.count("cost")?, args.count("actual")?);
    let reset_at_ms = args.count("reset_at_ms")?;
    let (key, limit) = args.limit()?;
    Ok(Command::Settle { cost, actual, reset_at_ms, key, limit })
}

/// Reads `amount key algorithm quota window_ms`.
pub(super) fn adjust(name: &str, mut args: Args) -> Parsed {
    let amount = args.count("amount")?;
    let (key, limit) = args.limit()?;
    let is_penalty = name == "tg.penalty";
    Ok(if is_penalty { Command::Penalty { amount, key, limit } } else { Command::Reward { amount, key, limit } })
}

/// Reads `ms key [key ...]`.
pub(super) fn block(_: &str, mut args: Args) -> Parsed {
    let span = Duration::from_millis(args.count("ms")?);
    if span > MAX_WINDOW {
        return Err(out_of_range("ms", "at most 366 days"));
    }
    Ok(Command::Block { span, keys: args.0.collect() })
}

/// Reads `[RECORD] token key [key ...]`.
pub(super) fn release(_: &str, mut args: Args) -> Parsed {
    let record = args.skip("RECORD");
    let token = args.token()?;
    let keys: Vec<Bytes> = args.0.collect();
    if keys.is_empty() { Err(CommandError::syntax()) } else { Ok(Command::Release { token, keys, record }) }
}

/// Reads `token (key algorithm quota window_ms)...`.
pub(super) fn extend(_: &str, mut args: Args) -> Parsed {
    let token = args.token()?;
    let mut limits = Vec::with_capacity(args.0.len().div_ceil(4));
    while args.0.len() > 0 {
        limits.push(args.limit()?);
    }
    Ok(Command::Extend { token, limits })
}

/// Reads `[known]`.
pub(super) fn policy(_: &str, mut args: Args) -> Parsed {
    let known = if args.0.len() > 0 { Some(args.count("known")?) } else { None };
    Ok(Command::Policy { known })
}

/// Reads `expected document`.
pub(super) fn set_policy(_: &str, mut args: Args) -> Parsed {
    let expected = if args.skip("*") { None } else { Some(args.count("expected")?) };
    Ok(Command::SetPolicy { expected, document: args.word()? })
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
    let expected = || out_of_range("outcome", "\"allowed\", \"denied\", \"degraded\" or \"shadowed\"");
    Outcome::from_name(name).ok_or_else(expected)
}

impl Args {
    /// Takes the next word, if it is this one.
    fn skip(&mut self, word: &str) -> bool {
        let is_next = self.0.as_slice().first().is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()));
        is_next && self.0.next().is_some()
    }

    /// One cost, or several with commas between.
    fn costs(&mut self) -> Result<Vec<u64>, CommandError> {
        let word = self.word()?;
        let cost = |text: &[u8]| parse_count(text).ok_or_else(|| out_of_range("cost", "an integer from 0 to 2^53 - 1"));
        word.split(|byte| *byte == b',').map(cost).collect()
    }

    fn index(&mut self) -> Result<usize, CommandError> {
        Ok(usize::try_from(self.count("index")?).unwrap_or(usize::MAX))
    }

    fn escalation(&mut self) -> Result<Escalation, CommandError> {
        let (after, block) = (self.count("after")?, self.count("block_ms")?);
        let (factor, longest, forget) = (self.count("factor")?, self.count("longest_ms")?, self.count("forget_ms")?);
        let [block, longest, forget] = [block, longest, forget].map(Duration::from_millis);
        Ok(Escalation::new(after, block, factor, longest, forget)?)
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
