//! The sparse form of the registers.

use super::REGISTERS;

/// The sparse form: `00xxxxxx` is a run of up to 64 zeros, `01xxxxxx xxxxxxxx` of up to 16,384, and `1vvvvvrr` up to four
/// registers of the value `v + 1`.
pub(super) fn encode(set: &[(u16, u8)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut next = 0u16;
    let mut rest = set;
    while let Some((&(register, value), _)) = rest.split_first() {
        push_zeros(&mut out, register.saturating_sub(next));
        let follows = |(nth, (at, same)): (usize, &(u16, u8))| {
            usize::from(*at) == usize::from(register).saturating_add(nth) && *same == value
        };
        let run = rest.iter().enumerate().take(4).take_while(|entry| follows(*entry)).count();
        let length = u16::try_from(run).unwrap_or(1);
        out.push(0x80 | (value.saturating_sub(1) << 2) | u8::try_from(length.saturating_sub(1)).unwrap_or(0));
        next = register.saturating_add(length);
        rest = rest.get(run..).unwrap_or_default();
    }
    push_zeros(&mut out, u16::try_from(REGISTERS).unwrap_or(0).saturating_sub(next));
    out
}

fn push_zeros(out: &mut Vec<u8>, length: u16) {
    let Some(length) = length.checked_sub(1) else { return };
    let [high, low] = length.to_be_bytes();
    if length < 64 { out.push(low) } else { out.extend([0x40 | high, low]) }
}

/// Reads the sparse form; `None` when it is broken or does not have all of the registers.
pub(super) fn decode(mut body: &[u8]) -> Option<Vec<(u16, u8)>> {
    let (mut set, mut register) = (Vec::new(), 0u16);
    while let Some((&op, tail)) = body.split_first() {
        body = tail;
        let (length, value) = match op {
            0..=0x3f => (u16::from(op), 0),
            0x40..=0x7f => {
                let (low, tail) = body.split_first()?;
                body = tail;
                (u16::from_be_bytes([op & 0x3f, *low]), 0)
            }
            _ => (u16::from(op & 3), ((op >> 2) & 31).saturating_add(1)),
        };
        let end = register.checked_add(length)?.checked_add(1)?;
        if value > 0 {
            set.extend((register..end).map(|register| (register, value)));
        }
        register = end;
        if usize::from(register) > REGISTERS {
            return None;
        }
    }
    (usize::from(register) == REGISTERS).then_some(set)
}
