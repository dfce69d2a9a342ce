//! Physical frames, page tables, and the address spaces of tasks.

mod copy;
mod direct_map;
mod frames;
pub(crate) mod shootdown;
mod space;
mod tables;

pub(crate) use copy::{UserMemory, copy_to_user, is_copy_fault};
pub(crate) use direct_map::{DirectMap, append_to_area, write_low_page};
pub(crate) use frames::frames_in_use;
pub(crate) use space::{Absent, Backing, Region, Space, Unmapped};
pub(crate) use tables::{drop_identity_map, kernel_root, read_as_used, user_space_of};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// User addresses are below.
pub(crate) const USER_END: u64 = 0x8000_0000_0000;
