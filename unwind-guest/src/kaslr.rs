//! Where a kernel is in its guest.

use unwind_core::{Memory, VirtAddr};

/// Linux moves its kernel by multiples of this at boot, less far than the other.
const STEP: u64 = 2 << 20;
const MOST: u64 = 1 << 30;

/// How far a Linux kernel has been moved at boot (KASLR): the least distance at which the guest has
/// `bytes` where they were linked for `linked`. `None` if it has them nowhere.
///
/// The bytes tell the kernel from any other: its section `.notes`, which has the build id. At most 512 places
/// are looked at, each by reads of up to 64 bytes until one differs; no bytes are found nowhere.
/// `mem` reads on behalf of the kernel, by [its](crate::VcpuRegisters::kernel_address_spaces) page tables.
pub fn find_kernel<M: Memory>(linked: VirtAddr, bytes: &[u8], mem: &mut M) -> Option<u64> {
    let has_bytes = |moved_by: u64, mem: &mut M| {
        let mut addr = linked.wrapping_add(moved_by);
        !bytes.is_empty()
            && bytes.chunks(64).all(|part| {
                let mut there = [0; 64];
                let there = there.get_mut(..part.len()).unwrap_or_default();
                let read = mem.read(addr, there);
                addr = addr.wrapping_add(64);
                read.is_ok() && there == part
            })
    };
    (0..MOST / STEP).map(|step| step.wrapping_mul(STEP)).find(|by| has_bytes(*by, mem))
}

#[cfg(test)]
mod tests {
    use unwind_core::{ReadError, SliceMemory};

    use super::*;

    const LINKED: VirtAddr = VirtAddr::new(0xffff_ffff_8100_1000);

    #[test]
    fn a_kernel_is_found_where_all_of_the_bytes_are() {
        let bytes: [u8; 100] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        for moved_by in [0, 34 << 20, MOST - STEP] {
            let mut memory = SliceMemory::new(LINKED.wrapping_add(moved_by), &bytes);
            assert_eq!(find_kernel(LINKED, &bytes, &mut memory), Some(moved_by));
            assert_eq!(find_kernel(LINKED, &bytes[1..], &mut memory), None);
            assert_eq!(find_kernel(LINKED, &[], &mut memory), None);
        }
        let mut beyond = SliceMemory::new(LINKED.wrapping_add(MOST), &bytes);
        assert_eq!(find_kernel(LINKED, &bytes, &mut beyond), None);
    }

    #[test]
    fn the_search_is_bounded() {
        struct Zeroes(u32);
        impl Memory for Zeroes {
            fn read(&mut self, _: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
                self.0 += 1;
                buf.fill(0);
                Ok(())
            }
        }
        let mut memory = Zeroes(0);
        let mut bytes = [0; 128];
        bytes[127] = 1;
        assert_eq!(find_kernel(LINKED, &bytes, &mut memory), None);
        assert_eq!(memory.0, 1024);
    }
}
