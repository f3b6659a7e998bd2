//! Random choices that can be made again from their seed.

use std::hash::{BuildHasher, RandomState};

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed in `TOLLGATE_SEED`, or a new one. A failing test prints it.
    pub fn seed() -> u64 {
        match std::env::var("TOLLGATE_SEED") {
            Ok(text) => text.parse().expect("TOLLGATE_SEED is a number"),
            Err(_) => RandomState::new().hash_one(0),
        }
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
