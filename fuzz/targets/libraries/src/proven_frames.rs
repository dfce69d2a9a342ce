//! Any instruction bytes around a pc, in a function whose bounds are told or not: a proof in a bounded
//! number of reads, and where the code runs straight to its return, the row that running it comes to.

use core::ops::Range;

use unwind_core::{FramePc, Memory, Origin, ReadError, RegRule, VirtAddr, WordSize};
use unwind_x86::{FunctionBounds, ProvenFrames};

use crate::input::Input;
use crate::instruction_analysis::returns;

const CODE: u64 = 0x40_1000;

/// Two pages, the bytes in the first and `int3` elsewhere.
struct Code<'a> {
    bytes: &'a [u8],
    reads: u32,
}

impl Memory for Code<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        for (at, byte) in (addr.get()..).zip(buf) {
            let at = at.checked_sub(CODE).filter(|&at| at < 0x2000).ok_or(ReadError::Invalid)?;
            *byte = self.bytes.get(at as usize).copied().unwrap_or(0xcc);
        }
        Ok(())
    }
}

struct Told(Option<Range<VirtAddr>>);

impl FunctionBounds for Told {
    fn find(&self, _: VirtAddr) -> Option<Range<VirtAddr>> {
        self.0.clone()
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (at, kind) = (u64::from(input.u8()), input.u8());
    let (start, len) = (u64::from(input.u8()), u64::from(input.u8()) << 4);
    let bytes = input.rest();
    let bytes = &bytes[..bytes.len().min(0x1000)];
    let word = if kind & 1 == 0 { WordSize::Eight } else { WordSize::Four };
    let bounds = VirtAddr::new(CODE + start)..VirtAddr::new(CODE + start + len);
    let bounds = Some(bounds).filter(|_| kind & 2 != 0);
    let is_told = bounds.is_some();
    let pc = VirtAddr::new(CODE + at);
    let pc = if kind & 4 == 0 { FramePc::Exact(pc) } else { FramePc::Return(pc) };
    let mut code = Code { bytes, reads: 0 };
    let proof = ProvenFrames::new(Told(bounds)).proof(word, pc, &mut code);
    // Each instruction of 8,192 and 1,024, and what precedes the function.
    assert!(code.reads < 40_000, "{} reads", code.reads);
    let row = proof.and_then(|proof| proof.row(0x7000, Some(0x7100)));
    if let Some(row) = row {
        assert_eq!(row.origin(), Origin::Instructions);
        assert!(!row.is_guess() && !row.is_signal() && !row.is_outermost());
    }
    let ahead = bytes.get(at as usize..).unwrap_or_default();
    let size = if word == WordSize::Eight { 8 } else { 4 };
    // A frame that is set up before decides by itself.
    if !is_told
        && !bytes.contains(&0x55)
        && let Some((expected, lowest)) = returns(ahead, size)
        // Below the stack pointer at the pc is nothing that proves something.
        && (row.is_some() || lowest >= 0)
    {
        let found = row.map(|row| (row.cfa(), row.ra()));
        assert_eq!(found, Some((expected, RegRule::Offset(-size))), "{ahead:02x?}");
    }
}
