//! Values: the words everything else is said in. This layer uses nothing of the crate but itself.

pub mod error;
pub mod key;
pub mod number;
pub mod time;
pub mod units;
