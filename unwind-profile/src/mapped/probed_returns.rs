//! Where functions that a uretprobe watches return to, by the kernel's own chain.

use unwind_perf::record::{Callchain, Context, Entry, UserState};
use unwind_target::target::return_probes::MAPPING;

use crate::mapped::address_spaces::Space;

/// The return addresses of a stack that uretprobes have displaced, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct ProbedReturns(Vec<Displaced>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Displaced {
    /// Where the return address was saved.
    slot: u64,
    real: u64,
}

impl ProbedReturns {
    /// Of a 64-bit stack of which the sample has the kernel's chain, too.
    ///
    /// The kernel goes along frame pointers, and puts the real address in where it meets the
    /// probes'. The same way in the copied stack leads to the slot of each word of the chain.
    /// As soon as a slot has neither that word nor the probes' address, the two are not of
    /// one stack, and nothing more is taken from the chain.
    pub(crate) fn new(
        chain: Option<Callchain<'_>>,
        state: &UserState<'_>,
        (sp, fp): (u64, u64),
        space: &Space,
    ) -> Self {
        let mut displaced = Vec::new();
        let mut fp = fp;
        for word in chain.into_iter().flat_map(user_words).skip(1) {
            let Some(slot) = fp.checked_add(8) else { break };
            let (Some(next), Some(saved)) = (read(state, sp, fp), read(state, sp, slot)) else {
                break;
            };
            if saved != word {
                if !is_probes(space, saved) {
                    break;
                }
                displaced.push(Displaced { slot, real: word });
            }
            fp = next;
        }
        Self(displaced)
    }

    /// The real address of a return address that is the probes' and was saved in `slot`.
    pub(crate) fn real(&self, slot: u64) -> Option<u64> {
        self.0.iter().find(|displaced| displaced.slot == slot).map(|displaced| displaced.real)
    }
}

/// Whether watched functions return to `addr`.
pub(crate) fn is_probes(space: &Space, addr: u64) -> bool {
    // Each return address of each walk is asked about.
    addr.trailing_zeros() >= PAGE_BITS
        && space
            .find(addr)
            .is_some_and(|range| range.start == addr && range.file.name.as_bytes() == MAPPING)
}

const PAGE_BITS: u32 = 12;

/// The words of a chain that are addresses of user code, the pc first.
pub fn user_words(chain: Callchain<'_>) -> impl Iterator<Item = u64> {
    let user = Context::User.word();
    let words = chain.words().skip_while(move |&word| word != user).skip(1);
    words.take_while(|&word| matches!(Entry::from_word(word), Entry::Ip(_)))
}

fn read(state: &UserState<'_>, sp: u64, addr: u64) -> Option<u64> {
    let at = usize::try_from(addr.checked_sub(sp)?).ok()?;
    Some(u64::from_le_bytes(*state.stack.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use unwind_perf::record::{Attr, Endian, EventFormat, Record, SampleType, Words};

    use super::*;
    use crate::mapped::ranges::{Range, Ranges};
    use crate::mapped::recorded_file::RecordedFile;

    const PROBES: u64 = 0x7fff_ffff_e000;
    const SP: u64 = 0x8000;

    /// A process with a mapping of this name where the probes' is.
    fn space(name: &[u8]) -> Space {
        let file = Arc::new(RecordedFile::of_name(name));
        let (start, end) = (PROBES, PROBES + 0x1000);
        let range = Range { start, end, offset: 0, executable: true, is_moved: false, file };
        Space {
            process: 1,
            ranges: Ranges::default().with(range, 1),
            generation: 1,
            ..Space::default()
        }
    }

    /// What a chain of user frames says of a stack of these words, of which the third and the
    /// fifth are return addresses.
    fn returns(chain: &[u64], saved: [u64; 3], name: &[u8]) -> Vec<(u64, u64)> {
        let stack = [1, SP + 24, saved[0], SP + 40, saved[1], 0, saved[2]];
        let fp = SP + 8;
        let words = [&[0, 2, fp, SP, 0x1000, 56][..], &stack, &[56]].concat();
        let mut sample: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        sample[0] = 9;
        let len = u16::try_from(sample.len()).unwrap();
        sample[6..8].copy_from_slice(&len.to_le_bytes());
        let mut bytes = [0; 112];
        bytes[4] = 112;
        let mut attr = Attr::parse(&bytes, Endian::Little).unwrap();
        let sample_type = SampleType::REGS_USER | SampleType::STACK_USER;
        attr.format = EventFormat { sample_type, ..EventFormat::default() };
        attr.user_registers = 1 << 6 | 1 << 7 | 1 << 8;
        let record = Record::parse(&sample, Endian::Little).unwrap();
        let state = UserState::decode(&record, &attr).unwrap().unwrap();
        let words: Vec<u8> = chain.iter().flat_map(|word| word.to_le_bytes()).collect();
        let chain = Callchain::new(Words::new(&words, Endian::Little));
        let found = ProbedReturns::new(Some(chain), &state, (SP, fp), &space(name));
        found.0.iter().map(|it| (it.slot, it.real)).collect()
    }

    #[test]
    fn g17_displaced_addresses_are_those_of_the_chain_while_all_others_agree() {
        let [kernel, user] = [Context::Kernel.word(), Context::User.word()];
        let chain = [kernel, 0xffff_8000, user, 0x1000, 0x2000, 0x3000, 0x4000];
        let (first, second, third) = ((SP + 16, 0x2000), (SP + 32, 0x3000), (SP + 48, 0x4000));
        let found = |saved| returns(&chain, saved, MAPPING);
        assert_eq!(found([0x2000, 0x3000, 0x4000]), []);
        assert_eq!(found([0x2000, PROBES, 0x4000]), [second]);
        assert_eq!(found([PROBES, 0x3000, PROBES]), [first, third]);
        assert_eq!(found([PROBES; 3]), [first, second, third]);
        // From where the two are not of one stack nothing counts.
        assert_eq!(found([PROBES, 0x3001, PROBES]), [first]);
        assert_eq!(found([0x2001, PROBES, PROBES]), []);
        assert_eq!(found([PROBES + 0x1000, PROBES, PROBES]), []);
        // Nor without the mapping, or a part for user code.
        assert_eq!(returns(&chain, [PROBES; 3], b"[vdso]"), []);
        assert_eq!(returns(&chain[..2], [PROBES; 3], MAPPING), []);
        assert_eq!(returns(&chain[..4], [PROBES; 3], MAPPING), []);
    }
}
