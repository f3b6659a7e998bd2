//! The key of a policy's state: `gate:<policy>:<algorithm>:{<partition key>}`.
//!
//! The partition key is its hash tag: all limits of one client live on one shard.

use crate::values::key::join_key;

/// The key of the state that the policy named `policy` keeps of `partition_key`, whose parts are joined already.
pub fn policy_key(policy: &str, algorithm: &str, partition_key: &[u8]) -> Vec<u8> {
    let mut key = join_key(&[b"gate", policy.as_bytes(), algorithm.as_bytes()]);
    key.extend_from_slice(b":{");
    key.extend_from_slice(partition_key);
    key.push(b'}');
    key
}

/// The policy and the partition key that a key is of; `None` when it is no policy's.
pub fn parse_policy_key(key: &[u8]) -> Option<(&str, &[u8])> {
    let rest = key.strip_prefix(b"gate:")?.strip_suffix(b"}")?;
    let open = rest.iter().position(|&byte| byte == b'{')?;
    let (head, tail) = rest.split_at_checked(open)?;
    let (policy, algorithm) = std::str::from_utf8(head).ok()?.strip_suffix(':')?.split_once(':')?;
    let is_plain = !policy.is_empty() && !algorithm.contains(':');
    is_plain.then_some((policy, tail.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_it_writes_and_nothing_else() {
        let key = policy_key("per-client", "fixed-window", b"ip:2001%3adb8%3a%3a/64");
        assert_eq!(key, b"gate:per-client:fixed-window:{ip:2001%3adb8%3a%3a/64}");
        assert_eq!(parse_policy_key(&key), Some(("per-client", &b"ip:2001%3adb8%3a%3a/64"[..])));
        for other in
            ["", "gate:", "gate:a:b:{c", "gate:a:{c}", "gate:a:b:c:{d}", "gate::b:{c}", "user:a:b:{c}", "gate:a:b{c}"]
        {
            assert_eq!(parse_policy_key(other.as_bytes()), None, "{other}");
        }
    }
}
