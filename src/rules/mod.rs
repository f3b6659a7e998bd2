//! Rules: one pure algorithm a file. A rule is told the time and the state, and says what comes next.

pub mod limit;
pub mod series;
pub mod wait_queue;
