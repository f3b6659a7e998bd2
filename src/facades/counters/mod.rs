//! Time-series counters over any store: the seed's third and fourth recipes.

mod read;
mod write;

use std::collections::BTreeMap;

use crate::rules::series::layout::{Id, Layout, Model};
use crate::rules::series::rollup::{Point, Rollups};
use crate::stores::store::Store;
use crate::values::error::Error;
use crate::values::time::{Duration, Timestamp};

/// The most points that one question gives.
pub const MAX_POINTS: usize = 10_000;

/// The most buckets, each over all of its virtual nodes, that are listed for a top.
const MAX_LISTED: usize = 20_000;

/// How far a writer's clock may be ahead of the store's reader's.
const CLOCK_SLACK: Duration = Duration::from_secs(5);

/// Commands of one batch. A store takes 1,000.
const BATCH: usize = 960;

/// One count to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Increment {
    /// What is counted.
    pub model: Model,
    /// Who or what it is counted of.
    pub id: Id,
    /// When it happened.
    pub at: Timestamp,
    /// How much is added, 1 to 2^53 - 1.
    pub count: u64,
}

/// An answer from which something may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Partial<T> {
    /// What there is.
    pub value: T,
    /// Why the rest is not there; empty when nothing is missing. With a failure, counts may be too low.
    pub failures: Vec<Error>,
}

impl<T> Partial<T> {
    /// Whether something is missing.
    pub const fn is_partial(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The value, if it is all there is.
    ///
    /// # Errors
    /// The first of the failures.
    pub fn complete(self) -> Result<T, Error> {
        self.failures.into_iter().next().map_or(Ok(self.value), Err)
    }
}

/// What [`Counters::get_range`] finds: each id with its points in the order of time. Buckets without a count are 0.
pub type Series = BTreeMap<Id, Vec<Point>>;

/// Counters in buckets of time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{Bounds, Counters, Id, MemoryStore, Model, Timestamp};
/// let now = Timestamp::from_millis(1_700_000_000_000);
/// let counters = Counters::new(MemoryStore::new(move || now, Bounds::default(), 7));
/// let (logins, user) = (Model::new(20), Id::from("user:1"));
/// counters.incr(now, logins, user.clone(), now, 2).await?;
/// let hour = Timestamp::from_millis(now.as_millis() - 3_600_000);
/// let sums = counters.get_sums(now, logins, &[user.clone()], hour, now, None).await?.complete()?;
/// assert_eq!(sums[&user], 2);
/// # Ok::<(), tollgate::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Counters<S> {
    store: S,
    layout: Layout,
    rollups: Rollups,
    tracks_distinct: bool,
}

impl<S: Store> Counters<S> {
    /// Counters in `store`, in the default [`Layout`] and the default [`Rollups`].
    pub fn new(store: S) -> Self {
        Self { store, layout: Layout::default(), rollups: Rollups::default(), tracks_distinct: false }
    }

    /// In another layout.
    #[must_use]
    pub fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// With other levels.
    #[must_use]
    pub fn with_rollups(self, rollups: Rollups) -> Self {
        Self { rollups, ..self }
    }

    /// With a sketch beside each bucket, so that [`distinct`](Self::distinct) can be asked.
    #[must_use]
    pub fn tracking_distinct(self) -> Self {
        Self { tracks_distinct: true, ..self }
    }

    /// The levels.
    pub const fn rollups(&self) -> &Rollups {
        &self.rollups
    }
}
