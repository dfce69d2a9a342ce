//! Where a kernel is, and what lies in it by its shape.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;

/// At how many places a kernel's first page is looked for.
pub const IMAGE_PLACES: u64 = 512;

/// How many pages of a kernel are looked at.
pub const IMAGE_PAGES: u64 = 1 << 15;

/// Linux's 64-bit kernels are mapped somewhere in the gibibyte from here on, at multiples of the step.
const FIRST_PLACE: u64 = 0xffff_ffff_8000_0000;
const STEP: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// What is read at once, and what is kept of what was read before: no pattern is longer.
const BLOCK: usize = 1024;
const OVERLAP: usize = 24;

/// The tokens `0` to `9` of a table of tokens, which stand for themselves in each: all symbols have digits.
pub(crate) const DIGITS: [u8; 20] = *b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
/// How BTF begins: magic number, version, no flags, the length of its header.
pub(crate) const BTF_START: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];

/// What may be something else, by the shape of its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Digits(u64),
    Btf(u64),
}

/// The addresses of a kernel; their end is a bound. `None` if nothing is mapped where one may be; what is not resident
/// is taken for that.
pub(crate) fn find<M: Memory>(mem: &mut M) -> Option<Range<u64>> {
    let places = (0..IMAGE_PLACES).map(|step| FIRST_PLACE.wrapping_add(step.wrapping_mul(STEP)));
    let mut is_mapped = |place: &u64| mem.read(VirtAddr::new(*place), &mut [0]).is_ok();
    let start = places.into_iter().find(|place| is_mapped(place))?;
    Some(start..start.saturating_add(IMAGE_PAGES * PAGE))
}

/// Hands over what has the shape of a table until `is_enough` says so.
///
/// # Errors
///
/// Those of `is_enough`.
pub(crate) fn scan<M: Memory>(
    image: &Range<u64>,
    mem: &mut M,
    mut is_enough: impl FnMut(Shape, &mut M) -> Result<bool, LinuxError>,
) -> Result<(), LinuxError> {
    let mut bytes = [0; OVERLAP + BLOCK];
    let mut at = image.start;
    while at < image.end {
        bytes.copy_within(BLOCK.., 0);
        let (_, block) = bytes.split_at_mut(OVERLAP);
        if mem.read(VirtAddr::new(at), block).is_err() {
            bytes.fill(0);
            at = (at | (PAGE - 1)).saturating_add(1);
            continue;
        }
        let before = at.wrapping_sub(24);
        for (offset, part) in (0_u64..).zip(bytes.windows(OVERLAP)) {
            let place = before.wrapping_add(offset);
            let shape = if part.starts_with(&DIGITS) {
                Shape::Digits(place)
            } else if part.starts_with(&BTF_START) {
                Shape::Btf(place)
            } else {
                continue;
            };
            if is_enough(shape, mem)? {
                return Ok(());
            }
        }
        at = at.wrapping_add(1024);
    }
    Ok(())
}
