//! The forms that nearly all entries have, read at once.
//!
//! Each says what the general reader says, or nothing, and then that reads the entry.

use gimli::{DwEhPe, Reader as _};
use unwind_core::{Origin, Row};

use crate::{
    entry::{Body, Cie, Entries, Fde},
    evaluation::MAX_INSTRUCTIONS,
    execute::{Changed, Run},
    plain_rules::{AHEAD, PlainRules, PlainRun, Units},
    reader::Reader,
    rules::Reg,
};

impl<'a> Entries<'a> {
    /// The row of `pc` by the FDE at an offset in the section, if that, its CIE, its instructions up to there
    /// and the row are what nearly all are. `None` says nothing.
    #[inline]
    pub(crate) fn frequent_row(&self, at: u64, pc: u64) -> Option<Row> {
        let fde = self.frequent_fde(at)?;
        let cie = self.frequent_cie(fde.cie)?;
        let Body { start, len, instructions } = self.frequent_body(&fde, &cie)?;
        let target = pc.checked_sub(start).filter(|target| *target < len)?;
        let (rules, ra) = PlainRules::of_cie(&cie, &self.registers)?;
        let units = Units::new(self, &cie, true, target)?;
        // The next entry comes after them: what it begins with ends the run, and is not part of one.
        let start = self.offset(&instructions);
        let len = instructions.len();
        let rest = self.section().bytes.get(usize::try_from(start).ok()?..)?;
        let rest = rest.get(..len.wrapping_add(AHEAD)).filter(|_| len <= MAX_INSTRUCTIONS)?;
        let mut run = PlainRun::new(rules, rest);
        let is_past = run.run(target, &units, true);
        let left = run.rest.len();
        if left < AHEAD || left != AHEAD && !is_past {
            return None;
        }
        let row = run.rules.row(ra, &self.registers)?;
        Some(row.with_origin(Origin::CallFrames))
    }

