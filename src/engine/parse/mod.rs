//! From words to commands and back. Errors are Redis's own, and found at the moment Redis finds them: an
//! unknown command or a wrong number of arguments when it is queued, the rest when it runs.

mod own;
mod write;

use crate::engine::command::{Bytes, Command, Existence, ExpireAt, ExpireCondition, MAX_WAIT, SetExpiry, TimeUnit};
use crate::engine::reply::CommandError;
use crate::engine::resp::Argv;
use crate::rules::limit::{Algorithm, Limit};
use crate::values::number::{parse_count, parse_integer};
use crate::values::time::Duration;
use crate::values::units::Rate;

type Parsed = Result<Command, CommandError>;

impl Command {
    /// Reads a command from its name and arguments.
    ///
    /// ```
    /// use tollgate::Command;
    /// let words = |text: &str| text.split(' ').map(|w| w.as_bytes().to_vec()).collect::<Vec<_>>();
    /// assert_eq!(Command::parse(words("incrby k 5")), Ok(Command::IncrBy { key: b"k".to_vec(), by: 5 }));
    /// let error = Command::parse(words("GET")).unwrap_err();
    /// assert_eq!(error.text(), "ERR wrong number of arguments for 'get' command");
    /// ```
    pub fn parse(argv: Argv) -> Parsed {
        let mut words = argv.into_iter();
        let Some(word) = words.next() else { return Err(CommandError::malformed("ERR empty command")) };
        let name = String::from_utf8_lossy(&word).to_ascii_lowercase();
        let args: Vec<Bytes> = words.collect();
        let Some((at_least, at_most, read)) = syntax(&name) else { return Err(unknown(&word, &args)) };
        if args.len() < at_least || args.len() > at_most {
            return Err(wrong_arity(&name));
        }
        read(&name, Args(args.into_iter()))
    }
}

type ReadArgs = fn(&str, Args) -> Parsed;

/// The fewest and most arguments of a command, and how they are read.
fn syntax(name: &str) -> Option<(usize, usize, ReadArgs)> {
    const ANY: usize = usize::MAX;
    Some(match name {
        "ping" => (0, 1, |_, mut a| Ok(Command::Ping(a.0.next()))),
        "get" => (1, 1, |_, mut a| Ok(Command::Get(a.word()?))),
        "set" => (2, ANY, set),
        "setnx" => (2, 2, |_, mut a| Ok(Command::SetNx { key: a.word()?, value: a.word()? })),
        "del" | "unlink" => (1, ANY, |_, a| Ok(Command::Del(a.0.collect()))),
        "delex" => (3, 3, del_if_equal),
        "exists" => (1, ANY, |_, a| Ok(Command::Exists(a.0.collect()))),
        "incr" => (1, 1, |_, mut a| Ok(Command::IncrBy { key: a.word()?, by: 1 })),
        "decr" => (1, 1, |_, mut a| Ok(Command::IncrBy { key: a.word()?, by: -1 })),
        "incrby" => (2, 2, |_, mut a| Ok(Command::IncrBy { key: a.word()?, by: a.integer()? })),
        "decrby" => (2, 2, decr_by),
        "tg.incrx" => (1, 1, |_, mut a| Ok(Command::IncrExisting(a.word()?))),
        "expire" | "pexpire" | "expireat" | "pexpireat" => (2, ANY, expire),
        "ttl" => (1, 1, |_, mut a| Ok(Command::Ttl { key: a.word()?, unit: TimeUnit::Seconds })),
        "pttl" => (1, 1, |_, mut a| Ok(Command::Ttl { key: a.word()?, unit: TimeUnit::Millis })),
        "persist" => (1, 1, |_, mut a| Ok(Command::Persist(a.word()?))),
        "hset" => (3, ANY, h_set),
        "hincrby" => (3, 3, |_, mut a| Ok(Command::HIncrBy { key: a.word()?, field: a.word()?, by: a.integer()? })),
        "hget" => (2, 2, |_, mut a| Ok(Command::HGet { key: a.word()?, field: a.word()? })),
        "hmget" => (2, ANY, |_, mut a| Ok(Command::HMGet { key: a.word()?, fields: a.0.collect() })),
        "hgetall" => (1, 1, |_, mut a| Ok(Command::HGetAll(a.word()?))),
        "hdel" => (2, ANY, |_, mut a| Ok(Command::HDel { key: a.word()?, fields: a.0.collect() })),
        "pfadd" => (1, ANY, |_, mut a| Ok(Command::PfAdd { key: a.word()?, elements: a.0.collect() })),
        "pfcount" => (1, ANY, |_, a| Ok(Command::PfCount(a.0.collect()))),
        "pfmerge" => (1, ANY, |_, mut a| Ok(Command::PfMerge { target: a.word()?, sources: a.0.collect() })),
        "tg.take" | "tg.peek" => (5, ANY, own::take),
        "tg.refund" => (6, 7, own::refund),
        "tg.settle" => (7, 7, own::settle),
        "tg.penalty" | "tg.reward" => (5, 5, own::adjust),
        "tg.reset" => (1, ANY, |_, a| Ok(Command::Reset(a.0.collect()))),
        "tg.block" => (2, ANY, own::block),
        "tg.release" => (2, ANY, own::release),
        "tg.extend" => (5, ANY, own::extend),
        "tg.policy" => (0, 1, own::policy),
        "tg.setpolicy" => (2, 2, own::set_policy),
        "tg.record" => (4, ANY, own::record),
        "tg.series" | "tg.distinct" => (3, 4, own::series),
        "tg.top" => (5, 6, own::top),
        "tg.totals" => (0, 0, |_, _| Ok(Command::Totals)),
        "tg.lock" => (3, 9, own::lock),
        "tg.renew" => (3, 3, |_, mut a| Ok(Command::Renew { key: a.word()?, token: a.token()?, ttl: a.ttl()? })),
        "tg.unlock" => (2, 2, |_, mut a| Ok(Command::Unlock { key: a.word()?, token: a.token()? })),
        "tg.lockinfo" => (1, 1, |_, mut a| Ok(Command::LockInfo(a.word()?))),
        _ => return None,
    })
}

