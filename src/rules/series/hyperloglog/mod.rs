//! HyperLogLog in Redis's own form: how many different elements were added, within 0.81 %, in at most 12 KB.
//!
//! The bytes are those of a Redis string made by `PFADD`: 16,384 registers of six bits, sparse (runs of equal registers)
//! while few are set and dense after that; MurmurHash64A; Ertl's improved raw estimate ("New cardinality estimation
//! algorithms for HyperLogLog sketches", 2017). So a sketch goes from a Redis to ours and back, and counts the same there.

mod estimate;
mod sparse;

use estimate::{estimate, murmur_hash_64a};
use sparse::{decode, encode};

/// Registers, 2^14: the standard error is 1.04 / sqrt(2^14).
const REGISTERS: usize = 1 << 14;
const INDEX_BITS: u32 = 14;
/// Bits of the hash that are left for the run of zeros.
const RUN_BITS: u32 = 64 - INDEX_BITS;

const HEADER: usize = 16;
const MAGIC: &[u8; 4] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const DENSE_BYTES: usize = REGISTERS * 6 / 8;
/// Redis's `hll-sparse-max-bytes`.
const MAX_SPARSE: usize = 3000;
/// The largest register that the sparse form holds.
const MAX_SPARSE_VALUE: u8 = 32;

/// The relative standard error of a count: 0.81 %.
pub const STANDARD_ERROR: f64 = 1.04 / 128.0;

/// Why some bytes are no sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotASketch {
    /// They do not begin as one.
    Foreign,
    /// They begin as one and go on differently.
    Corrupted,
}

/// A set of elements, of which only the number can be asked.
///
/// ```
/// use tollgate::HyperLogLog;
/// let mut sketch = HyperLogLog::new();
/// for client in ["a", "b", "a"] {
///     sketch.add(client.as_bytes());
/// }
/// assert_eq!(sketch.count(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HyperLogLog(Registers);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Registers {
    /// The registers that are set, in the order of their number.
    Sparse(Vec<(u16, u8)>),
    Dense(Vec<u8>),
}

impl Default for HyperLogLog {
    fn default() -> Self {
        Self::new()
    }
}

impl HyperLogLog {
    /// The empty set.
    pub const fn new() -> Self {
        Self(Registers::Sparse(Vec::new()))
    }

    /// Adds an element. True when the sketch changed by it: `PFADD`'s reply.
    pub fn add(&mut self, element: &[u8]) -> bool {
        let (register, run) = pattern(murmur_hash_64a(element));
        self.raise(register, run)
    }

    /// Sets a register to at least `value`.
    fn raise(&mut self, register: u16, value: u8) -> bool {
        match &mut self.0 {
            Registers::Dense(bytes) => raise_dense(bytes, register, value),
            Registers::Sparse(set) => {
                match set.binary_search_by_key(&register, |(register, _)| *register) {
                    Ok(at) => match set.get_mut(at) {
                        Some((_, old)) if *old < value => *old = value,
                        _ => return false,
                    },
                    Err(at) => set.insert(at, (register, value)),
                }
                // A run of equal neighbours takes less, so this is an upper bound, and close for scattered registers.
                if value > MAX_SPARSE_VALUE || set.len().saturating_mul(3) > MAX_SPARSE {
                    self.make_dense();
                }
                true
            }
        }
    }

    fn make_dense(&mut self) {
        if let Registers::Sparse(set) = &self.0 {
            let mut bytes = vec![0; DENSE_BYTES];
            for (register, value) in set {
                raise_dense(&mut bytes, *register, *value);
            }
            self.0 = Registers::Dense(bytes);
        }
    }

    /// Makes this the union of both.
    pub fn merge(&mut self, other: &Self) {
        other.each(|register, value| {
            self.raise(register, value);
        });
    }

    /// About how many different elements were added.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count, and `as` saturates")]
    pub fn count(&self) -> u64 {
        let mut histogram = [0u32; 64];
        let mut set = 0u32;
        self.each(|_, value| {
            set = set.saturating_add(1);
            if let Some(number) = histogram.get_mut(usize::from(value)) {
                *number = number.saturating_add(1);
            }
        });
        let zeros = u32::try_from(REGISTERS).unwrap_or(0).saturating_sub(set);
        estimate(&histogram, zeros).round() as u64
    }

    /// Calls `visit` with each register that is set, in the order of their number.
    fn each(&self, mut visit: impl FnMut(u16, u8)) {
        match &self.0 {
            Registers::Sparse(set) => set.iter().for_each(|(register, value)| visit(*register, *value)),
            Registers::Dense(bytes) => (0..REGISTERS).filter_map(|at| u16::try_from(at).ok()).for_each(|register| {
                match dense(bytes, register) {
                    0 => {}
                    value => visit(register, value),
                }
            }),
        }
    }