    /// The bytes of the entry at an offset in the section of `.eh_frame`, after its length, which is that of
    /// nearly all.
    #[inline]
    fn frequent_entry(&self, at: u64) -> Option<&'a [u8]> {
        if !self.is_little_eh {
            return None;
        }
        let rest = self.section().bytes.get(usize::try_from(at).ok()?..)?;
        let (len, rest) = rest.split_first_chunk()?;
        let len = u32::from_le_bytes(*len);
        rest.get(..usize::try_from(len).ok()?).filter(|_| len < 0xffff_fff0)
    }

    /// [`Entries::fde_at`] of nearly all FDEs of `.eh_frame`. `None` of any other one, and of what is none.
    #[inline]
    pub(crate) fn frequent_fde(&self, at: u64) -> Option<Fde<'a>> {
        let (id, rest) = self.frequent_entry(at)?.split_first_chunk()?;
        let id @ 1.. = u32::from_le_bytes(*id) else { return None };
        // It counts back from its own field.
        let cie = at.wrapping_add(4).wrapping_sub(id.into());
        Some(Fde { at, cie, rest: Reader::new(rest, self.abi().endian()) })
    }

    /// [`Entries::cie`] of the forms that nearly all CIEs of `.eh_frame` have: version 1, numbers of one
    /// byte, and the augmentations `zR` and `zPLR` with a distance of four bytes to the personality.
    /// `None` of any other one, and of one that is malformed.
    #[inline(always)]
    pub(crate) fn frequent_cie(&self, at: u64) -> Option<Cie<'a>> {
        // Its mark, its version and the first letters, or all.
        let (head, rest) = self.frequent_entry(at)?.split_first_chunk::<8>()?;
        let (encoding, numbers, instructions) = match (head, rest) {
            ([0, 0, 0, 0, 1, b'z', b'R', 0], [code, data, ra, 1, encoding, instructions @ ..]) => {
                (encoding, [code, data, ra], instructions)
            }
            // DW_EH_PE_pcrel, DW_EH_PE_sdata4, and whether DW_EH_PE_indirect.
            (
                [0, 0, 0, 0, 1, b'z', b'P', b'L'],
                [
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
    #[inline(always)]
    pub(crate) fn frequent_body(&self, fde: &Fde<'a>, cie: &Cie<'a>) -> Option<Body<'a>> {
        // DW_EH_PE_pcrel and DW_EH_PE_sdata4.
        let is_frequent = cie.address_encoding == DwEhPe(0x1b)
            && cie.has_data
            && self.is_little_eh
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

impl Run<'_, '_, '_> {
    /// Runs the instructions that come most often, up to one of another kind, or past `target` as
    /// [`run_to`](Self::run_to) does: true. What they say is what [`instruction`](Self::instruction)
    /// takes of them.
    pub(crate) fn run_frequent(&mut self, target: u64) -> bool {
        let restores_kept = self.initial.is_some_and(|initial| initial.kept == Reg::Unset);
        let Some(units) = Units::new(self.entries, self.cie, restores_kept, target) else {
            return false;
        };
        let plain = PlainRun::of(&self.rules, self.instructions.slice(), self.at);
        let Some(mut plain) = plain else { return false };
        let is_past = plain.run(target, &units, self.remembered.has_room());
        self.instructions = Reader::new(plain.rest, self.instructions.endian());
        self.at = plain.at;
        plain.put(&mut self.rules, |state| self.remembered.push(state));
        self.changed = Changed::All;
        is_past
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
    use unwind_core::{CfaRule, RegRule};

    use crate::{
        CfiAbi, CfiSection, evaluation::PcRules, execute::Stop, rules::Rules, states::States,
    };

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
        // The end of the section.
        add(&[]);
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
            PlainRules::of_cie(&general, &entries.registers)
                .map(|(rules, ra)| format!("{:?}", Ok::<_, Stop>(rules.rules(ra)))),
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

    /// The row of a place, by the instructions one by one.
    fn row_plainly(entries: &Entries<'_>, at: u64, target: u64) -> Option<Row> {
        let cie = entries.cie(0).unwrap();
        let body = entries.body(&entries.fde_at(at).unwrap(), &cie).unwrap();
        let initial = cie.initial_rules(entries, &mut States::new(&mut [])).unwrap();
        let slots = &mut [Rules::UNSET; 2];
        let remembered = &mut States::new(slots);
        let mut run = Run::new(entries, &cie, &initial, remembered, &body);
        run_plainly(&mut run, target).ok()?;
        let at_pc = PcRules::new(&run.rules, &cie, body.start.wrapping_add(target));
        at_pc.row(&entries.registers, entries.section().addr).ok()
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
            1 => (6_u8..9, any::<u8>()).prop_map(|(register, value)| Vec::from([0x0c, register, value])),
            1 => (any::<u8>(), 0_u8..2).prop_map(|(low, high)| Vec::from([0x03, low, high])),
            1 => any::<u8>().prop_map(|value| Vec::from([0x2e, value])),
            1 => Just(Vec::from([0x0f, 1, 0x30])),
            1 => (0xc3_u8..).prop_map(|byte| Vec::from([byte])),
            1 => Just(Vec::from([0])),
            1 => (any::<u8>()).prop_filter("saved", |b| !matches!(b, 0x80..0x83)).prop_map(|byte| Vec::from([byte])),
        ]
    }

    #[test]
    fn l8_the_row_of_a_usual_place_is_found_at_once() {
        // push rbp; mov rbp, rsp; push rbx; ...; leave; ret; what comes after a return; nothing after it.
        let instructions = [
            &[0x41, 0x0e, 16, 0x86, 2][..],
            &[0x43, 0x0d, 6],
            &[0x42, 0x83, 3],
            &[0x02, 0x80, 0x0a, 0x0c, 7, 8],
            &[0x41, 0x0b],
        ];
        let (bytes, at) = section(true, &instructions.concat());
        let entries = Entries::new(CfiSection::eh_frame(&bytes, 0x1000), CfiAbi::X86_64);
        let row = |offset| entries.frequent_row(at, 0x1000 + at + 8 + offset);
        for (offset, cfa, is_saved) in [
            (0, CfaRule::sp(8), false),
            (1, CfaRule::sp(16), true),
            (4, CfaRule::fp(16), true),
            (133, CfaRule::fp(16), true),
            (134, CfaRule::sp(8), true),
            (135, CfaRule::fp(16), true),
            (0xfff, CfaRule::fp(16), true),
        ] {
            let fp = if is_saved { RegRule::Offset(-16) } else { RegRule::SameValue };
            let expected = Row::new(cfa, RegRule::Offset(-8), fp).with_origin(Origin::CallFrames);
            assert_eq!(row(offset), Some(expected), "{offset}");
            assert_eq!(row_plainly(&entries, at, offset), Some(expected), "{offset}");
        }
        assert_eq!(row(0x1000), None);
    }

    #[test]
    fn l8_bytes_after_an_entry_are_no_operands() {
        // DW_CFA_def_cfa_offset after DW_CFA_advance_loc, or alone; DW_CFA_advance_loc1 and 2.
        for instructions in [&[0x41, 0x0e][..], &[0x0e], &[0x02], &[0x41, 0x02], &[0x03, 0]] {
            for after in [0, 0x14] {
                let (mut bytes, at) = section(false, instructions);
                let end = bytes.len() - 4;
                bytes[end..].fill(after);
                let entries = Entries::new(CfiSection::eh_frame(&bytes, 0x1000), CfiAbi::X86_64);
                assert_eq!(
                    entries.frequent_row(at, 0x1000 + at + 8 + 1),
                    None,
                    "{instructions:x?}"
                );
                assert_eq!(row_plainly(&entries, at, 1), None, "{instructions:x?}");
            }
        }
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
            let entries = Entries::new(CfiSection::eh_frame(&bytes, 0x1000), CfiAbi::X86_64);
            let start = 0x1000 + at + 8;
            if let Some(row) = entries.frequent_row(at, start + target) {
                prop_assert_eq!(row_plainly(&entries, at, target), Some(row));
            }
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
