//! The frame that a program starts in.

use std::convert::Infallible;

use unwind_core::{Arch, FrameContext, Memory, Origin, Row, RowSource, VirtAddr, WordSize};

/// The files that a process maps, and where each of them starts.
pub trait EntryPoints {
    /// How far after the first instruction of its file an address is; `None` if there is no file,
    /// or the address is before that.
    fn past_entry(&self, addr: u64) -> Option<u64>;
}

/// The outermost frame of a thread that executes the first code of a program or of its
/// loader, if no table covers that: the one of glibc's loader is not covered.
///
/// The kernel starts there with nothing on the stack but the number of arguments, their
/// addresses and a zero. Both the place and what is on the stack have to be so.
#[derive(Clone, Copy, Debug)]
pub struct ProgramStart<'s, E> {
    pub files: &'s E,
}

/// How far from a program's first instruction its first function reaches. glibc's loader
/// has 61 bytes.
const LEN: u64 = 64;

/// The most arguments that are looked for: more do not fit a copy of a stack.
const MAX_ARGUMENTS: u64 = 8192;

impl<A: Arch, E: EntryPoints> RowSource<A> for ProgramStart<'_, E> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        memory: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let is_start =
            self.has_start(frame.lookup_addr()) && is_first_stack(memory, frame.sp(), A::WORD);
        Ok(is_start.then(|| Row::outermost().with_origin(Origin::Instructions)))
    }
}

impl<E: EntryPoints> ProgramStart<'_, E> {
    /// Whether an address is in the code that a file starts with.
    fn has_start(&self, addr: VirtAddr) -> bool {
        self.files.past_entry(addr.get()).is_some_and(|at| at < LEN)
    }
}

/// Whether a stack has at `sp` what the kernel leaves for a program. The start aligns the
/// stack before some calls: then it is a word or two above.
fn is_first_stack(memory: &mut impl Memory, sp: u64, word: WordSize) -> bool {
    let offsets: &[u64] = match word {
        WordSize::Four => &[0, 4, 8, 12],
        WordSize::Eight => &[0, 8],
    };
    let mut starts = offsets.iter().filter_map(|&at| sp.checked_add(at));
    starts.any(|sp| has_arguments(memory, sp, word).unwrap_or(false))
}

/// Whether the number of arguments is at `sp`, with their addresses and a zero after it.
fn has_arguments(memory: &mut impl Memory, sp: u64, word: WordSize) -> Option<bool> {
    let mut read = |at: u64| {
        let addr = VirtAddr::new(sp.checked_add(at.checked_mul(word.bytes())?)?);
        let mut bytes = [0; 8];
        let len = usize::try_from(word.bytes()).ok()?;
        memory.read(addr, bytes.get_mut(..len)?).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let count = read(0)?;
    let is_number = (1..=MAX_ARGUMENTS).contains(&count);
    // The texts are above.
    let is_address = |value| value > sp;
    Some(
        is_number
            && is_address(read(1)?)
            && is_address(read(count)?)
            && read(count.checked_add(1)?)? == 0,
    )
}

#[cfg(test)]
mod tests {
    use unwind_core::ReadError;

    use super::*;

    /// Words from an address on.
    struct Words<'w> {
        start: u64,
        words: &'w [u64],
        word: WordSize,
    }

    impl Memory for Words<'_> {
        fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            let word = usize::try_from(self.word.bytes()).unwrap();
            let at = addr.get().checked_sub(self.start).ok_or(ReadError::Invalid)?;
            let at = usize::try_from(at).unwrap();
            assert_eq!((buf.len(), at.is_multiple_of(word)), (word, true));
            let value = self.words.get(at.checked_div(word).unwrap());
            let value = value.ok_or(ReadError::Invalid)?;
            buf.copy_from_slice(&value.to_le_bytes()[..word]);
            Ok(())
        }
    }

    #[test]
    fn a_program_starts_with_its_arguments_on_the_stack() {
        for word in [WordSize::Four, WordSize::Eight] {
            let is_first = |at: u64, words: &[u64]| {
                let start = 0x1000;
                is_first_stack(&mut Words { start, words, word }, start + at * word.bytes(), word)
            };
            assert!(is_first(0, &[2, 0x2000, 0x2008, 0, 0x2010, 0]));
            // A word was left out to align the stack, or the number of arguments was taken.
            assert!(is_first(0, &[7, 1, 0x2000, 0, 0]));
            assert!(is_first(1, &[7, 1, 0x2000, 0, 0]));
            for other in [
                &[0, 0x2000, 0, 0][..],
                &[2, 0x2000, 0, 0],
                &[2, 0x2000, 0x2008, 0x2010],
                &[1, 0x800, 0, 0],
                &[u64::MAX >> 32, 0x2000, 0, 0],
                &[3, 0x2000, 0x2008],
                &[],
            ] {
                assert!(!is_first(0, other), "{other:x?}");
            }
        }
    }
}
