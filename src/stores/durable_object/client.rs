//! The side that calls: which command goes to which shard, and how the replies come together again.

use std::future::Future;

use futures_util::future::join_all;

use crate::engine::command::Command;
use crate::engine::reply::Reply;
use crate::engine::resp::{decode_replies, encode_batch};
use crate::stores::store::{Capabilities, Store};
use crate::values::error::{Error, ErrorKind};
use crate::values::key::shard_of;
use crate::values::time::Duration;

/// A way to reach the shards.
pub trait Shards {
    /// How many there are.
    fn count(&self) -> u16;

    /// Sends an encoded batch to a shard and brings its encoded replies. It must end within a bounded time.
    fn call(&self, shard: u16, batch: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, Error>>;
}

/// The part of a batch that goes to one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardBatch {
    /// The shard.
    pub shard: u16,
    /// Its commands, encoded.
    pub body: Vec<u8>,
    /// Where in the whole batch the replies belong.
    pub positions: Vec<usize>,
}

/// The one shard of all keys of `commands`, or shard 0 where there are none.
///
/// # Errors
/// [`ErrorKind::CrossShard`] when they live on different shards, in the words of Redis Cluster.
pub fn common_shard(commands: &[Command], shards: u16) -> Result<u16, Error> {
    let mut of_keys = commands.iter().flat_map(Command::keys).map(|key| shard_of(key, shards));
    let first = of_keys.next().unwrap_or(0);
    if of_keys.all(|shard| shard == first) {
        return Ok(first);
    }
    Err(Error::new(ErrorKind::CrossShard, "CROSSSLOT Keys in request don't hash to the same slot"))
}

/// Deals a pipeline out to the shards. A single command whose keys live on different shards is answered with
/// `CROSSSLOT` in its place; the replies to be filled in are nil.
pub fn deal(commands: &[Command], shards: u16) -> (Vec<ShardBatch>, Vec<Reply>) {
    let mut parts: Vec<(u16, Vec<&Command>, Vec<usize>)> = Vec::new();
    let mut replies = vec![Reply::Nil; commands.len()];
    for (position, (command, reply)) in commands.iter().zip(&mut replies).enumerate() {
        match common_shard(std::slice::from_ref(command), shards) {
            Err(error) => *reply = Reply::Error(crate::engine::reply::CommandError::new(error.message())),
            Ok(shard) => match parts.iter_mut().find(|(known, ..)| *known == shard) {
                Some((_, batch, positions)) => {
                    batch.push(command);
                    positions.push(position);
                }
                None => parts.push((shard, vec![command], vec![position])),
            },
        }
    }
    let encode = |(shard, batch, positions): (u16, Vec<&Command>, Vec<usize>)| ShardBatch {
        shard,
        body: encode_commands(batch.into_iter()),
        positions,
    };
    (parts.into_iter().map(encode).collect(), replies)
}

/// Writes commands as a shard reads them.
pub fn encode_commands<'a>(commands: impl Iterator<Item = &'a Command>) -> Vec<u8> {
    let batch: Vec<_> = commands.map(Command::to_argv).collect();
    encode_batch(batch.iter())
}

/// Puts the replies of one shard in their places.
pub fn collect(replies: &mut [Reply], positions: &[usize], answer: &[u8]) -> Result<(), Error> {
    let answers = decode_replies(answer)?;
    if answers.len() != positions.len() {
        let message = format!("expected {} replies, got {}", positions.len(), answers.len());
        return Err(Error::new(ErrorKind::Protocol, message));
    }
    for (position, answer) in positions.iter().zip(answers) {
        if let Some(reply) = replies.get_mut(*position) {
            *reply = answer;
        }
    }
    Ok(())
}

/// Exact and linearizable per key. A batch is atomic, so its keys must live on one shard: a hash tag
/// (`{user:1}:a`, `{user:1}:b`) puts them there.
#[derive(Clone, Debug)]
pub struct DurableObjectStore<S> {
    shards: S,
}

impl<S: Shards> DurableObjectStore<S> {
    /// A store over `shards`.
    pub const fn new(shards: S) -> Self {
        Self { shards }
    }
}

impl<S: Shards> Store for DurableObjectStore<S> {
    async fn exec(&self, batch: &[Command]) -> Result<Vec<Reply>, Error> {
        let shard = common_shard(batch, self.shards.count())?;
        let body = encode_commands(batch.iter());
        let mut replies = vec![Reply::Nil; batch.len()];
        let positions: Vec<usize> = (0..batch.len()).collect();
        collect(&mut replies, &positions, &self.shards.call(shard, body).await?)?;
        Ok(replies)
    }

    async fn pipeline(&self, commands: &[Command]) -> Vec<Result<Reply, Error>> {
        let (batches, mut replies) = deal(commands, self.shards.count());
        let calls = batches.iter().map(|batch| self.shards.call(batch.shard, batch.body.clone()));
        let answers = join_all(calls).await;
        let mut failures = Vec::new();
        for (batch, answer) in batches.iter().zip(answers) {
            if let Err(error) = answer.and_then(|bytes| collect(&mut replies, &batch.positions, &bytes)) {
                failures.extend(batch.positions.iter().map(|position| (*position, error.clone())));
            }
        }
        let mut results: Vec<Result<Reply, Error>> = replies.into_iter().map(Ok).collect();
        for (position, error) in failures {
            if let Some(result) = results.get_mut(position) {
                *result = Err(error);
            }
        }
        results
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "Durable Objects",
            atomic: true,
            durable: true,
            staleness: None,
            smallest_ttl: Duration::from_millis(1),
            fair_waiting: true,
        }
    }
}
