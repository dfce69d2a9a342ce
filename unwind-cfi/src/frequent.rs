//! The forms that nearly all entries have, read at once.
//!
//! Each says what the general reader says, or nothing, and then that reads the entry.

use gimli::{DwEhPe, Reader as _};

use crate::{
    entry::{Body, Cie, Entries, Fde},
    execute::{Changed, Run},
    reader::Reader,
    rules::{Cfa, Reg, Rules},
    work_counter,
};

impl<'a> Entries<'a> {
    /// [`Entries::cie`] of the forms that nearly all CIEs of `.eh_frame` have: version 1, numbers of one
    /// byte, and the augmentations `zR` and `zPLR` with a distance of four bytes to the personality.
    /// `None` of any other one, and of one that is malformed.
    #[inline]
    pub(crate) fn frequent_cie(&self, at: u64) -> Option<Cie<'a>> {
        let rest = self.section().bytes.get(usize::try_from(at).ok()?..)?;
        let (len, rest) = rest.split_first_chunk()?;
        if !self.section().is_eh || self.abi().endian() != gimli::RunTimeEndian::Little {
            return None;
        }
        let len = u32::from_le_bytes(*len);
        let entry = rest.get(..usize::try_from(len).ok()?)?;
        let ([0, 0, 0, 0, 1, b'z', letters, entry @ ..], 0..0xffff_fff0) = (entry, len) else {
            return None;
        };
        let (encoding, numbers, instructions) = match (letters, entry) {
            (b'R', [0, code, data, ra, 1, encoding, instructions @ ..]) => {
                (encoding, [code, data, ra], instructions)
            }
            // DW_EH_PE_pcrel, DW_EH_PE_sdata4, and whether DW_EH_PE_indirect.
            (
                b'P',
                [
                    b'L',
                    b'R',
                    0,
                    code,
                    data,
                    ra,
                    7,
                    0x1b | 0x9b,
                    _,
                    _,
                    _,
                    _,
                    _,
                    encoding,
                    instructions @ ..,
                ],
            ) => (encoding, [code, data, ra], instructions),
            _ => return None,
        };
        let [code @ 0..0x80, data @ 0..0x80, ra] = numbers.map(|number| *number) else {
            return None;
        };
        if ra == self.registers.fp || ra == self.registers.sp {
            return None;
        }
        // Bit 6 is the sign.
        let data_align = i64::from(data).wrapping_sub(i64::from(data & 0x40).wrapping_shl(1));
        Some(Cie {
            code_align: code.into(),
            data_align,
            ra: ra.into(),
            is_signal: false,
            key_b: false,
            has_data: true,
            address_encoding: DwEhPe(*encoding),
            instructions: Reader::new(instructions, self.abi().endian()),
        })
    }

    /// [`Entries::body`] of the form that nearly all FDEs have: two numbers of four bytes, the first as a
    /// distance from where it is, and less than 128 bytes of other data. `None` of any other one.
    #[inline]
    pub(crate) fn frequent_body(&self, fde: &Fde<'a>, cie: &Cie<'a>) -> Option<Body<'a>> {
        // DW_EH_PE_pcrel and DW_EH_PE_sdata4.
        let is_frequent = cie.address_encoding == DwEhPe(0x1b)
            && cie.has_data
            && self.abi().endian() == gimli::RunTimeEndian::Little
            && self.abi().address_size() == 8
            && self.section().code.is_empty();
        let [a, b, c, d, e, f, g, h @ 0..0x80, data @ 0..0x80, rest @ ..] = fde.rest.slice() else {
            return None;
        };
        let rest = rest.get(usize::from(*data)..).filter(|_| is_frequent)?;
        let distance = i32::from_le_bytes([*a, *b, *c, *d]);
        let len = u32::from_le_bytes([*e, *f, *g, *h]);
        let place = self.section().addr.wrapping_add(self.offset(&fde.rest));
        let start = place.wrapping_add_signed(distance.into());
        let instructions = Reader::new(rest, self.abi().endian());
        Some(Body { start, len: len.into(), instructions })
    }
}

impl Cie<'_> {
    /// [`Cie::initial_rules`] of the instructions that nearly all CIEs have: `DW_CFA_def_cfa`, `DW_CFA_offset`
    /// of the return address, and padding.
    #[inline]
    pub(crate) fn frequent_rules(&self, entries: &Entries<'_>) -> Option<Rules> {
        let [
            0x0c,
            register @ 0..0x80,
            offset @ 0..0x80,
            column @ 0x83..0xc0,
            factor @ 0..0x80,
            padding @ ..,
        ] = self.instructions.slice()
        else {
            return None;
        };
        let column = column & 0x3f;
        let is_return_address = u64::from(column) == self.ra && entries.registers.kept != column;
        // More padding than to a word is run.
        if !is_return_address || padding.len() > 8 || padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        let ra = Reg::at_cfa(i64::from(*factor).wrapping_mul(self.data_align));
        let cfa = Cfa::register(u64::from(*register), i64::from(*offset));
        Some(Rules { cfa, ra, ..Rules::UNSET })
    }
}

