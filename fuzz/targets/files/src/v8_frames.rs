//! Memory of V8 that is written over at random, its stack among it: what is called is found where nothing is
//! written over, and else time, memory and calls are bounded.
//!
//! The first byte chooses the version; then each ten bytes are a place and a word that is written there.

use unwind_target::InterpretedFrame;
use unwind_target::interpreters::v8::image::Program;

use crate::written_image::{LEN, START, find_in};

/// As many calls are there of a frame at most: itself, and what is inlined.
const CALLS: usize = 257;

/// Where things are in the memory.
const SIZES: u64 = START + 0x400;
const MAPS: u64 = START + 0x800;
const INNER: u64 = START + 0x1000;
const OUTER: u64 = START + 0x1100;
const SHARED: u64 = START + 0x1200;
const SCRIPT: u64 = START + 0x1400;
const LINE_ENDS: u64 = START + 0x1500;
const SCOPE: u64 = START + 0x1600;
const BYTECODE: u64 = START + 0x1700;
const PLACES_OF_BYTECODE: u64 = START + 0x1800;
const CODE: u64 = START + 0x1900;
const PLACES_OF_CODE: u64 = START + 0x1a00;
const DEOPT: u64 = START + 0x1b00;
const LITERALS: u64 = START + 0x1c00;
const INLINED: u64 = START + 0x1d00;
const TEXTS: u64 = START + 0x1e00;
const WRAPPER: u64 = START + 0x1f00;
const STACK: u64 = START + 0x2000;
const INSTRUCTIONS: u64 = START + 0x4400;
const WASM: u64 = START + 0x5000;
const BUILTINS: u64 = START + 0x6000;

/// Innermost first, where each frame has its return address, its stack pointer and the CFA: native code, the
/// interpreter, optimized code, WebAssembly and a builtin function without a call of its own.
const FRAMES: [[u64; 3]; 5] = [
    [0x1000, STACK, STACK + 0x80],
    [BUILTINS + 0x100, STACK + 0x80, STACK + 0x110],
    [INSTRUCTIONS + 0x11, STACK + 0x110, STACK + 0x210],
    [INSTRUCTIONS + 0x31, STACK + 0x210, STACK + 0x310],
    [BUILTINS + 0x200, STACK + 0x310, STACK + 0x410],
];

pub(crate) fn run(data: &[u8]) {
    let Some((calls, is_doubtful)) = find(data) else { return };
    let Some((sampled, is_doubted)) = find_sampled(data) else { return };
    assert!(sampled.len() <= FRAMES.len() * CALLS, "{} calls", sampled.len());
    if !is_doubtful && !is_doubted {
        assert_eq!(sampled, calls);
    }
    assert!(calls.len() <= FRAMES.len() * CALLS, "{} calls", calls.len());
    if data.len() < 11 {
        let names: Vec<_> = calls.iter().map(ToString::to_string).collect();
        let expected = [
            "inner at file.js:2",
            "helper at file.js:1 (inlined)",
            "outer at file.js:3",
            "function",
        ];
        assert!(!is_doubted);
        assert_eq!((names, is_doubtful), (expected.map(str::to_owned).to_vec(), false));
    }
}

/// What is found in the memory, and whether there may be more.
fn find(data: &[u8]) -> Option<(Vec<InterpretedFrame>, bool)> {
    let (&choice, writes) = data.split_first()?;
    let version = &VERSIONS[usize::from(choice) % VERSIONS.len()];
    let (program, image) = image(version);
    Some(find_in(image, writes, |read| program.calls(&FRAMES, read)))
}

/// The same by what is read of the frames at a sample.
fn find_sampled(data: &[u8]) -> Option<(Vec<InterpretedFrame>, bool)> {
    let (&choice, writes) = data.split_first()?;
    let version = &VERSIONS[usize::from(choice) % VERSIONS.len()];
    let (program, image) = image(version);
    Some(find_in(image, writes, |read| program.sampled_calls(&FRAMES, check_of, || {}, read)))
}

/// A check of words.
fn check_of(words: &[u64]) -> u64 {
    words.iter().fold(1, |sum: u64, word| sum.rotate_left(7) ^ *word)
}

