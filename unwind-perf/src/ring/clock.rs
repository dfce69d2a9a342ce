//! From cycles of the CPU to times of an event.

/// How cycles of the CPU (`rdtsc`) become times of an event, as the first page of its ring
/// says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Clock {
    /// What the kernel says of the other fields.
    pub(super) capabilities: u64,
    /// By how many bits the product is shifted.
    pub shift: u16,
    /// By what cycles are multiplied.
    pub mult: u32,
    /// What is added for times since the event was enabled, in nanoseconds.
    pub offset: u64,
    /// What is added for times of the clock of records, in nanoseconds.
    pub zero: u64,
    /// Cycles at the last update, where the counter is shorter than 64 bits.
    pub cycles: u64,
    /// The bits of such a counter.
    pub mask: u64,
}

/// The conversion is there (`cap_user_time`), also for the clock of records
/// (`cap_user_time_zero`), and the counter is short (`cap_user_time_short`).
const USER_TIME: u64 = 1 << 3;
const USER_TIME_ZERO: u64 = 1 << 4;
const USER_TIME_SHORT: u64 = 1 << 5;

impl Clock {
    pub(super) const fn is_known(&self) -> bool {
        self.capabilities & USER_TIME != 0 && self.shift < 64
    }

    /// The time in nanoseconds that records at a count of cycles have. `None` if the kernel
    /// does not relate the two.
    #[must_use]
    pub fn time(&self, cycles: u64) -> Option<u64> {
        if self.capabilities & USER_TIME_ZERO == 0 {
            return None;
        }
        let cycles = if self.capabilities & USER_TIME_SHORT == 0 {
            cycles
        } else {
            self.cycles.wrapping_add(cycles.wrapping_sub(self.cycles) & self.mask)
        };
        let mult = u64::from(self.mult);
        let (whole, part) = (cycles >> self.shift, cycles & !(u64::MAX << self.shift));
        let nanoseconds = whole.wrapping_mul(mult);
        let rest = part.wrapping_mul(mult) >> self.shift;
        Some(self.zero.wrapping_add(nanoseconds).wrapping_add(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Clock = Clock {
        capabilities: USER_TIME | USER_TIME_ZERO,
        shift: 10,
        mult: 512,
        offset: 0,
        zero: 1_000,
        cycles: 0,
        mask: 0,
    };

    #[test]
    fn a_time_is_the_cycles_scaled_and_moved() {
        assert_eq!(CLOCK.time(0), Some(1_000));
        assert_eq!(CLOCK.time(4_000), Some(3_000));
        assert_eq!(Clock { capabilities: USER_TIME, ..CLOCK }.time(0), None);
    }

    #[test]
    fn a_short_counter_continues_from_the_last_update() {
        let capabilities = CLOCK.capabilities | USER_TIME_SHORT;
        let clock = Clock { capabilities, cycles: 0x1_fff0, mask: 0xffff, ..CLOCK };
        assert_eq!(clock.time(0x10), CLOCK.time(0x2_0010));
        assert_eq!(clock.time(0xfff8), CLOCK.time(0x1_fff8));
    }

    #[test]
    fn no_shift_is_too_wide() {
        assert!(!Clock { shift: 64, ..CLOCK }.is_known());
        assert!(Clock { shift: 63, ..CLOCK }.time(u64::MAX).is_some());
    }
}