impl Run<'_, '_, '_> {
    /// Runs the instructions that come most often, up to one of another kind, or past `target` as
    /// [`run_to`](Self::run_to) does: true. What they say is what [`instruction`](Self::instruction)
    /// takes of them.
    // A loop of its own, so that what it has in registers stays there.
    #[inline]
    pub(crate) fn run_frequent(&mut self, target: u64) -> bool {
        let Cfa::Register(mut register, mut offset) = self.rules.cfa else { return false };
        let endian = self.instructions.endian();
        let mut bytes = self.instructions.slice();
        let mut at = self.at;
        let mut has_cfa_changed = false;
        let reaches = loop {
            match bytes {
                // DW_CFA_advance_loc
                [byte @ 0x40..0x80, rest @ ..] => {
                    let delta = u64::from(byte & 0x3f).saturating_mul(self.cie.code_align);
                    let next = at.saturating_add(delta);
                    bytes = rest;
                    if delta != 0 && next > target {
                        break true;
                    }
                    at = next;
                }
                // DW_CFA_def_cfa_offset
                [0x0e, value @ 0..0x80, rest @ ..] => {
                    (offset, has_cfa_changed) = (i64::from(*value), true);
                    bytes = rest;
                }
                [0x0e, low @ 0x80..=0xff, high @ 0..0x80, rest @ ..] => {
                    let value = i64::from(low & 0x7f) | i64::from(*high).wrapping_shl(7);
                    (offset, has_cfa_changed) = (value, true);
                    bytes = rest;
                }
                // DW_CFA_offset, but for the registers that `save` is about.
                [byte @ 0x83..0xc0, factor @ 0..0x80, rest @ ..] => {
                    let offset = i64::from(*factor).wrapping_mul(self.cie.data_align);
                    self.set(u64::from(byte & 0x3f), || Reg::at_cfa(offset));
                    bytes = rest;
                }
                // DW_CFA_advance_loc1
                [0x02, delta, rest @ ..] => {
                    let delta = u64::from(*delta).saturating_mul(self.cie.code_align);
                    let next = at.saturating_add(delta);
                    bytes = rest;
                    if delta != 0 && next > target {
                        break true;
                    }
                    at = next;
                }
                // DW_CFA_remember_state
                [0x0a, rest @ ..] => {
                    self.rules.cfa = Cfa::Register(register, offset);
                    if self.remembered.push(&self.rules).is_none() {
                        break false;
                    }
                    bytes = rest;
                }
                // DW_CFA_restore_state
                [0x0b, rest @ ..] => {
                    let Some(state) = self.remembered.pop() else { break false };
                    self.rules = *state;
                    self.changed = Changed::All;
                    bytes = rest;
                    let Cfa::Register(of_state, at_state) = state.cfa else {
                        has_cfa_changed = false;
                        break false;
                    };
                    (register, offset) = (of_state, at_state);
                }
                _ => break false,
            }
            work_counter::steps(1);
        };
        if has_cfa_changed {
            self.set_cfa(Cfa::Register(register, offset));
        }
        self.at = at;
        self.instructions = Reader::new(bytes, endian);
        reaches
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    extern crate std;
    use std::{format, string::String, vec, vec::Vec};

    use proptest::collection::vec as vec_of;
    use proptest::prelude::*;

    use super::*;
    use crate::{CfiAbi, CfiSection, execute::Stop, states::States};

    /// A CIE as compilers write it, and an FDE of it with these instructions.
    fn section(is_of_personality: bool, instructions: &[u8]) -> (Vec<u8>, u64) {
        let augmentation: &[u8] = match is_of_personality {
            true => &[b'z', b'P', b'L', b'R', 0, 1, 0x78, 16, 7, 0x9b, 1, 2, 3, 4, 0x1b, 0x1b],
            false => &[b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b],
        };
        let mut bytes = Vec::new();
        let mut add = |parts: &[&[u8]]| {
            let at = bytes.len();
            let entry = parts.concat();
            bytes.extend(u32::try_from(entry.len()).unwrap().to_le_bytes());
            bytes.extend(entry);
            u64::try_from(at).unwrap()
        };
        add(&[&[0, 0, 0, 0, 1], augmentation, &[0x0c, 7, 8, 0x90, 1, 0, 0]]);
        let back = u32::try_from(if is_of_personality { 36 } else { 28 }).unwrap();
        let code = [0_u32, 0x1000].map(u32::to_le_bytes).concat();
        let at = add(&[&back.to_le_bytes(), &code, &[0], instructions]);
        (bytes, at)
    }

    /// All that is read of a section: by the frequent forms where they have it, and by the others.
    fn read(bytes: &[u8], at: u64) -> [(String, bool); 3] {
        let entries = Entries::new(CfiSection::eh_frame(bytes, 0x1000), CfiAbi::X86_64);
        let same = |frequent: Option<String>, general: String| {
            let is_frequent = frequent.is_some();
            assert_eq!(frequent.as_ref().unwrap_or(&general), &general);
            (general, is_frequent)
        };
        let text = |cie: &Cie<'_>| format!("{cie:?}");
        let general = entries.read_cie(0);
        let cie = same(
            entries.frequent_cie(0).as_ref().map(text),
            general.as_ref().map_or_else(|error| format!("{error:?}"), text),
        );
        let (Ok(general), Ok(fde)) = (general, entries.fde_at(at)) else {
            return [cie, Default::default(), Default::default()];
        };
        let text = |body: &Body<'_>| format!("{body:?}");
        let body = same(
            entries.frequent_body(&fde, &general).as_ref().map(text),
            entries.read_body(&fde, &general).as_ref().map_or_else(|e| format!("{e:?}"), text),
        );
        let rules = same(
            general.frequent_rules(&entries).map(|rules| format!("{:?}", Ok::<_, Stop>(rules))),
            plainly(&entries, &general),
        );
        [cie, body, rules]
    }

    /// The rules of a CIE, instruction by instruction.
    fn plainly(entries: &Entries<'_>, cie: &Cie<'_>) -> String {
        let body = Body { start: 0, len: 0, instructions: cie.instructions };
        let remembered = &mut States::new(&mut []);
        let mut run = Run::new(entries, cie, &Rules::UNSET, remembered, &body);
        run.initial = None;
        let result = loop {
            match run.next() {
                Ok(Some(at)) => run.at = at,
                Ok(None) => break Ok(run.rules),
                Err(stop) => break Err(stop),
            }
        };
        format!("{result:?}")
    }

    /// Where a run comes to: by all means, or instruction by instruction.
    fn run_to(bytes: &[u8], at: u64, target: u64, is_plain: bool) -> String {
        let entries = Entries::new(CfiSection::eh_frame(bytes, 0x1000), CfiAbi::X86_64);
        let cie = entries.cie(0).unwrap();
        let body = entries.body(&entries.fde_at(at).unwrap(), &cie).unwrap();
        let initial = cie.initial_rules(&entries, &mut States::new(&mut [])).unwrap();
        let slots = &mut [Rules::UNSET; 2];
        let remembered = &mut States::new(slots);
        let mut run = Run::new(&entries, &cie, &initial, remembered, &body);
        let reached = if is_plain { run_plainly(&mut run, target) } else { run.run_to(target) };
        let rest = run.instructions;
        format!("{reached:?} {:?} {} {rest:?}", run.rules, run.at)
    }

    fn run_plainly<'a>(run: &mut Run<'_, '_, 'a>, target: u64) -> Result<bool, (Stop, Reader<'a>)> {
        loop {
            let before = run.instructions;
            let Ok(byte) = run.instructions.read_u8() else { return Ok(false) };
            match run.instruction(byte) {
                Ok(Some(next)) if next > target => return Ok(true),
                Ok(next) => run.at = next.unwrap_or(run.at),
                Err(stop) => return Err((stop, before)),
            }
        }
    }

    fn instruction() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            6 => (0x40_u8..0x80).prop_map(|byte| Vec::from([byte])),
            4 => any::<u8>().prop_map(|value| Vec::from([0x0e, value])),
            2 => (0x80_u8.., any::<u8>()).prop_map(|(low, high)| Vec::from([0x0e, low, high])),
            // Not those of the registers that are saved on the way to a handler.
            4 => (0x83_u8..0xc0, any::<u8>()).prop_map(|(byte, factor)| Vec::from([byte, factor])),
            2 => any::<u8>().prop_map(|delta| Vec::from([0x02, delta])),
            2 => Just(Vec::from([0x0a])),
            2 => Just(Vec::from([0x0b])),
            1 => Just(Vec::from([0x0d, 6])),
            1 => Just(Vec::from([0x0f, 1, 0x30])),
            1 => (0xc3_u8..).prop_map(|byte| Vec::from([byte])),
            1 => Just(Vec::from([0])),
            1 => (any::<u8>()).prop_filter("saved", |b| !matches!(b, 0x80..0x83)).prop_map(|byte| Vec::from([byte])),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

        #[test]
        fn l8_frequent_instructions_come_to_what_they_say_one_by_one(
            instructions in vec_of(instruction(), 0..20),
            target in 0_u64..600,
        ) {
            let (bytes, at) = section(false, &instructions.concat());
            let plain = run_to(&bytes, at, target, true);
            prop_assert_eq!(run_to(&bytes, at, target, false), plain);
        }

        #[test]
        fn l8_an_entry_of_a_frequent_form_is_what_the_general_reader_says(
            is_of_personality in any::<bool>(),
            at in 0_usize..80,
            value in any::<u8>(),
            len in 0_usize..100,
        ) {
            let (mut bytes, fde) = section(is_of_personality, &[0x41, 0x0e, 0x10, 0]);
            for (_, is_frequent) in read(&bytes, fde) {
                prop_assert!(is_frequent);
            }
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            read(&bytes, fde);
            bytes.truncate(len);
            read(&bytes, fde);
        }
    }
}
