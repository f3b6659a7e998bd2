//! From words to commands and back. Errors are Redis's own, and found at the moment Redis finds them: an
//! unknown command or a wrong number of arguments when it is queued, the rest when it runs.

use crate::engine::command::{
    Bytes, Command, Existence, ExpireAt, ExpireCondition, LockRequest, MAX_WAIT, SetExpiry, TimeUnit,
};
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
        "tg.take" => (5, ANY, |_, a| take(a).map(|(cost, limits)| Command::Take { cost, limits })),
        "tg.peek" => (5, ANY, |_, a| take(a).map(|(cost, limits)| Command::Peek { cost, limits })),
        "tg.refund" => (6, 6, refund),
        "tg.lock" => (3, 9, lock),
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
            Algorithm::from_name(&self.word()?).ok_or_else(|| out_of_range("algorithm", "\"fixed-window\""))?;
        let rate = Rate::new(self.count("quota")?, Duration::from_millis(self.count("window_ms")?))?;
        Ok((key, Limit { algorithm, rate }))
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

fn take(mut args: Args) -> Result<(u64, Vec<(Bytes, Limit)>), CommandError> {
    let cost = args.count("cost")?;
    let mut limits = Vec::with_capacity(args.0.len().div_ceil(4));
    while args.0.len() > 0 {
        limits.push(args.limit()?);
    }
    Ok((cost, limits))
}

fn refund(_: &str, mut args: Args) -> Parsed {
    let (amount, reset_at_ms) = (args.count("amount")?, args.count("reset_at_ms")?);
    let (key, limit) = args.limit()?;
    Ok(Command::Refund { amount, reset_at_ms, key, limit })
}

fn lock(_: &str, mut args: Args) -> Parsed {
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
            Self::Take { cost, limits } | Self::Peek { cost, limits } => {
                let is_take = matches!(self, Self::Take { .. });
                words.text(if is_take { "TG.TAKE" } else { "TG.PEEK" }).number(cost);
                limits.iter().fold(&mut words, |words, (key, limit)| words.limit(key, limit))
            }
            Self::Refund { amount, reset_at_ms, key, limit } => {
                words.text("TG.REFUND").number(amount).number(reset_at_ms).limit(key, limit)
            }
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

    fn limit(&mut self, key: &Bytes, limit: &Limit) -> &mut Self {
        let Limit { algorithm, rate } = limit;
        self.all([key]).text(algorithm.name()).number(rate.quota).number(rate.window.as_millis())
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
            ("TG.TAKE 1 k leaky 1 1", "ERR algorithm: expected \"fixed-window\""),
            ("TG.TAKE 1 k fixed-window 0 1", "ERR quota: expected 1 to 2^53 - 1, got 0"),
            ("TG.TAKE 1 k fixed-window 1 0", "ERR window: expected 1 ms to 366 days, got 0 ms"),
            ("TG.TAKE 1 k fixed-window 1", "ERR wrong number of arguments for 'tg.take' command"),
            ("TG.TAKE 1 k fixed-window 1 1 j", "ERR syntax error"),
            ("PEXPIRE k 0 IFEQ v", "ERR invalid expire time in 'pexpire' command"),
            ("PEXPIRE k -9 IFEQ v", "ERR invalid expire time in 'pexpire' command"),
        ] {
            assert_eq!(Command::parse(argv(line)).unwrap_err().text(), text, "{line}");
        }
    }
}
