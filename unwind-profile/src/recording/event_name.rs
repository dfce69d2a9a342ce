//! Names for events whose recorder left none, as `perf` makes them up.

use unwind_perf::record::{Attr, AttrFlags};

const HARDWARE: [&str; 10] = [
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
    "bus-cycles",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "ref-cycles",
];

const SOFTWARE: [&str; 12] = [
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
];

/// Returns the name of an event, with the modes it is limited to.
pub(super) fn of(attr: &Attr) -> String {
    let (names, unknown): (&[&str], _) = match attr.kind {
        0 => (&HARDWARE, "unknown-hardware"),
        1 => (&SOFTWARE, "unknown-software"),
        4 => return format!("raw {:#x}{}", attr.config, modes(attr)),
        kind => return format!("unknown event PMU={kind} config={:#x}", attr.config),
    };
    let name = usize::try_from(attr.config).ok().and_then(|config| names.get(config));
    format!("{}{}", name.unwrap_or(&unknown), modes(attr))
}

/// The modes, after a colon, if there is a limit; how precise the event is; whether it counts in hosts
/// or guests, if that is not what goes without saying: beside other limits all of them, else hosts
/// alone.
fn modes(attr: &Attr) -> String {
    use AttrFlags as Flags;
    let is_set = |flag| attr.format.flags.contains(flag);
    let mut modes = String::new();
    let of_code =
        [(Flags::EXCLUDE_KERNEL, 'k'), (Flags::EXCLUDE_USER, 'u'), (Flags::EXCLUDE_HV, 'h')];
    if of_code.iter().any(|&(flag, _)| is_set(flag)) {
        modes.extend(of_code.iter().filter(|&&(flag, _)| !is_set(flag)).map(|&(_, mode)| mode));
    }
    // A field of two bits between the flags.
    let precise = attr.format.flags.bits() >> 15 & 3;
    modes.extend((0..precise).map(|_| 'p'));
    let has_limit = of_code.iter().any(|&(flag, _)| is_set(flag)) || precise != 0;
    let of_machine = [(Flags::EXCLUDE_HOST, 'H'), (Flags::EXCLUDE_GUEST, 'G')];
    if is_set(Flags::EXCLUDE_HOST) || is_set(Flags::EXCLUDE_GUEST) == has_limit {
        modes.extend(of_machine.iter().filter(|&&(flag, _)| !is_set(flag)).map(|&(_, mode)| mode));
    }
    if modes.is_empty() { modes } else { format!(":{modes}") }
}

#[cfg(test)]
mod tests {
    use unwind_perf::record::Endian;

    use super::*;

    #[test]
    fn k11_names_are_those_that_perf_prints() {
        for (kind, config, flags, name) in [
            (1, 0, 0, "cpu-clock:HG"),
            (1, 0, 1 << 4, "cpu-clock:kh"),
            (1, 0, 1 << 5, "cpu-clock:uh"),
            (1, 0, 1 << 6, "cpu-clock:ku"),
            (1, 0, 1 << 5 | 1 << 6, "cpu-clock:u"),
            (1, 0, 1 << 19, "cpu-clock:G"),
            (1, 0, 1 << 20, "cpu-clock"),
            (0, 0, 1 << 20, "cycles"),
            (1, 0, 1 << 15, "cpu-clock:p"),
            (1, 0, 1 << 15 | 1 << 20, "cpu-clock:pH"),
            (1, 0, 2 << 15, "cpu-clock:pp"),
            (1, 0, 1 << 5 | 2 << 15 | 1 << 20, "cpu-clock:uhppH"),
            (1, 0, 1 << 19 | 1 << 20, "cpu-clock"),
            (1, 0, 1 << 5 | 1 << 20, "cpu-clock:uhH"),
            (1, 0, 1 << 5 | 1 << 19, "cpu-clock:uhG"),
            (1, 2, 1 << 5, "page-faults:uh"),
            (1, 99, 1 << 20, "unknown-software"),
            (0, 4, 1 << 5, "branches:uh"),
            (4, 0x1c2, 1 << 5, "raw 0x1c2:uh"),
            (77, 5, 1 << 5, "unknown event PMU=77 config=0x5"),
        ] {
            let mut bytes = [0; 64];
            bytes[..4].copy_from_slice(&u32::to_le_bytes(kind));
            bytes[4] = 64;
            bytes[8..16].copy_from_slice(&u64::to_le_bytes(config));
            bytes[40..48].copy_from_slice(&u64::to_le_bytes(flags));
            assert_eq!(of(&Attr::parse(&bytes, Endian::Little).unwrap()), name);
        }
    }
}
