//! The seed's two limiters. `docs/seed.md` has the Python they come from.

use crate::engine::command::{Command, Existence, ExpireAt, ExpireCondition, SetExpiry, TimeUnit};
use crate::engine::reply::Reply;
use crate::stores::store::Store;
use crate::values::error::{Error, ErrorKind};
use crate::values::key::join_key;
use crate::values::time::Timestamp;

/// Seconds that a counter lives, as in the seed.
const LIFE: ExpireAt = ExpireAt { value: 60, unit: TimeUnit::Seconds, absolute: false };

/// How the memcached limiter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemcacheMode {
    /// Counts right: exactly `limit` calls a minute answer false, and no call can fall between two others.
    #[default]
    Exact,
    /// The seed to the letter. The first call stores 0 and is not counted, so `limit + 1` calls answer false; and a
    /// counter that expires between `add` and `incr` is an error.
    Classic,
}

/// Counts one call of `user_id` in the minute of `now` and says whether it is over `limit`: the seed's
/// `incr_and_check_limit`.
///
/// The key is `{user_id}:{minute}`, and `INCR` and `EXPIRE 60` go in one batch. Exactly `limit` calls a minute
/// answer false. On a store that is not atomic the count is a lower bound.
///
/// # Errors
/// Those of the store.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{Bounds, MemoryStore, Timestamp, incr_and_check_limit};
/// let now = Timestamp::from_millis(1_700_000_000_000);
/// let store = MemoryStore::new(move || now, Bounds::default(), 7);
/// assert!(!incr_and_check_limit(&store, now, b"user", 1).await?);
/// assert!(incr_and_check_limit(&store, now, b"user", 1).await?);
/// # Ok::<(), tollgate::Error>(()) }).unwrap();
/// ```
pub async fn incr_and_check_limit(
    store: &impl Store,
    now: Timestamp,
    user_id: &[u8],
    limit: u64,
) -> Result<bool, Error> {
    let key = minute_key(user_id, now);
    let expire = Command::Expire { key: key.clone(), at: LIFE, condition: ExpireCondition::default() };
    let [count, expired] = exec(store, [Command::IncrBy { key, by: 1 }, expire]).await?;
    expired.into_integer()?;
    Ok(count.into_count()? > limit)
}

/// The memcached form of [`incr_and_check_limit`], by `add` and `incr`.
///
/// # Errors
/// Those of the store; in [`MemcacheMode::Classic`] also [`ErrorKind::CounterExpired`].
pub async fn incr_and_check_limit_memcache(
    store: &impl Store,
    now: Timestamp,
    user_id: &[u8],
    limit: u64,
    mode: MemcacheMode,
) -> Result<bool, Error> {
    let key = minute_key(user_id, now);
    let add = Command::Set {
        key: key.clone(),
        value: b"0".to_vec(),
        condition: Some(Existence::Absent),
        expiry: SetExpiry::At(LIFE),
        get: false,
    };
    let count = match mode {
        MemcacheMode::Exact => {
            let [added, count] = exec(store, [add, Command::IncrBy { key, by: 1 }]).await?;
            is_added(added)?;
            count.into_count()?
        }
        MemcacheMode::Classic => {
            let [added] = exec(store, [add]).await?;
            if is_added(added)? {
                return Ok(false);
            }
            let [count] = exec(store, [Command::IncrExisting(key)]).await?;
            if count == Reply::Nil {
                let message = "the counter expired between the seed's add and its incr";
                return Err(Error::new(ErrorKind::CounterExpired, message));
            }
            count.into_count()?
        }
    };
    Ok(count > limit)
}

fn is_added(reply: Reply) -> Result<bool, Error> {
    match reply {
        Reply::Nil => Ok(false),
        Reply::Status(_) => Ok(true),
        other => Err(other.unexpected("OK or nil")),
    }
}

fn minute_key(user_id: &[u8], now: Timestamp) -> Vec<u8> {
    let minute = now.as_millis().checked_div(60_000).unwrap_or(0).to_string();
    join_key(&[user_id, minute.as_bytes()])
}

/// Runs a batch of known length.
pub(crate) async fn exec<const N: usize>(store: &impl Store, batch: [Command; N]) -> Result<[Reply; N], Error> {
    let replies = store.exec(&batch).await?;
    <[Reply; N]>::try_from(replies)
        .map_err(|replies| Error::new(ErrorKind::Protocol, format!("expected {N} replies, got {}", replies.len())))
}