fn wrong_arity(name: &str) -> CommandError {
    CommandError::malformed(format!("ERR wrong number of arguments for '{name}' command"))
}

/// Redis shows at most 128 bytes of the name and of the arguments.
fn unknown(name: &[u8], args: &[Bytes]) -> CommandError {
    const SHOWN: usize = 128;
    let shown = |bytes: &[u8], most: usize| {
        String::from_utf8_lossy(bytes.get(..bytes.len().min(most)).unwrap_or(bytes)).into_owned()
    };
    let mut text = String::new();
    for arg in args {
        if text.len() >= SHOWN {
            break;
        }
        text.push_str(&format!("'{}' ", shown(arg, SHOWN.saturating_sub(text.len()))));
    }
    let name = shown(name, SHOWN);
    CommandError::malformed(format!("ERR unknown command '{name}', with args beginning with: {text}"))
}

struct Args(std::vec::IntoIter<Bytes>);

impl Args {
    fn word(&mut self) -> Result<Bytes, CommandError> {
        self.0.next().ok_or_else(CommandError::syntax)
    }

    fn integer(&mut self) -> Result<i64, CommandError> {
        parse_integer(&self.word()?).ok_or_else(CommandError::not_an_integer)
    }

    fn count(&mut self, field: &str) -> Result<u64, CommandError> {
        let word = self.word()?;
        parse_count(&word).ok_or_else(|| out_of_range(field, "an integer from 0 to 2^53 - 1"))
    }

    fn ttl(&mut self) -> Result<Duration, CommandError> {
        match self.count("ttl_ms")? {
            0 => Err(out_of_range("ttl_ms", "a positive number of milliseconds")),
            millis => Ok(Duration::from_millis(millis)),
        }
    }

    fn wait(&mut self, field: &str) -> Result<Duration, CommandError> {
        let span = Duration::from_millis(self.count(field)?);
        if span <= MAX_WAIT { Ok(span) } else { Err(out_of_range(field, &format!("at most {}", MAX_WAIT.as_millis()))) }
    }

    fn token(&mut self) -> Result<Bytes, CommandError> {
        let token = self.word()?;
        if token.is_empty() { Err(out_of_range("token", "at least one byte")) } else { Ok(token) }
    }