    /// The bytes that Redis keeps under a key.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (encoding, body) = match &self.0 {
            Registers::Sparse(set) => (SPARSE, encode(set)),
            Registers::Dense(bytes) => (DENSE, bytes.clone()),
        };
        // The count that Redis would cache is marked as out of date.
        let mut out = [&MAGIC[..], &[encoding, 0, 0, 0], &[0, 0, 0, 0, 0, 0, 0, 0x80]].concat();
        out.extend(body);
        out
    }

    /// Reads what [`to_bytes`](Self::to_bytes) or Redis wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotASketch> {
        let (header, body) = bytes.split_at_checked(HEADER).ok_or(NotASketch::Foreign)?;
        match header {
            [b'H', b'Y', b'L', b'L', DENSE, ..] if body.len() == DENSE_BYTES => {
                Ok(Self(Registers::Dense(body.to_vec())))
            }
            [b'H', b'Y', b'L', b'L', SPARSE, ..] => {
                decode(body).map(|set| Self(Registers::Sparse(set))).ok_or(NotASketch::Corrupted)
            }
            _ => Err(NotASketch::Foreign),
        }
    }
}

/// Where a register of six bits begins: its byte, and the bit in it.
const fn position(register: u16) -> (usize, u32) {
    let bit = (register as u32).saturating_mul(6);
    ((bit / 8) as usize, bit % 8)
}

fn dense(bytes: &[u8], register: u16) -> u8 {
    let (at, shift) = position(register);
    let byte = |at: usize| u16::from(bytes.get(at).copied().unwrap_or(0));
    let [low, _] = (((byte(at) | (byte(at.saturating_add(1)) << 8)) >> shift) & 63).to_le_bytes();
    low
}

fn raise_dense(bytes: &mut [u8], register: u16, value: u8) -> bool {
    if dense(bytes, register) >= value {
        return false;
    }
    let (at, shift) = position(register);
    let (mask, value) = ((63u16 << shift).to_le_bytes(), (u16::from(value) << shift).to_le_bytes());
    for ((byte, mask), value) in bytes.iter_mut().skip(at).zip(mask).zip(value) {
        *byte = (*byte & !mask) | value;
    }
    true
}

/// The register of a hash, and the length of the run of zeros after it, counted from one.
fn pattern(hash: u64) -> (u16, u8) {
    let [low, high, ..] = hash.to_le_bytes();
    let register = u16::from_le_bytes([low, high]) & (REGISTERS - 1) as u16;
    let run = ((hash >> INDEX_BITS) | (1 << RUN_BITS)).trailing_zeros().saturating_add(1);
    (register, u8::try_from(run).unwrap_or(u8::MAX))
}

impl serde::Serialize for HyperLogLog {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_bytes())
    }
}

impl<'de> serde::Deserialize<'de> for HyperLogLog {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        Self::from_bytes(bytes).map_err(|_| serde::de::Error::custom("not a HyperLogLog"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(elements: impl Iterator<Item = u64>) -> HyperLogLog {
        let mut sketch = HyperLogLog::new();
        elements.for_each(|element| {
            sketch.add(&element.to_le_bytes());
        });
        sketch
    }

    #[test]
    fn counts_are_within_the_error_from_one_to_a_million() {
        for size in [0, 1, 2, 10, 100, 1000, 10_000, 100_000, 1_000_000u64] {
            let count = of(0..size).count();
            let error = (count as f64 - size as f64) / (size.max(1) as f64);
            println!("{size} elements: {count}, error {:+.2} %", error * 100.0);
            // Four standard errors: one run in 16,000 of random elements would go beyond, and these are fixed.
            assert!(error.abs() <= 4.0 * STANDARD_ERROR, "{size}: {count}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_redis() {
        // Of a redis-server 7.0: PFADD h a b c, then GET h.
        let mut sketch = HyperLogLog::new();
        for element in ["a", "b", "c"] {
            assert!(sketch.add(element.as_bytes()));
        }
        assert_eq!(sketch.to_bytes().get(..4), Some(&b"HYLL"[..]));
        assert_eq!(sketch.count(), 3);
        assert_eq!(HyperLogLog::from_bytes(b"HYLL"), Err(NotASketch::Foreign));
        assert_eq!(HyperLogLog::from_bytes(&[b'x'; 40]), Err(NotASketch::Foreign));
        let cut = sketch.to_bytes();
        assert_eq!(HyperLogLog::from_bytes(&cut[..cut.len() - 1]), Err(NotASketch::Corrupted));
    }

    proptest! {
        #[test]
        fn it_comes_back_from_its_bytes(sizes in (0u64..3000, 0u64..50_000)) {
            for size in [sizes.0, sizes.1] {
                let sketch = of(0..size);
                prop_assert_eq!(HyperLogLog::from_bytes(&sketch.to_bytes()).unwrap(), sketch);
            }
        }

        #[test]
        fn a_union_is_the_sketch_of_all_elements(a in 0u64..2000, b in 0u64..30_000, from in 0u64..2000) {
            let (left, right) = (of(0..a), of(from..from + b));
            let mut union = left.clone();
            union.merge(&right);
            let mut other_way = right;
            other_way.merge(&left);
            let all = of((0..a).chain(from..from + b));
            prop_assert_eq!(union.count(), all.count());
            prop_assert_eq!(other_way.count(), all.count());
        }

        #[test]
        fn odd_bytes_are_errors_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = HyperLogLog::from_bytes(&bytes);
            let _ = HyperLogLog::from_bytes(&[b"HYLL\x01", &[0; 11][..], &bytes].concat()).map(|sketch| sketch.count());
            let _ = HyperLogLog::from_bytes(&[b"HYLL\x00", &[0; 11][..], &bytes].concat());
        }
    }
}
