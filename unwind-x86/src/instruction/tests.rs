#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests")]

extern crate std;
use std::collections::BTreeMap;
use std::string::String;
use std::{format, fs, vec::Vec};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};
use proptest::prelude::*;

use super::*;

/// What another decoder says of an instruction.
struct Other {
    len: usize,
    writes_sp: bool,
    writes_fp: bool,
    instruction: iced_x86::Instruction,
}

fn other(word: WordSize, bytes: &[u8]) -> Option<Other> {
    let bits = u32::try_from(word.bytes()).unwrap() * 8;
    let mut decoder = Decoder::new(bits, bytes, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(&instruction).used_registers().to_vec();
    let writes = |whole: Register| {
        used.iter().any(|used| {
            let is_write = !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
            );
            used.register().full_register() == whole && is_write
        })
    };
    let (writes_sp, writes_fp) = (writes(Register::RSP), writes(Register::RBP));
    Some(Other { len: instruction.len(), writes_sp, writes_fp, instruction })
}

/// Compares the first instruction; what is wrong, if anything is. `is_none` is set where only the
/// other one knows it.
fn compare(
    word: WordSize,
    bytes: &[u8],
    unknown: &mut BTreeMap<String, u32>,
) -> Result<usize, String> {
    let other = other(word, &bytes[..bytes.len().min(LONGEST)]);
    let Some(ours) = decode(word, bytes) else {
        if let Some(other) = &other {
            *unknown.entry(format!("{:?}", other.instruction.mnemonic())).or_default() += 1;
        }
        return Ok(other.map_or(1, |other| other.len));
    };
    let Some(Other { len, writes_sp, writes_fp, instruction }) = other else { return Ok(1) };
    let flow = instruction.flow_control();
    let target = |rel: i32| {
        let end = i64::try_from(len).unwrap();
        let mask = if word == WordSize::Four { 0xffff_ffff } else { u64::MAX };
        (end + i64::from(rel)).cast_unsigned() & mask == instruction.near_branch_target()
    };
    let is_next = matches!(flow, FlowControl::Next | FlowControl::Interrupt)
        || matches!(instruction.mnemonic(), Mnemonic::Syscall);
    let moves = |n: i32| match instruction.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Lea => true,
        // To what comes next.
        Mnemonic::Call => target(0),
        _ => instruction.stack_pointer_increment() == n,
    };
    let is_right = usize::from(ours.len) == len
        && match ours.effect {
            Effect::Other => is_next && !writes_sp && !writes_fp,
            Effect::MoveSp(n) => writes_sp && !writes_fp && moves(n),
            Effect::PushFp => instruction.mnemonic() == Mnemonic::Push && !writes_fp,
            Effect::PopFp => instruction.mnemonic() == Mnemonic::Pop && writes_fp,
            Effect::FpFromSp(_) => is_next && writes_fp && !writes_sp,
            Effect::StoreFpAtSp(at) | Effect::LoadFpAtSp(at) => {
                let is_load = matches!(ours.effect, Effect::LoadFpAtSp(_));
                let is_stack = matches!(instruction.memory_base(), Register::RSP | Register::ESP);
                let is_there = instruction.memory_displacement64().cast_signed() == at.into()
                    || instruction.memory_displacement32().cast_signed() == at;
                is_next && writes_fp == is_load && !writes_sp && is_stack && is_there
            }
            Effect::MoveFp(n) => {
                let is_sum = matches!(instruction.mnemonic(), Mnemonic::Add | Mnemonic::Lea);
                let is_difference = instruction.mnemonic() == Mnemonic::Sub;
                let by = match instruction.mnemonic() {
                    Mnemonic::Lea => instruction.memory_displacement64(),
                    _ => instruction.immediate(1),
                };
                let by = if is_difference { by.wrapping_neg() } else { by };
                let [b0, b1, b2, b3, ..] = by.to_le_bytes();
                let is_by = i32::from_le_bytes([b0, b1, b2, b3]) == n;
                is_next && writes_fp && !writes_sp && (is_sum || is_difference) && is_by
            }
            Effect::SpFromFp(_) | Effect::LoadSpAtFp(_) => is_next && writes_sp && !writes_fp,
            Effect::Leave => instruction.mnemonic() == Mnemonic::Leave,
            // Of two registers one is named. Some that name the register only read it.
            Effect::LoseSp | Effect::LoseFp => is_next,
            Effect::Return => flow == FlowControl::Return,
            Effect::Call => matches!(flow, FlowControl::Call | FlowControl::IndirectCall),
            Effect::Jump(n) => flow == FlowControl::UnconditionalBranch && target(n),
            Effect::Branch(n) => flow == FlowControl::ConditionalBranch && target(n),
            Effect::JumpAway => flow == FlowControl::IndirectBranch,
            Effect::Stop => {
                matches!(flow, FlowControl::Interrupt | FlowControl::Exception)
                    || instruction.mnemonic() == Mnemonic::Hlt
            }
        };
    if is_right {
        Ok(len)
    } else {
        Err(format!(
            "{word:?} {:x?}: {ours:?}, but {len} {instruction:?} writes sp {writes_sp} fp {writes_fp}",
            &bytes[..len.min(bytes.len())]
        ))
    }
}

/// The bytes of files with code: this program, and the libraries that it has.
fn files() -> Vec<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps
        .lines()
        .filter(|line| line.contains("r-xp"))
        .filter_map(|line| line.split_whitespace().nth(5));
    paths.filter(|path| path.starts_with('/')).map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn m1_an_instruction_is_what_another_decoder_says() {
    for word in [WordSize::Eight, WordSize::Four] {
        let (mut instructions, mut unknown, mut wrong) = (0_u32, BTreeMap::new(), Vec::new());
        for bytes in files() {
            let mut at = 0;
            // Of each a part: the sanitizers and unoptimized code take their time.
            let bytes = &bytes[..bytes.len().min(1 << 20)];
            while at + LONGEST < bytes.len() {
                instructions += 1;
                match compare(word, &bytes[at..], &mut unknown) {
                    Ok(len) => at += len,
                    Err(error) => {
                        wrong.push(error);
                        at += 1;
                    }
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{} of {instructions}: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(40)]
        );
        assert!(instructions > 100_000);
        // What is not code decodes to all kinds of instructions.
        let known = instructions - unknown.values().sum::<u32>();
        assert!(known > instructions / 4 * 3, "{known} of {instructions}: {unknown:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50_000) })]

    #[test]
    fn m1_any_bytes_are_what_another_decoder_says(bytes in any::<[u8; 15]>(), is_wide in any::<bool>(), prefix in prop_oneof![Just(None), (0x40_u8..0x50).prop_map(Some), Just(Some(0x0f_u8)), Just(Some(0xc4)), Just(Some(0xc5)), Just(Some(0x62)), Just(Some(0x66)), Just(Some(0xf3))]) {
        let mut bytes = bytes;
        if let Some(prefix) = prefix {
            bytes[0] = prefix;
        }
        let word = if is_wide { WordSize::Eight } else { WordSize::Four };
        let compared = compare(word, &bytes, &mut BTreeMap::new());
        prop_assert!(compared.is_ok(), "{}", compared.unwrap_err());
    }
}