    fn limit(&mut self) -> Result<(Bytes, Limit), CommandError> {
        let key = self.word()?;
        let algorithm =
            Algorithm::from_name(&self.word()?).ok_or_else(|| out_of_range("algorithm", Algorithm::EXPECTED))?;
        let rate = Rate::new(self.count("quota")?, Duration::from_millis(self.count("window_ms")?))?;
        Ok((key, Limit::new(algorithm, rate)?))
    }

    /// The next option in upper case, or `None` at the end.
    fn option(&mut self) -> Option<String> {
        self.0.next().map(|word| String::from_utf8_lossy(&word).to_ascii_uppercase())
    }
}

fn out_of_range(field: &str, expected: &str) -> CommandError {
    CommandError::new(format!("ERR {field}: expected {expected}"))
}

/// `KEEPTTL`, or an option with a time: its unit, whether it counts from the epoch, and its number.
type Timed = Result<(TimeUnit, bool, Bytes), ()>;

fn set(_: &str, mut args: Args) -> Parsed {
    let (key, value) = (args.word()?, args.word()?);
    let (mut condition, mut expiry, mut get) = (None, None::<Timed>, false);
    while let Some(option) = args.option() {
        let time = |unit, absolute| Some((unit, absolute));
        let timed = match option.as_str() {
            "NX" if condition != Some(Existence::Present) => {
                condition = Some(Existence::Absent);
                continue;
            }
            "XX" if condition != Some(Existence::Absent) => {
                condition = Some(Existence::Present);
                continue;
            }
            "GET" => {
                get = true;
                continue;
            }
            "KEEPTTL" if matches!(expiry, None | Some(Err(()))) => {
                expiry = Some(Err(()));
                continue;
            }
            "EX" => time(TimeUnit::Seconds, false),
            "PX" => time(TimeUnit::Millis, false),
            "EXAT" => time(TimeUnit::Seconds, true),
            "PXAT" => time(TimeUnit::Millis, true),
            _ => None,
        };
        // The same option may come again, and the last one counts; two different ones exclude each other.
        let fits = |known: &Timed| known.as_ref().is_ok_and(|(unit, absolute, _)| timed == Some((*unit, *absolute)));
        match (timed, args.0.next()) {
            (Some((unit, absolute)), Some(word)) if expiry.as_ref().is_none_or(fits) => {
                expiry = Some(Ok((unit, absolute, word)));
            }
            _ => return Err(CommandError::syntax()),
        }
    }
    // The number is read after all the options, as Redis does: a syntax error comes first.
    let expiry = match expiry {
        None => SetExpiry::Never,
        Some(Err(())) => SetExpiry::Keep,
        Some(Ok((unit, absolute, word))) => {
            let value = parse_integer(&word).ok_or_else(CommandError::not_an_integer)?;
            if value <= 0 {
                return Err(CommandError::invalid_expire("set"));
            }
            SetExpiry::At(ExpireAt { value, unit, absolute })
        }
    };
    Ok(Command::Set { key, value, condition, expiry, get })
}

fn del_if_equal(_: &str, mut args: Args) -> Parsed {
    let key = args.word()?;
    match args.option().as_deref() {
        Some("IFEQ") => Ok(Command::DelIfEqual { key, value: args.word()? }),
        _ => Err(CommandError::syntax()),
    }
}

fn decr_by(_: &str, mut args: Args) -> Parsed {
    let (key, by) = (args.word()?, args.integer()?);
    let by = by.checked_neg().ok_or_else(|| CommandError::new("ERR decrement would overflow"))?;
    Ok(Command::IncrBy { key, by })
}