/// A version, with what it tells of itself by `v8dbg_*` in node's own binary.
struct Version {
    number: [u32; 2],
    constants: &'static [(&'static str, i32)],
    /// The object of code, which is before its instructions where it is part of them.
    code: u64,
    /// How far before its instructions their map is.
    header: u64,
    deopt: u64,
    positions_of_code: u64,
    positions_of_bytecode: u64,
    /// The places of a scope's flags, name and start.
    scope: [u64; 3],
    flags_are_tagged: bool,
}

const COMMON: [(&str, i32); 31] = [
    ("off_fp_context_or_frame_type", -8),
    ("off_fp_function", -16),
    ("off_fp_bytecode_array", -32),
    ("off_fp_bytecode_offset", -40),
    ("frametype_WasmFrame", 4),
    ("type_Script__", 167),
    ("FirstNonstringType", 128),
    ("class_String__length__", 12),
    ("class_SeqOneByteString__chars__", 16),
    ("class_ConsString__first__", 16),
    ("class_ConsString__second__", 24),
    ("class_SlicedString__parent__", 16),
    ("class_SlicedString__offset__", 24),
    ("class_ThinString__actual__", 16),
    ("class_ExternalString__resource__", 16),
    ("StringRepresentationMask", 7),
    ("OneByteStringTag", 8),
    ("SeqStringTag", 0),
    ("ConsStringTag", 1),
    ("SlicedStringTag", 3),
    ("ThinStringTag", 5),
    ("ExternalStringTag", 2),
    ("class_Script__source__", 8),
    ("class_Script__name__", 16),
    ("class_Script__line_ends__", 56),
    ("CodeKindFieldMask", 15),
    ("class_Map__instance_type__", 12),
    ("class_FixedArrayBase__length__", 8),
    ("class_FixedArray__data__", 16),
    ("DeoptimizationDataInlinedFunctionCountIndex", 1),
    // Of a class whose name starts alike.
    ("class_SharedFunctionInfoWrapper__shared_info__", 8),
];

const VERSIONS: [Version; 2] = [
    Version {
        number: [10, 2],
        constants: &[
            ("type_SharedFunctionInfo__", 257),
            ("type_ScopeInfo__", 256),
            ("type_BytecodeArray__", 195),
            ("type_Code__", 240),
            ("type_FixedArray__FIXED_ARRAY_TYPE", 179),
            ("type_ByteArray__", 194),
            ("class_JSFunction__shared__", 24),
            ("class_SharedFunctionInfo__name_or_scope_info__", 16),
            ("class_SharedFunctionInfo__script_or_debug_info__", 32),
            ("class_BytecodeArray__data__", 56),
            ("class_Code__instruction_start__", 128),
            ("class_Code__instruction_size__", 40),
            ("class_Code__flags__", 48),
            ("CodeKindBaseline", 11),
            ("DeoptimizationDataLiteralArrayIndex", 2),
            ("DeoptimizationDataInliningPositionsIndex", 7),
        ],
        code: INSTRUCTIONS - 128,
        header: 128,
        deopt: 16,
        positions_of_code: 24,
        positions_of_bytecode: 32,
        scope: [8, 32, 48],
        flags_are_tagged: true,
    },
    Version {
        number: [13, 6],
        constants: &[
            ("type_SharedFunctionInfo__", 282),
            ("type_ScopeInfo__", 280),
            ("type_BytecodeArray__", 186),
            ("type_InstructionStream__", 192),
            ("type_Code__", 187),
            ("type_FixedArray__FIXED_ARRAY_TYPE", 205),
            ("type_TrustedByteArray__", 196),
            ("class_JSFunction__shared__", 32),
            ("class_SharedFunctionInfo__name_or_scope_info__", 24),
            ("class_SharedFunctionInfo__raw_script__", 40),
            ("class_BytecodeArray__data__", 64),
            ("class_InstructionStream__instruction_start__", 32),
            ("class_Code__instruction_start__Address", 40),
            ("class_Code__instruction_size__", 56),
            ("class_Code__flags__", 52),
            ("CodeKindBaseline", 10),
            ("DeoptimizationDataLiteralArrayIndex", 3),
            ("DeoptimizationDataInliningPositionsIndex", 8),
        ],
        code: CODE,
        header: 32,
        deopt: 8,
        positions_of_code: 16,
        positions_of_bytecode: 24,
        scope: [8, 48, 32],
        flags_are_tagged: false,
    },
];

