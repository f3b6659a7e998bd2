//! Client addresses as partition keys.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The network that `text` belongs to, in its shortest form: `203.0.113.7`, `2001:db8:1:2::/64`.
///
/// An IPv4 address inside an IPv6 one (`::ffff:203.0.113.7`) is unwrapped first. One subscriber of an IPv6
/// provider has at least a /64, so a whole IPv6 address as key would be a new key for each request.
/// `None` when `text` is not an address.
///
/// ```
/// use tollgate::client_network;
/// assert_eq!(client_network("2001:db8:1:2:3:4:5:6", 32, 64).as_deref(), Some("2001:db8:1:2::/64"));
/// assert_eq!(client_network("::ffff:203.0.113.7", 32, 64).as_deref(), Some("203.0.113.7"));
/// ```
pub fn client_network(text: &str, ipv4_prefix: u8, ipv6_prefix: u8) -> Option<String> {
    Some(match text.trim().parse::<IpAddr>().ok()?.to_canonical() {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(ipv4_prefix.into())).unwrap_or(0);
            with_prefix(Ipv4Addr::from_bits(address.to_bits() & mask).into(), ipv4_prefix, 32)
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(ipv6_prefix.into())).unwrap_or(0);
            with_prefix(Ipv6Addr::from_bits(address.to_bits() & mask).into(), ipv6_prefix, 128)
        }
    })
}

fn with_prefix(address: IpAddr, prefix: u8, whole: u8) -> String {
    if prefix >= whole { address.to_string() } else { format!("{address}/{prefix}") }
}

#[cfg(test)]
mod tests {
    use super::client_network;

    #[test]
    fn one_subscriber_is_one_key() {
        for (text, key) in [
            ("198.18.0.1", Some("198.18.0.1")),
            ("2001:db8:1:2::1", Some("2001:db8:1:2::/64")),
            ("2001:DB8:1:2:ffff::2", Some("2001:db8:1:2::/64")),
            ("::ffff:198.18.0.1", Some("198.18.0.1")),
            ("::ffff:c612:1", Some("198.18.0.1")),
            (" 198.18.0.1 ", Some("198.18.0.1")),
            ("198.18.0.1:52241", None),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(client_network(text, 32, 64).as_deref(), key, "{text}");
        }
        assert_eq!(client_network("198.18.77.1", 16, 64).as_deref(), Some("198.18.0.0/16"));
        assert_eq!(client_network("2001:db8::1", 32, 128).as_deref(), Some("2001:db8::1"));
        assert_eq!(client_network("198.18.77.1", 0, 64).as_deref(), Some("0.0.0.0/0"));
    }
}
