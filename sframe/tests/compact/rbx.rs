//! Where the caller's rbx is, held against gimli's rules.

use std::collections::BTreeMap;

use gimli::{CieOrFde, LittleEndian, RegisterRule, UnwindContext, UnwindSection, X86_64};
use sframe::{CfiAbi, CfiSection, CompactBuilder, CompactTable};
use testdata::{CfiBuilder, Cie};
use unwind_core::RegRule;

use crate::cie;
use crate::program::{Program, files};

const SECTION: u64 = 0x10_0000;
const PC: u64 = 0x1000;

/// The rules at the first bytes of an FDE's code.
fn rules(abi: CfiAbi, of_cie: &[u8], instructions: &[u8]) -> Vec<Option<RegRule>> {
    let mut cfi = CfiBuilder::eh_frame(SECTION);
    let plain = cie(abi);
    let all = [&plain.instructions, of_cie].concat();
    let cie = cfi.cie(&Cie { instructions: all, ..plain });
    cfi.fde(cie, PC, 0x10, instructions);
    let mut builder = CompactBuilder::new();
    builder.add_cfi(CfiSection::eh_frame(cfi.build(), SECTION), abi).unwrap();
    let (image, _) = builder.finish().unwrap();
    let table = CompactTable::parse(&image).unwrap();
    (PC..PC + 4).map(|pc| table.rbx(pc)).collect()
}

#[test]
fn u3_the_callers_rbx_is_known_where_it_is_saved_below_the_cfa_or_not_touched() {
    let same = Some(RegRule::SameValue);
    let saved = |offset| Some(RegRule::Offset(offset));
    let of_64_bits = |instructions: &[u8]| rules(CfiAbi::X86_64, &[], instructions);
    assert_eq!(of_64_bits(&[]), [same; 4]);
    // rbx is saved at CFA-16, restored, and what held before comes back.
    let instructions = [0x41, 0x83, 2, 0x0a, 0x41, 0xc3, 0x41, 0x0b];
    assert_eq!(of_64_bits(&instructions), [same, saved(-16), same, saved(-16)]);
    // The number may be longer than it has to be.
    assert_eq!(of_64_bits(&[0x05, 0x83, 0, 7]), [saved(-56); 4]);
    // At the last place that a rule can say, and at the next one.
    assert_eq!(of_64_bits(&[0x83, 127]), [saved(-1016); 4]);
    assert_eq!(of_64_bits(&[0x83, 0x80, 1]), [None; 4]);
    // Above the CFA, another register, undefined, an expression.
    for elsewhere in [&[0x11, 3, 0x7f][..], &[0x09, 3, 0], &[0x07, 3], &[0x10, 3, 2, 0x77, 8]] {
        assert_eq!(of_64_bits(elsewhere), [None; 4], "{elsewhere:x?}");
    }
    // What another register has is of no account, nor is one of a CFA that is found from a register.
    assert_eq!(of_64_bits(&[0x8c, 2]), [same; 4]);
    assert_eq!(of_64_bits(&[0x41, 0x0d, 3, 0x41, 0x83, 2]), [same, None, None, None]);
    // No CIE of a compiler says anything of it.
    assert_eq!(rules(CfiAbi::X86_64, &[0x83, 2], &[]), [None; 4]);
    assert_eq!(rules(CfiAbi::Ia32, &[], &[0x42, 0x83, 3]), [same, same, saved(-12), saved(-12)]);
    assert_eq!(rules(CfiAbi::Aarch64Little, &[], &[]), [None; 4]);
}

/// gimli's rules of rbx, each with the address from which it holds; `None` at the ends of code. Of places
/// with several there is none.
fn by_gimli(program: &Program) -> BTreeMap<u64, Option<Option<RegRule>>> {
    let section = gimli::EhFrame::new(&program.eh_frame, LittleEndian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(program.addr);
    let mut context = UnwindContext::new();
    let mut rules = BTreeMap::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, at| section.cie_from_offset(bases, at)).unwrap();
        let mut table = fde.rows(&section, &bases, &mut context).unwrap();
        while let Ok(Some(row)) = table.next_row() {
            let is_of_register = |cfa: &gimli::CfaRule<usize>| match cfa {
                gimli::CfaRule::RegisterAndOffset { register, .. } => {
                    ![X86_64::RSP, X86_64::RBP].contains(register)
                }
                gimli::CfaRule::Expression(_) => true,
            };
            let rule = match row.register(X86_64::RBX) {
                None | Some(RegisterRule::SameValue) => Some(RegRule::SameValue),
                Some(RegisterRule::Offset(offset @ -1016..=-4)) => {
                    Some(RegRule::Offset(i32::try_from(offset).unwrap()))
                }
                _ => None,
            };
            let rule = (!is_of_register(row.cfa())).then_some(rule);
            let start = row.start_address();
            let rule = if rules.get(&start).is_some_and(Option::is_some) { None } else { rule };
            rules.insert(start, rule);
            rules.entry(row.end_address()).or_insert(None);
        }
    }
    rules
}

#[test]
fn u3_the_callers_rbx_is_where_gimli_finds_it_in_programs() {
    let (mut same, mut saved) = (0_u32, 0_u32);
    for path in files() {
        let program = Program::read(&path).unwrap();
        let mut compact = CompactBuilder::new();
        compact.add_cfi(program.cfi(), CfiAbi::X86_64).unwrap();
        let (image, _) = compact.finish().unwrap();
        let compact = CompactTable::parse(&image).unwrap();
        let rules = by_gimli(&program);
        let ends = rules.keys().skip(1);
        for ((start, rule), end) in rules.iter().zip(ends) {
            let Some(rule) = rule else { continue };
            for pc in [*start, end - 1] {
                // The outermost frame has no caller.
                let Some(row) = compact.row(pc).filter(|row| !row.is_outermost()) else { continue };
                if row.is_context_only() {
                    continue;
                }
                assert_eq!(compact.rbx(pc), *rule, "{} at {pc:#x}", path.display());
                match rule {
                    Some(RegRule::Offset(_)) => saved += 1,
                    _ => same += 1,
                }
            }
        }
    }
    println!("{same} the same value, {saved} saved");
    assert!(same > 20_000 && saved > 10_000, "{same} {saved}");
}
