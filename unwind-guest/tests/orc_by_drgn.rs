//! Rows of the tables of Debian's kernels lead where drgn's unwinder goes by them.
//!
//! `benches/figures/orc_by_drgn.py` compares all rows of a kernel so, and has made the cuts that are here.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

use unwind_core::{Memory, ReadError, VirtAddr, Walker};
use unwind_guest::LinuxKernel;
use unwind_guest::orc::{OrcLayout, OrcRows, OrcTable};
use unwind_x86::{X86_64, X86_64Regs};

const STACK: u64 = 0xffff_9000_0000_0000;
const MASK: u64 = 0xff_ffff_ffff;

/// Memory in which each word is an address of the next of two regions.
struct Regions;

impl Memory for Regions {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let addr = addr.get();
        if !(STACK..STACK + 2 * (MASK + 1)).contains(&addr) || buf.len() != 8 {
            return Err(ReadError::Invalid);
        }
        assert_eq!(addr & 7, 0, "the cuts have no row that leads elsewhere");
        // The selector of the kernel's code, too.
        let low = ((addr >> 3) << 16) & MASK | 0x10;
        let word = ((addr & !MASK) + MASK + 1) | low;
        buf.copy_from_slice(&word.to_le_bytes());
        Ok(())
    }
}

/// The registers of the frame, by the numbers that they have in what the kernel saves.
fn registers(pc: u64) -> X86_64Regs {
    const NUMBERS: [u64; 16] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0];
    X86_64Regs::from_all(pc, NUMBERS.map(|number| STACK + (number + 1) * 0x1_0000))
}

#[test]
fn rows_lead_where_drgn_goes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/orc");
    for (kernel, layout) in
        [("6.1", OrcLayout::Linux4_14), ("6.12", OrcLayout::Linux6_4), ("7.2", OrcLayout::Linux7_2)]
    {
        let read = |kind: &str| fs::read(folder.join(format!("{kernel}.{kind}"))).unwrap();
        let (ips, entries, text) = (read("ip"), read("orc"), read("txt"));
        let text = String::from_utf8(text).unwrap();
        let number =
            |word: &str| u64::from_str_radix(word.strip_prefix("0x").unwrap(), 16).unwrap();
        let mut lines = text.lines();
        let ips_at = VirtAddr::new(number(lines.next().unwrap()));
        let chunks = entries.chunks_exact(6).map(|entry| *entry.first_chunk().unwrap());
        assert_eq!(OrcLayout::detect(chunks), Some(layout), "{kernel}");
        let tables = [OrcTable::from_sections(layout, (&ips, ips_at), &entries).unwrap()];
        let mut compared = 0;
        for line in lines {
            let mut words = line.split(' ');
            let pc = number(words.next().unwrap());
            let source = OrcRows::new(&tables);
            let mut walker = Walker::new(LinuxKernel::new(X86_64::FOUR_LEVEL), source);
            let mut memory = Regions;
            let mut frames = walker.frames(registers(pc), &mut memory);
            frames.next();
            let ours = frames.position().map(|caller| {
                let fp = caller.fp().filter(|_| !caller.provenance().is_fp_assumed());
                (caller.pc().addr().get(), caller.sp(), fp)
            });
            let theirs: Vec<u64> = words.filter(|word| *word != "-").map(number).collect();
            // Without an entry drgn follows the frame pointer.
            let own = STACK + 5 * 0x1_0000;
            let is_guess = theirs.get(1) == Some(&(own + 16)) && ours.is_none();
            let theirs = match theirs[..] {
                [pc, sp, fp] if !is_guess => Some((pc, sp, Some(fp))),
                _ => None,
            };
            // Code that has restored the register has it: its slot is below the stack pointer.
            let theirs = match ours {
                Some((.., None)) => theirs.map(|(pc, sp, _)| (pc, sp, None)),
                _ => theirs,
            };
            assert_eq!(ours, theirs, "{kernel} {pc:#x}");
            compared += usize::from(ours.is_some());
        }
        assert!(compared > 400, "{kernel}: {compared}");
    }
}