fn expire(name: &str, mut args: Args) -> Parsed {
    let (key, word) = (args.word()?, args.word()?);
    let unit = if name.starts_with('p') { TimeUnit::Millis } else { TimeUnit::Seconds };
    let mut condition = ExpireCondition::default();
    while let Some(option) = args.option() {
        match option.as_str() {
            "NX" => condition.nx = true,
            "XX" => condition.xx = true,
            "GT" => condition.gt = true,
            "LT" => condition.lt = true,
            "IFEQ" if name == "pexpire" && condition == ExpireCondition::default() && args.0.len() == 1 => {
                let value = args.word()?;
                let ttl = parse_integer(&word).ok_or_else(CommandError::not_an_integer)?;
                let ttl = u64::try_from(ttl).ok().filter(|&ttl| ttl > 0).map(Duration::from_millis);
                let ttl = ttl.ok_or_else(|| CommandError::invalid_expire(name))?;
                return Ok(Command::ExpireIfEqual { key, ttl, value });
            }
            _ => return Err(CommandError::new(format!("ERR Unsupported option {option}"))),
        }
    }
    let ExpireCondition { nx, xx, gt, lt } = condition;
    if nx && (xx || gt || lt) {
        return Err(CommandError::new("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if gt && lt {
        return Err(CommandError::new("ERR GT and LT options at the same time are not compatible"));
    }
    let value = parse_integer(&word).ok_or_else(CommandError::not_an_integer)?;
    Ok(Command::Expire { key, at: ExpireAt { value, unit, absolute: name.ends_with("at") }, condition })
}

fn h_set(name: &str, mut args: Args) -> Parsed {
    let key = args.word()?;
    let mut pairs = Vec::with_capacity(args.0.len().div_ceil(2));
    while let Some(field) = args.0.next() {
        // Redis finds the odd one out only when the command runs, so it does not discard a transaction.
        let odd = || CommandError::new(wrong_arity(name).text());
        pairs.push((field, args.0.next().ok_or_else(odd)?));
    }
    Ok(Command::HSet { key, pairs })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Argv {
        line.split_whitespace().map(|w| w.as_bytes().to_vec()).collect()
    }

    #[test]
    fn words_and_commands_are_the_same_thing() {
        for line in [
            "PING",
            "PING hello",
            "GET k",
            "SET k v",
            "SET k v NX PX 10",
            "SET k v XX GET KEEPTTL",
            "SET k v EXAT 99",
            "SETNX k v",
            "DEL a b",
            "DELEX k IFEQ v",
            "EXISTS a a",
            "INCRBY k -5",
            "TG.INCRX k",
            "expire k 10 XX GT",
            "pexpireat k -1",
            "PEXPIRE k 5 IFEQ v",
            "TTL k",
            "PTTL k",
            "PERSIST k",
            "HSET k f v g w",
            "HINCRBY k f 3",
            "HGET k f",
            "HMGET k f g",
            "HGETALL k",
            "HDEL k f",
            "TG.TAKE 2 a fixed-window 10 1000 b fixed-window 5 60000",
            "TG.PEEK 2 a fixed-window 10 1000",
            "TG.REFUND 1 60000 a fixed-window 10 1000",
            "TG.TAKE RECORD 2 a fixed-window 10 1000",
            "TG.TAKE RECORD PARTIAL 2 a fixed-window 10 1000",
            "TG.TAKE TOKEN t ESCALATE 0 3 1000 2 8000 60000 SHADOW 1 2,3 a concurrency 10 1000 b gcra 5 60000",
            "TG.SETTLE 5 3 60000 a gcra 10 1000",
            "TG.PENALTY 5 a gcra 10 1000",
            "TG.REWARD 5 a gcra 10 1000",
            "TG.RESET a b",
            "TG.BLOCK 500 a b",
            "TG.RELEASE t a b",
            "TG.RELEASE RECORD t a b",
            "TG.EXTEND t a concurrency 10 1000",
            "TG.POLICY",
            "TG.POLICY 7",
            "TG.SETPOLICY * {}",
            "TG.SETPOLICY 7 {}",
            "TG.PEEK RECORD 2 a fixed-window 10 1000",
            "TG.REFUND RECORD 1 60000 a fixed-window 10 1000",
            "PFADD k a b",
            "PFADD k",
            "PFCOUNT k l",
            "PFMERGE k l m",
            "TG.RECORD 7 p allowed 5 q degraded 1",
            "TG.SERIES 10000 0 60000",
            "TG.SERIES 10000 0 60000 p",
            "TG.TOP 5 * 10000 0 60000",
            "TG.TOP 5 denied 10000 0 60000 p",
            "TG.TOP 5 denied,degraded 10000 0 60000",
            "TG.DISTINCT 10000 0 60000 p",
            "TG.TOTALS",
            "TG.LOCK k t 10000 LABEL me WAIT 500 POLL 100",
            "TG.RENEW k t 5",
            "TG.UNLOCK k t",
            "TG.LOCKINFO k",
        ] {
            let command = Command::parse(argv(line)).unwrap_or_else(|e| panic!("{line}: {}", e.text()));
            assert_eq!(command.to_argv(), argv(line), "{line}");
        }
    }

    #[test]
    fn own_commands_refuse_bad_numbers_by_name() {
        for (line, text) in [
            ("TG.LOCK k t 0", "ERR ttl_ms: expected a positive number of milliseconds"),
            ("TG.LOCK k t 5 WAIT 300001", "ERR wait_ms: expected at most 300000"),
            ("TG.LOCK k t 1.5", "ERR ttl_ms: expected an integer from 0 to 2^53 - 1"),
            ("TG.RENEW k t -5", "ERR ttl_ms: expected an integer from 0 to 2^53 - 1"),
            ("TG.LOCK k t NaN", "ERR ttl_ms: expected an integer from 0 to 2^53 - 1"),
            ("TG.TAKE -1 k fixed-window 1 1", "ERR cost: expected an integer from 0 to 2^53 - 1"),
            ("TG.TAKE 1,2 k gcra 1 1", "ERR cost: expected one number, or one for each of the limits"),
            ("TG.TAKE 1, k gcra 1 1", "ERR cost: expected an integer from 0 to 2^53 - 1"),
            ("TG.TAKE SHADOW 1 1 k gcra 1 1", "ERR index: expected less than the number of limits"),
            ("TG.TAKE ESCALATE 0 0 1 1 1 1 1 k gcra 1 1", "ERR after: expected at least 1 refusal, got 0"),
            ("TG.TAKE PARTIAL 1,2 k gcra 1 1 j gcra 1 1", "ERR cost: expected one number with PARTIAL"),
            ("TG.TAKE TOKEN", "ERR wrong number of arguments for 'tg.take' command"),
            ("TG.BLOCK -1 k", "ERR ms: expected an integer from 0 to 2^53 - 1"),
            ("TG.BLOCK 31622400001 k", "ERR ms: expected at most 366 days"),
            ("TG.RELEASE RECORD t", "ERR syntax error"),
            ("TG.SETPOLICY x {}", "ERR expected: expected an integer from 0 to 2^53 - 1"),
            (
                "TG.TAKE 1 k leaky 1 1",
                "ERR algorithm: expected \"fixed-window\", \"fixed-window-from-first-hit\", \"sliding-window\", \"sliding-log\", \"token-bucket\", \"gcra\", \"concurrency\", or \"calendar-day\", \"-week\", \"-month\", \"-year\" with an offset such as \"calendar-day+05:30\"",
            ),
            ("TG.TAKE 1 k fixed-window 0 1", "ERR quota: expected 1 to 2^53 - 1, got 0"),
            ("TG.TAKE 1 k fixed-window 1 0", "ERR window: expected 1 ms to 366 days, got 0 ms"),
            ("TG.TAKE 1 k fixed-window 1", "ERR wrong number of arguments for 'tg.take' command"),
            ("TG.TAKE 1 k fixed-window 1 1 j", "ERR syntax error"),
            ("TG.REFUND 1 60000 a fixed-window 10 1000 x", "ERR syntax error"),
            ("TG.TAKE RECORD 1 k fixed-window 1", "ERR syntax error"),
            ("TG.RECORD 0 p gone 1", "ERR outcome: expected \"allowed\", \"denied\", \"degraded\" or \"shadowed\""),
            ("TG.RECORD 0 p allowed -1", "ERR count: expected an integer from 0 to 2^53 - 1"),
            ("TG.SERIES 10s 0 1", "ERR rollup_ms: expected an integer from 0 to 2^53 - 1"),
            ("PEXPIRE k 0 IFEQ v", "ERR invalid expire time in 'pexpire' command"),
            ("PEXPIRE k -9 IFEQ v", "ERR invalid expire time in 'pexpire' command"),
        ] {
            assert_eq!(Command::parse(argv(line)).unwrap_err().text(), text, "{line}");
        }
    }
}
