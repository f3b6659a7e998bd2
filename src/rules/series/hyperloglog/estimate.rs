//! From an element to its hash, and from registers to a number.

use super::RUN_BITS;

/// Ertl's estimate of the cardinality from how many registers have which value.
pub(super) fn estimate(histogram: &[u32; 64], zeros: u32) -> f64 {
    const ALPHA: f64 = 0.721_347_520_444_481_7;
    let registers = 16_384.0;
    let number = |value: u32| f64::from(histogram.get(value as usize).copied().unwrap_or(0));
    let mut sum = registers * tau((registers - number(RUN_BITS + 1)) / registers);
    for value in (1..=RUN_BITS).rev() {
        sum += number(value);
        sum *= 0.5;
    }
    sum += registers * sigma(f64::from(zeros) / registers);
    ALPHA * registers * registers / sum
}

fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if before == z {
            return z / 3.0;
        }
    }
}

/// Austin Appleby's MurmurHash64A with Redis's seed.
pub(super) fn murmur_hash_64a(bytes: &[u8]) -> u64 {
    const SEED: u64 = 0xadc8_3b19;
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(M);
    let (chunks, tail) = bytes.as_chunks::<8>();
    for chunk in chunks {
        let mut k = u64::from_le_bytes(*chunk).wrapping_mul(M);
        k ^= k >> R;
        hash = (hash ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !tail.is_empty() {
        let last = tail.iter().rev().fold(0, |sum: u64, byte| (sum << 8) | u64::from(*byte));
        hash = (hash ^ last).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> R)
}
