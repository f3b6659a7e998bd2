//! Keys: joining parts so that no two identities meet, and which shard a key lives on.

use sha2::{Digest, Sha256};

/// Longest part that is kept readable, in bytes. A longer one becomes its SHA-256: cut short, two long
/// identities could meet.
const MAX_PLAIN_PART: usize = 256;

/// Redis Cluster's number of hash slots.
const SLOTS: u32 = 16_384;

/// Joins `parts` with `:` so that different lists of parts never give the same key.
///
/// A part made of ordinary characters is kept as it is, so the seed's key stays the seed's key. In other
/// parts `:`, `%`, `{` and `}` are percent-encoded (braces because they choose the shard), and a part of
/// more than 256 bytes becomes `%#` and its SHA-256 in hex.
///
/// ```
/// use tollgate::join_key;
/// assert_eq!(join_key(&[b"user", b"28333333"]), b"user:28333333");
/// assert_ne!(join_key(&[b"a:b", b"c"]), join_key(&[b"a", b"b:c"]));
/// ```
pub fn join_key(parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(parts.iter().map(|p| p.len().saturating_add(1)).sum());
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            key.push(b':');
        }
        push_part(&mut key, part);
    }
    key
}

fn push_part(key: &mut Vec<u8>, part: &[u8]) {
    if part.len() > MAX_PLAIN_PART {
        key.extend_from_slice(b"%#");
        return push_hex(key, &Sha256::digest(part));
    }
    for &byte in part {
        match byte {
            b':' | b'%' | b'{' | b'}' => {
                key.push(b'%');
                push_hex(key, &[byte]);
            }
            _ => key.push(byte),
        }
    }
}

fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(hex(bytes).as_bytes());
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Redis Cluster's hash slot of a key, 0 to 16383: CRC16 of the text between the first `{` and the next
/// `}` when there is any, else of the whole key (Redis Cluster specification, "Hash tags").
pub fn hash_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) & 0x3fff
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&b| b == b'{') else { return key };
    let inner = key.get(open.saturating_add(1)..).unwrap_or_default();
    match inner.iter().position(|&b| b == b'}') {
        Some(length) if length > 0 => inner.get(..length).unwrap_or(key),
        _ => key,
    }
}

/// The shard, 0 to `shards - 1`, that a key lives on. Slots are dealt out in equal runs, as a Redis
/// Cluster of `shards` nodes would.
pub fn shard_of(key: &[u8], shards: u16) -> u16 {
    let slot = u32::from(hash_slot(key));
    let shard = slot.saturating_mul(u32::from(shards)).checked_div(SLOTS).unwrap_or(0);
    u16::try_from(shard).unwrap_or(0)
}

/// CRC16-CCITT (XModem), the one of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(
            crc ^ (u16::from(byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // The check value of CRC16/XMODEM, and answers of `CLUSTER KEYSLOT` from the specification's examples.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(hash_slot(b"foo"), 12_182);
        assert_eq!(hash_slot(b"{user1000}.following"), hash_slot(b"{user1000}.followers"));
        assert_eq!(hash_slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") & 0x3fff);
        assert_eq!(hash_slot(b"foo{{bar}}zap"), crc16(b"{bar") & 0x3fff);
        assert_eq!(hash_slot(b"foo{bar}{zap}"), hash_slot(b"bar"));
    }

    #[test]
    fn the_plain_case_is_the_seeds_key_and_colons_cannot_collide() {
        assert_eq!(join_key(&[b"user", b"28333333"]), b"user:28333333");
        assert_eq!(join_key(&[b"a:b", b"c"]), b"a%3ab:c");
        assert_eq!(join_key(&[b"a", b"b:c"]), b"a:b%3ac");
    }

    #[test]
    fn long_parts_are_hashed_whole_not_cut() {
        let long = |last| [vec![b'x'; 4000], vec![last]].concat();
        assert_ne!(join_key(&[&long(b'a')]), join_key(&[&long(b'b')]));
        assert_eq!(join_key(&[&long(b'a')]).len(), 66);
    }

    proptest! {
        #[test]
        fn different_parts_make_different_keys(
            a in prop::collection::vec(prop::collection::vec(prop::sample::select(b":%{}a3".to_vec()), 0..4), 1..4),
            b in prop::collection::vec(prop::collection::vec(prop::sample::select(b":%{}a3".to_vec()), 0..4), 1..4),
        ) {
            let key = |parts: &Vec<Vec<u8>>| join_key(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert_eq!(key(&a) == key(&b), a == b);
        }

        #[test]
        fn every_key_has_a_shard(key in prop::collection::vec(any::<u8>(), 0..40), shards in 1u16..2000) {
            prop_assert!(shard_of(&key, shards) < shards);
        }
    }
}