impl Version {
    /// The first of these constants that it has, by the starts of their names.
    fn one_of(&self, starts: &[&str]) -> u64 {
        let constant = |start: &&str| {
            let mut all = COMMON.iter().chain(self.constants);
            all.find(|(name, _)| name.starts_with(start)).map(|&(_, value)| value)
        };
        starts.iter().find_map(constant).unwrap().unsigned_abs().into()
    }
}

/// A small integer, as V8 keeps it.
const fn small(number: u64) -> u64 {
    number << 32
}

/// Numbers as V8's tables have them, with signs.
fn table(numbers: &[i64]) -> Vec<u8> {
    let mut table = Vec::new();
    for &number in numbers {
        let mut rest = (number << 1 ^ number >> 63).cast_unsigned();
        while rest > 0x7f {
            table.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        table.push(u8::try_from(rest).unwrap());
    }
    table
}

/// A position in a text, of a function that is inlined or not.
const fn position(character: i64, inlined: Option<i64>) -> i64 {
    let inlined = match inlined {
        Some(index) => (index + 1) << 31,
        None => 0,
    };
    inlined | (character + 1) << 1
}

fn image(version: &Version) -> (Program, Vec<u8>) {
    let mut program = Program::new(version.number);
    let mut image = vec![0; LEN];
    let mut put = |addr: u64, bytes: &[u8]| {
        let at = usize::try_from(addr - START).unwrap();
        image[at..at + bytes.len()].copy_from_slice(bytes);
    };
    for ((name, value), addr) in COMMON.iter().chain(version.constants).zip((START..).step_by(4)) {
        put(addr, &value.to_le_bytes());
        program.constants.insert(name.as_bytes().to_vec(), addr);
    }
    put(SIZES, &[1; 3 * 208]);
    program.sizes = SIZES;
    program.builtins = BUILTINS..BUILTINS + 0x1000;
    program.compiled = INSTRUCTIONS..BUILTINS;

    // A map for each type.
    let mut maps = MAPS;
    let mut map = |put: &mut dyn FnMut(u64, &[u8]), kind: u64| {
        maps += 0x20;
        put(maps + 12, &u16::try_from(kind).unwrap().to_le_bytes());
        (maps | 1).to_le_bytes()
    };
    let text = map(&mut put, 8);
    let function = map(&mut put, 1000);
    let code = map(&mut put, version.one_of(&["type_Code__"]));
    let kinds = [
        "type_SharedFunctionInfo__",
        "type_ScopeInfo__",
        "type_Script__",
        "type_BytecodeArray__",
        "type_FixedArray__FIXED_ARRAY_TYPE",
    ];
    let [shared, scope, script, bytecode, array] =
        kinds.map(|kind| map(&mut put, version.one_of(&[kind])));
    let bytes = map(&mut put, version.one_of(&["type_TrustedByteArray__", "type_ByteArray__"]));
    let stream = map(&mut put, version.one_of(&["type_InstructionStream__", "type_Code__"]));

    let texts = ["helper", "inner", "outer", "file.js", "0123\n5678\nabcd\n"];
    let text_at = |number: u64| TEXTS + number * 0x20;
    for (number, value) in (0..).zip(texts) {
        put(text_at(number), &text);
        put(text_at(number) + 12, &u32::try_from(value.len()).unwrap().to_le_bytes());
        put(text_at(number) + 16, value.as_bytes());
    }
    let reference = |addr: u64| (addr | 1).to_le_bytes();
    put(SCRIPT, &script);
    put(SCRIPT + 8, &reference(text_at(4)));
    put(SCRIPT + 16, &reference(text_at(3)));
    put(SCRIPT + 56, &reference(LINE_ENDS));
    put(LINE_ENDS, &array);
    put(LINE_ENDS + 8, &small(3).to_le_bytes());
    for (at, end) in [(16, 4), (24, 9), (32, 14)] {
        put(LINE_ENDS + at, &small(end).to_le_bytes());
    }
    // The last has its name in what is known of its variables.
    let [flags, own, start] = version.scope;
    put(SCOPE, &scope);
    let kind = 2_u64 | 1 << 12;
    let kind = if version.flags_are_tagged { small(kind) } else { kind };
    put(SCOPE + flags, &kind.to_le_bytes());
    put(SCOPE + own, &reference(text_at(2)));
    put(SCOPE + start, &small(10).to_le_bytes());
    let name = version.one_of(&["class_SharedFunctionInfo__name"]);
    let of_script = version.one_of(&[
        "class_SharedFunctionInfo__raw_script__",
        "class_SharedFunctionInfo__script_or_debug_info__",
    ]);
    for (number, named) in (0..).zip([text_at(0), text_at(1), SCOPE]) {
        let at = SHARED + number * 0x80;
        put(at, &shared);
        put(at + name, &reference(named));
        put(at + of_script, &reference(SCRIPT));
    }
    let of_function = version.one_of(&["class_JSFunction__shared__"]);
    for (at, number) in [(INNER, 1), (OUTER, 2)] {
        put(at, &function);
        put(at + of_function, &reference(SHARED + number * 0x80));
    }

    let put_table = |put: &mut dyn FnMut(u64, &[u8]), at: u64, table: &[u8]| {
        put(at, &bytes);
        put(at + 8, &small(u64::try_from(table.len()).unwrap()).to_le_bytes());
        put(at + 16, table);
    };
    // The sixth byte of bytecode is of character 6, which is in the second line.
    put_table(&mut put, PLACES_OF_BYTECODE, &table(&[6, position(6, None)]));
    put(BYTECODE, &bytecode);
    put(BYTECODE + 8, &small(9).to_le_bytes());
    put(BYTECODE + version.positions_of_bytecode, &reference(PLACES_OF_BYTECODE));
    // The instruction before 0x11 is of character 2 of what is inlined at character 11.
    put_table(&mut put, PLACES_OF_CODE, &table(&[0x11, position(2, Some(0))]));
    put(version.code, &code);
    put(INSTRUCTIONS - version.header, &stream);
    if version.header == 32 {
        put(INSTRUCTIONS - 24, &reference(CODE));
        put(CODE + 40, &INSTRUCTIONS.to_le_bytes());
    }
    put(version.code + version.deopt, &reference(DEOPT));
    put(version.code + version.positions_of_code, &reference(PLACES_OF_CODE));
    let [size, flags, baseline] =
        ["class_Code__instruction_size__", "class_Code__flags__", "CodeKindBaseline"]
            .map(|name| version.one_of(&[name]));
    put(version.code + size, &0x100_u32.to_le_bytes());
    put(version.code + flags, &u32::try_from(baseline + 2).unwrap().to_le_bytes());
    let [inlined, literals, places] =
        ["InlinedFunctionCountIndex", "LiteralArrayIndex", "InliningPositionsIndex"]
            .map(|name| 16 + 8 * version.one_of(&[&format!("DeoptimizationData{name}")]));
    put(DEOPT, &array);
    put(DEOPT + 8, &small(9).to_le_bytes());
    put(DEOPT + inlined, &small(1).to_le_bytes());
    put(DEOPT + literals, &reference(LITERALS));
    put(DEOPT + places, &reference(INLINED));
    // What it was made of: by itself, or in something of the same kind as the others.
    let made_of = SHARED + 2 * 0x80;
    put(WRAPPER, &function);
    put(WRAPPER + 8, &reference(made_of));
    let made_of = if version.header == 32 { WRAPPER } else { made_of };
    put(DEOPT + places - 8, &reference(made_of));
    put(LITERALS, &array);
    put(LITERALS + 8, &small(1).to_le_bytes());
    put(LITERALS + 16, &reference(SHARED));
    put_table(&mut put, INLINED, &position(11, None).to_le_bytes());
    put(INLINED + 8, &small(16).to_le_bytes());

    // A call comes by a jump.
    put(WASM - 0x10, &[0xe9, 0xb, 0, 0, 0]);
    // push rbp; mov rbp, rsp; push 8; mov rsp, rbp; pop rbp; ret
    put(WASM, &[0x55, 0x48, 0x89, 0xe5, 0x6a, 4 << 1, 0x48, 0x8b, 0xe5, 0x5d, 0xc3]);

    // What each frame has below its frame pointer: a context or its kind, and its function.
    let data = version.one_of(&["class_BytecodeArray__data__"]);
    let slots: [(u64, u64, u64); 4] = [
        (0x100, SCOPE | 1, INNER | 1),
        (0x200, SCOPE | 1, OUTER | 1),
        (0x300, 4 << 1, 0),
        (0x400, 2 << 1, 0),
    ];
    for (fp, marker, function) in slots {
        put(STACK + fp - 8, &marker.to_le_bytes());
        put(STACK + fp - 16, &function.to_le_bytes());
    }
    put(STACK + 0x100 - 32, &reference(BYTECODE));
    put(STACK + 0x100 - 40, &small(5 + data - 1).to_le_bytes());
    (program, image)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of the versions, and words that are written over its memory.
    fn written(choice: u8, words: &[(u64, u64)]) -> (Vec<String>, bool) {
        let mut data = vec![choice];
        for (addr, word) in words {
            data.extend(u16::try_from(addr - START).unwrap().to_le_bytes());
            data.extend(word.to_le_bytes());
        }
        let (calls, is_doubtful) = find(&data).unwrap();
        (calls.iter().map(ToString::to_string).collect(), is_doubtful)
    }

    #[test]
    fn calls_of_memory_as_v8_makes_it_are_found() {
        (0..2).for_each(|choice| run(&[choice]));
    }

    #[test]
    fn a_function_that_has_changed_since_its_sample_has_no_call() {
        for version in &VERSIONS {
            // Its variables, its bytecode, and nothing.
            for (changed, rest) in [(SCOPE + 16, 0), (BYTECODE + 16, 3), (TEXTS, 4)] {
                let (program, image) = image(version);
                let is_later = std::cell::Cell::new(false);
                let (calls, is_doubtful) = find_in(image, &[], |read| {
                    program.sampled_calls(
                        &FRAMES,
                        check_of,
                        || is_later.set(true),
                        |addr, buf| {
                            let is_read = read(addr, buf);
                            let at =
                                changed.checked_sub(addr).and_then(|at| usize::try_from(at).ok());
                            let byte = at.filter(|_| is_later.get()).and_then(|at| buf.get_mut(at));
                            if let Some(byte) = byte.filter(|_| rest < 4) {
                                *byte ^= 0x10;
                            }
                            is_read
                        },
                    )
                });
                let own = calls.iter().filter(|call| call.to_string() != "function").count();
                assert_eq!((own < 3, is_doubtful), (rest < 4, rest < 4), "{changed:#x} {calls:?}");
            }
        }
    }

    /// The calls of a frame that does not stand, at an instruction, by words that are written over the memory.
    fn frameless(choice: usize, pc: u64, words: &[(u64, u64)]) -> (Vec<String>, bool) {
        let (program, mut image) = image(&VERSIONS[choice]);
        for (addr, word) in words {
            let at = usize::try_from(addr - START).unwrap();
            image[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let frames = [[pc, STACK + 0x100, STACK + 0x108]];
        let (calls, is_doubtful) =
            find_in(image, &[], |read| program.sampled_calls(&frames, check_of, || {}, read));
        (calls.iter().map(ToString::to_string).collect(), is_doubtful)
    }

    #[test]
    fn code_without_a_frame_has_the_call_of_what_it_was_made_of() {
        for (choice, version) in VERSIONS.iter().enumerate() {
            let outer = (vec!["outer in file.js, starts at line 3".to_owned()], false);
            for at in [0, 1, 0x80, 0xff] {
                assert_eq!(frameless(choice, INSTRUCTIONS + at, &[]), outer, "{at:#x}");
            }
            let places = 16 + 8 * version.one_of(&["DeoptimizationDataInliningPositionsIndex"]);
            for word in [0, SCRIPT | 1, 1 << 40 | 1] {
                let (calls, is_doubtful) =
                    frameless(choice, INSTRUCTIONS + 0x80, &[(DEOPT + places - 8, word)]);
                assert!(is_doubtful && calls.is_empty(), "{calls:?}");
            }
        }
    }

    #[test]
    fn webassembly_without_a_frame_is_known_by_what_it_pushes() {
        for choice in 0..2 {
            let wasm = (vec!["function".to_owned()], false);
            for pc in [WASM - 0x10, WASM, WASM + 1, WASM + 4, WASM + 6, WASM + 9, WASM + 10] {
                assert_eq!(frameless(choice, pc, &[]), wasm, "{pc:#x}");
            }
            // What another function has pushed, and what follows its end.
            let other = [(WASM, 0x8b48_106a_e589_4855)];
            for (at, words) in [(10, &other[..]), (11, &[]), (0x100, &[])] {
                let (calls, is_doubtful) = frameless(choice, WASM + at, words);
                assert!(is_doubtful && calls.is_empty(), "{at} {calls:?}");
            }
        }
    }

    #[test]
    fn a_function_that_is_inlined_in_itself_without_end_is_marked() {
        for choice in 0..2 {
            let own = position(11, Some(0)).cast_unsigned();
            let (calls, is_doubtful) = written(choice, &[(INLINED + 16, own)]);
            assert!(is_doubtful && calls == ["inner at file.js:2", "function"], "{calls:?}");
        }
    }

    #[test]
    fn an_exit_of_code_that_is_no_longer_valid_is_of_no_inlined_function() {
        for (choice, places) in [(0, 7), (1, 8)] {
            let exits = |at| [(DEOPT + 8, small(12)), (DEOPT + 16 + 8 * (places + 1), small(at))];
            let (calls, is_doubtful) = written(choice, &exits(0x11));
            assert!(is_doubtful && !calls.iter().any(|call| call.contains("helper")), "{calls:?}");
            let (calls, is_doubtful) = written(choice, &exits(0x12));
            assert!(!is_doubtful && calls.len() == 4, "{calls:?}");
        }
    }

    #[test]
    fn frames_that_have_neither_a_function_nor_a_kind_are_marked() {
        for choice in 0..2 {
            for (place, word) in [(0x200 - 16, 0), (0x200 - 16, STACK | 1), (0x300 - 8, 1 << 40)] {
                let (calls, is_doubtful) = written(choice, &[(STACK + place, word)]);
                assert!(is_doubtful && calls.len() < 4, "{place:#x} {calls:?}");
            }
        }
    }

    #[test]
    fn texts_and_tables_of_any_length_are_cut_or_marked() {
        for choice in 0..2 {
            let (calls, _) = written(choice, &[(TEXTS + 0x28, 0xffff_ffff_0000_0000)]);
            assert!(calls[0].len() < 8192, "{calls:?}");
            for table in [PLACES_OF_BYTECODE, PLACES_OF_CODE] {
                let (calls, is_doubtful) = written(choice, &[(table + 8, small(1 << 30))]);
                assert!(is_doubtful && calls.len() < 4, "{calls:?}");
            }
        }
    }

    #[test]
    fn memory_that_is_written_over_at_random_is_read_in_bounds() {
        let cases =
            std::env::var("UNWIND_HOSTILE_CASES").map_or(2_000, |cases| cases.parse().unwrap());
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut different = 0_u32;
        for _ in 0..cases {
            let mut data = vec![random().to_le_bytes()[0]];
            for _ in 0..1 + random() % 12 {
                // Where the image has something, mostly; addresses in it, small integers, or anything.
                let at = match random() % 4 {
                    0 => 0x2000 + random() % 0x420,
                    1 => 0x4380 + random() % 0x100,
                    _ => 0x800 + random() % 0x1700,
                };
                let word = match random() % 4 {
                    0 => START + random() % 0x8000,
                    1 => (START + 0x800 + (random() % 0x180) * 0x10) | 1,
                    2 => small(1 << (random() % 32)),
                    _ => random(),
                };
                data.extend(u16::try_from(at & !7).unwrap().to_le_bytes());
                data.extend(word.to_le_bytes());
            }
            run(&data);
            different +=
                u32::from(find(&data).is_some_and(|(calls, doubt)| doubt || calls.len() < 4));
        }
        // Otherwise the image is not what is written over.
        assert!(different > cases / 20, "{different} of {cases}");
    }
}
