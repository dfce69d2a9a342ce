//! Addresses of the target, and the pc of a frame.

use core::fmt;

/// A linear address in the target's address space.
///
/// It may hold any value: nothing about it is checked, and it has no
/// operators, only methods that say what happens on overflow.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct VirtAddr(u64);

impl VirtAddr {
    /// An address with this value.
    #[inline]
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The value.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `bytes` higher, or `None` past the end of the address space.
    #[inline]
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// The address `bytes` lower, or `None` below zero.
    #[inline]
    #[must_use]
    pub const fn checked_sub(self, bytes: u64) -> Option<Self> {
        match self.0.checked_sub(bytes) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// The address `bytes` higher, wrapping at the end of the address space.
    #[inline]
    #[must_use]
    pub const fn wrapping_add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The address `bytes` lower, wrapping at zero.
    #[inline]
    #[must_use]
    pub const fn wrapping_sub(self, bytes: u64) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }

    /// How many bytes this address lies above `base`, or `None` if it lies
    /// below.
    #[inline]
    #[must_use]
    pub const fn checked_offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::LowerHex for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// The pc of one frame, with how it was obtained.
///
/// The distinction matters: a return address points after its call, which may
/// already be the next function. So a table is asked one byte earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FramePc {
    /// The interrupted pc itself: the sampled frame, or one that a signal
    /// interrupted.
    Exact(VirtAddr),
    /// An address taken from a saved return-address slot.
    Return(VirtAddr),
}

impl FramePc {
    /// The address as the target has it.
    #[inline]
    #[must_use]
    pub const fn addr(self) -> VirtAddr {
        match self {
            Self::Exact(pc) | Self::Return(pc) => pc,
        }
    }

    /// The address to ask a table for: of the interrupted instruction, or of
    /// the last byte of the call.
    #[inline]
    #[must_use]
    pub const fn lookup_addr(self) -> VirtAddr {
        match self {
            Self::Exact(pc) => pc,
            Self::Return(pc) => VirtAddr(pc.0.wrapping_sub(1)),
        }
    }

    /// Whether this is the interrupted pc itself.
    #[inline]
    #[must_use]
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::Exact(_))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn a_return_address_is_looked_up_one_byte_back_and_an_exact_pc_as_it_is() {
        let pc = VirtAddr::new(0x1000);
        assert_eq!(FramePc::Return(pc).lookup_addr(), VirtAddr::new(0xfff));
        assert_eq!(FramePc::Exact(pc).lookup_addr(), pc);
        assert_eq!(FramePc::Return(pc).addr(), pc);
    }

    #[test]
    fn arithmetic_says_when_it_leaves_the_address_space() {
        let top = VirtAddr::new(u64::MAX);
        assert_eq!(top.checked_add(1), None);
        assert_eq!(top.wrapping_add(1), VirtAddr::new(0));
        assert_eq!(VirtAddr::new(0).wrapping_sub(1), top);
        assert_eq!(VirtAddr::new(0).checked_sub(1), None);
        assert_eq!(VirtAddr::new(7).checked_offset_from(VirtAddr::new(8)), None);
    }

    #[test]
    fn addresses_print_in_hexadecimal() {
        assert_eq!(format!("{:?} {0} {0:x}", VirtAddr::new(0xabc)), "0xabc 0xabc abc");
    }
}
