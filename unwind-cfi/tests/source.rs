//! Walks by the call frame information of all modules of an address space.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use testdata::{CfiBuilder, Cie};
use unwind_cfi::{
    CfiAbi, CfiError, CfiScratch, CfiSection, CfiSource, CfiTable, EncodedPointer, Entries,
    IndexEntry, RemoteCfi, RemoteCfiError, RemoteCfiSource, index,
};
use unwind_core::{
    Arch, End, KeyedRange, Memory, Module, ModuleMap, ReadError, RowKey, RowKeys, RowSource,
    SliceMemory, StepError, VirtAddr, Walker,
};
use unwind_x86::{Ia32, Ia32Regs, X86_64, X86_64Regs};

const STACK: u64 = 0x7000_0000;
const ADVANCE4: u8 = 0x44;
const DEF_CFA_OFFSET: u8 = 0x0e;
/// The caller's pc is undefined.
const UNDEFINED: u8 = 0x07;

/// A `.debug_frame` with a function at each of these addresses, of 0x100 bytes and with
/// these instructions.
fn debug_frame(cie: &Cie, functions: &[(u64, &[u8])]) -> Vec<u8> {
    let mut builder = CfiBuilder::debug_frame();
    let cie = builder.cie(cie);
    for &(start, instructions) in functions {
        builder.fde(cie, start, 0x100, instructions);
    }
    builder.build().to_vec()
}

fn cie(address: u8) -> Cie {
    let rules = if address == 8 { vec![0x0c, 7, 8, 0x90, 1] } else { vec![0x0c, 4, 4, 0x88, 1] };
    let (ra, data_align) = if address == 8 { (16, -8) } else { (8, -4) };
    Cie { augmentation: b"", data: Vec::new(), ra, data_align, instructions: rules, ..Cie::amd64() }
}

fn table<'a>(bytes: &'a [u8], abi: CfiAbi, slots: &'a mut [IndexEntry]) -> CfiTable<'a> {
    let section = CfiSection::debug_frame(bytes);
    let index = index(Entries::new(section, abi), slots).unwrap();
    CfiTable::with_index(section, abi, index)
}

fn module(start: u64, table: CfiTable<'_>) -> Module<CfiTable<'_>> {
    Module { text: VirtAddr::new(start)..VirtAddr::new(start + 0x1000), table }
}

fn walk<A: Arch>(
    arch: A,
    source: CfiSource<'_, '_, 4>,
    regs: A::Regs,
    stack: &[u64],
) -> (Vec<u64>, End<CfiError>) {
    let words: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut memory = SliceMemory::new(VirtAddr::new(STACK), &words);
    let mut walker = Walker::new(arch, source);
    let mut frames = walker.frames(regs, &mut memory);
    let pcs = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    (pcs, frames.end().unwrap())
}

#[test]
fn rows_are_those_of_the_module_that_holds_the_address() {
    let main = debug_frame(
        &cie(8),
        &[(0x1000, &[UNDEFINED, 16]), (0x1100, &[ADVANCE4, DEF_CFA_OFFSET, 24])],
    );
    let library = debug_frame(&cie(8), &[(0x9000, &[ADVANCE4, DEF_CFA_OFFSET, 16])]);
    let mut slots = [[IndexEntry::default(); 4]; 2];
    let [of_main, of_library] = &mut slots;
    let mut modules = ModuleMap::new();
    modules.add(module(0x1000, table(&main, CfiAbi::X86_64, of_main))).unwrap();
    modules.add(module(0x9000, table(&library, CfiAbi::X86_64, of_library))).unwrap();
    let regs = X86_64Regs::new(0x9010, STACK, 0);
    let stack = [0, 0x1110, 0, 0, 0x1005, 0];
    let walked = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &stack);
    assert_eq!(walked, (vec![0x9010, 0x1110, 0x1005], End::Outermost));
    // A module without the address.
    let regs = X86_64Regs::new(0x5000, STACK, 0);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &stack);
    assert_eq!((pcs, end), (vec![0x5000], End::NoRow));
}

#[test]
fn code_of_another_word_size_ends_the_walk_typed() {
    let wide = debug_frame(&cie(8), &[(0x1000, &[UNDEFINED, 16])]);
    let mut slots = [IndexEntry::default(); 4];
    let mut modules = ModuleMap::new();
    modules.add(module(0x1000, table(&wide, CfiAbi::X86_64, &mut slots))).unwrap();
    let narrow = walk(Ia32::FLAT, CfiSource::new(&modules), Ia32Regs::new(0x1010, 0x7000, 0), &[]);
    assert_eq!(narrow, (vec![0x1010], End::Table(CfiError::AddressSize(8))));
    let regs = X86_64Regs::new(0x1010, STACK, 0);
    let wide = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &[]);
    assert_eq!(wide, (vec![0x1010], End::Outermost));
}

/// The CFA of the caller's caller is on `rbx`, which the innermost function has saved.
#[test]
fn registers_that_a_later_row_needs_come_from_the_rules_of_the_frames_before() {
    let saves_rbx = [DEF_CFA_OFFSET, 32, 0x83, 2];
    let on_rbx = [0x0c, 3, 16];
    let main = debug_frame(
        &cie(8),
        &[(0x1000, &saves_rbx), (0x1100, &[]), (0x1200, &on_rbx), (0x1300, &[UNDEFINED, 16])],
    );
    let mut slots = [IndexEntry::default(); 4];
    let mut modules = ModuleMap::new();
    modules.add(module(0x1000, table(&main, CfiAbi::X86_64, &mut slots))).unwrap();
    let regs = X86_64Regs::new(0x1010, STACK, 0);
    // The saved word, then the return addresses, the last of them where `rbx` points.
    let stack = [0, 0, STACK + 0x38, 0x1110, 0x1210, 0, 0, 0, 0x1310, 0];
    let walked = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &stack);
    assert_eq!(walked, (vec![0x1010, 0x1110, 0x1210, 0x1310], End::Outermost));
    // Without it saved, no rule says what it was.
    let unsaved = debug_frame(
        &cie(8),
        &[(0x1000, &[DEF_CFA_OFFSET, 32, 0x07, 3]), (0x1100, &[]), (0x1200, &on_rbx)],
    );
    let mut slots = [IndexEntry::default(); 4];
    let mut modules = ModuleMap::new();
    modules.add(module(0x1000, table(&unsaved, CfiAbi::X86_64, &mut slots))).unwrap();
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &stack);
    assert_eq!(pcs, [0x1010, 0x1110, 0x1210]);
    assert!(matches!(end, End::Step(StepError::UnknownRegister(_))), "{end}");
}

/// The rows of libgcc's `_Unwind_RaiseException`, in short: the second part of its body goes to where the
/// exception is caught.
#[test]
fn rows_of_a_function_that_returns_to_a_handler_say_so_where_it_may_be_on_its_way() {
    const REMEMBER: u8 = 0x0a;
    const RESTORE: u8 = 0x0b;
    // The numbers of the data registers, of that by which it goes there, the stack and frame pointer.
    for (abi, data, way, sp, fp, word) in
        [(CfiAbi::X86_64, [0, 1], 2, 7, 6, 8), (CfiAbi::Ia32, [0, 2], 1, 4, 5, 4)]
    {
        let prologue = [ADVANCE4, 0x0c, fp, 2 * word, 0x80 | fp, 2];
        let save = |number: u8, slot: u8| [0x80 | number, slot];
        let [first, second] = [save(data[0], 9), save(data[1], 8)];
        let ordinary = [ADVANCE4, REMEMBER, 0x0c, sp, word, ADVANCE4, RESTORE];
        let to_handler = [ADVANCE4, 0x0c, way, word, 0xc0 | fp, ADVANCE4, 0x0d, sp];
        let find = |parts: &[&[u8]]| {
            let mut builder = CfiBuilder::eh_frame(0x9000);
            let Cie { ra, data_align, instructions, .. } = cie(word);
            let cie = builder.cie(&Cie { ra, data_align, instructions, ..Cie::amd64() });
            builder.fde(cie, 0x1000, 0x100, &parts.concat());
            let section = CfiSection::eh_frame(builder.build(), 0x9000);
            let mut slots = [IndexEntry::default()];
            let index = index(Entries::new(section, abi), &mut slots).unwrap();
            let table = CfiTable::with_index(section, abi, index);
            [0x1000, 0x1004, 0x1008, 0x100c, 0x1010]
                .map(|pc| table.find_row(pc).unwrap().unwrap().is_eh_return())
        };
        let [no, yes] = [false, true];
        let all: [&[u8]; 5] = [&prologue, &first, &second, &ordinary, &to_handler];
        // Before, by itself, and in the part after the ordinary return.
        assert_eq!(find(&all), [no, no, yes, yes, yes], "{abi:?}");
        // By the order of addresses alone it is not known that it returns.
        assert_eq!(find(&[&prologue, &first, &second, &to_handler]), [no, yes, yes, yes, yes]);
        assert_eq!(find(&[&prologue, &first, &second]), [no, yes, yes, yes, yes]);
        // One of the registers, all three, one that is restored.
        assert_eq!(find(&[&prologue, &first, &to_handler]), [no; 5]);
        let third = save(way, 7);
        assert_eq!(find(&[&prologue, &first, &second, &third, &to_handler]), [no; 5]);
        let restored = [0xc0 | data[1]];
        assert_eq!(find(&[&prologue, &first, &second, &restored, &to_handler]), [no; 5]);
    }
}

#[test]
fn what_is_wrong_with_an_entry_ends_the_walk_typed() {
    let main = debug_frame(&cie(8), &[(0x1000, &[0x3f])]);
    let mut slots = [IndexEntry::default(); 4];
    let mut modules = ModuleMap::new();
    modules.add(module(0x1000, table(&main, CfiAbi::X86_64, &mut slots))).unwrap();
    let regs = X86_64Regs::new(0x1010, STACK, 0);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &[0; 8]);
    assert_eq!((pcs, end), (vec![0x1010], End::Table(CfiError::Instruction(0x3f))));
}

#[test]
fn tables_say_which_code_they_are_of() {
    let main = debug_frame(&cie(8), &[(0x1000, &[])]);
    let mut slots = [IndexEntry::default(); 4];
    let table = table(&main, CfiAbi::X86_64, &mut slots);
    assert_eq!(table.abi(), CfiAbi::X86_64);
    assert_eq!(table.find_code(0x10ff), Ok(Some(0x1000..0x1100)));
    assert_eq!(table.find_code(0x1100), Ok(None));
    assert_eq!(table.bias(0x7000).find_code(0x8000), Ok(Some(0x8000..0x8100)));
}

/// A function at 0x1000 that keeps 8 bytes from 0x1004 on, and its search table.
const EH_FRAME: [u8; 44] = [
    0x14,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    1,
    b'z',
    b'R',
    0,
    1,
    0x78,
    16,
    1,
    0x1b,
    0x0c,
    7,
    8,
    0x90,
    1,
    0,
    0,
    0x10,
    0,
    0,
    0,
    0x1c,
    0,
    0,
    0,
    0xe0,
    0x0f,
    0,
    0,
    8,
    0,
    0,
    0,
    0,
    ADVANCE4,
    DEF_CFA_OFFSET,
    16,
];
const HEADER: [u8; 20] =
    [1, 0x1b, 3, 0x3b, 0xfc, 0xfe, 0xff, 0xff, 1, 0, 0, 0, 0, 0x0f, 0, 0, 0x18, 0xff, 0xff, 0xff];
const HEADER_ADDR: u64 = 0x100;

/// Words of a stack, with others above: where these are absent a zero is no end of it.
fn on_stack(words: &[u64]) -> Vec<u8> {
    words.iter().chain(&[1; 64]).flat_map(|word| word.to_le_bytes()).collect()
}

/// Memory of which only these parts are here.
struct Space<'a>(Vec<(u64, &'a [u8])>);

impl Memory for Space<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let bytes = self.0.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(addr.get().checked_sub(*start)?).ok()?;
            bytes.get(at..)?.get(..buf.len())
        });
        buf.copy_from_slice(bytes.ok_or(ReadError::NotResident)?);
        Ok(())
    }
}

#[test]
fn objects_in_the_walked_memory_have_the_rows_of_their_bytes_and_absent_pages_end_the_walk() {
    let stack = on_stack(&[0, 0x1006, 0, 0]);
    let parts = [(0, &EH_FRAME[..]), (HEADER_ADDR, &HEADER[..]), (STACK, &*stack)];
    let mut space = Space(parts.to_vec());
    let object = RemoteCfi::open(&mut space, CfiAbi::X86_64, HEADER_ADDR).unwrap().unwrap();
    let text = VirtAddr::new(0x1000)..VirtAddr::new(0x2000);
    let mut modules = ModuleMap::<_, 4>::new();
    modules.add(Module { text, table: object.with_id(9) }).unwrap();
    let walk = |space: &mut Space<'_>| {
        let mut scratch = CfiScratch::new();
        let mut walker =
            Walker::new(X86_64::FOUR_LEVEL, RemoteCfiSource::new(&modules, &mut scratch));
        let mut frames = walker.frames(X86_64Regs::new(0x1004, STACK, 0), space);
        let pcs: Vec<_> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
        (pcs, frames.end().unwrap())
    };
    assert_eq!(walk(&mut space), (vec![0x1004, 0x1006], End::ZeroReturnAddress));
    let mut cut = Space(parts[1..].to_vec());
    let (pcs, end) = walk(&mut cut);
    assert_eq!(pcs, [0x1004]);
    assert!(end.is_retryable(), "{end}");
    let mut scratch = CfiScratch::new();
    let mut narrow = Walker::new(Ia32::FLAT, RemoteCfiSource::new(&modules, &mut scratch));
    let mut frames = narrow.frames(Ia32Regs::new(0x1004, 0x7000, 0), &mut space);
    assert_eq!(frames.by_ref().count(), 1);
    let other = RemoteCfiError::Cfi(CfiError::AddressSize(8));
    assert_eq!(frames.end(), Some(End::Table(other)));
}

/// An `.eh_frame` at address 0 with these functions, as in [`debug_frame`], and the search
/// table at [`HEADER_ADDR`] that leads to them.
fn searched(functions: &[(u64, &[u8])]) -> (Vec<u8>, Vec<u8>) {
    let mut builder = CfiBuilder::eh_frame(0);
    let cie = builder.cie(&Cie::amd64());
    let places: Vec<_> = functions
        .iter()
        .map(|&(start, instructions)| (start, builder.fde(cie, start, 0x100, instructions)))
        .collect();
    let relative = |to: u64, from: u64| i32::try_from(to.cast_signed() - from.cast_signed());
    let mut header = vec![1, 0x1b, 3, 0x3b];
    header.extend(relative(0, HEADER_ADDR + 4).unwrap().to_le_bytes());
    header.extend(u32::try_from(places.len()).unwrap().to_le_bytes());
    for word in places.iter().flat_map(|&(start, fde)| [start, fde]) {
        header.extend(relative(word, HEADER_ADDR).unwrap().to_le_bytes());
    }
    (builder.build().to_vec(), header)
}

#[test]
fn registers_come_from_the_rules_of_objects_in_the_walked_memory_too() {
    let saves_rbx = [DEF_CFA_OFFSET, 32, 0x83, 2];
    let functions = [(0x1000, &saves_rbx[..]), (0x1100, &[]), (0x1200, &[0x0c, 3, 16])];
    let (frame, header) = searched(&functions);
    assert!(u64::try_from(frame.len()).unwrap() < HEADER_ADDR, "they lie one after the other");
    let stack = [0, 0, STACK + 0x38, 0x1110, 0x1210, 0, 0, 0, 0_u64, 0];
    let stack = on_stack(&stack);
    let mut space = Space(vec![(0, &frame), (HEADER_ADDR, &header), (STACK, &stack)]);
    let object = RemoteCfi::open(&mut space, CfiAbi::X86_64, HEADER_ADDR).unwrap().unwrap();
    let text = VirtAddr::new(0x1000)..VirtAddr::new(0x2000);
    let mut modules = ModuleMap::<_, 4>::new();
    modules.add(Module { text, table: object }).unwrap();
    let mut scratch = CfiScratch::new();
    let source = RemoteCfiSource::new(&modules, &mut scratch);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source);
    let mut frames = walker.frames(X86_64Regs::new(0x1010, STACK, 0), &mut space);
    let pcs: Vec<_> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!(pcs, [0x1010, 0x1110, 0x1210]);
    assert_eq!(frames.end(), Some(End::ZeroReturnAddress), "its CFA is on the caller's rbx");
}

#[test]
fn a_row_has_the_same_key_wherever_its_object_is_loaded() {
    let section = CfiSection::eh_frame(&EH_FRAME, 0);
    let table = CfiTable::with_search_table(section, CfiAbi::X86_64, &HEADER, HEADER_ADDR);
    let table = table.unwrap().unwrap();
    let mut parts = Space(vec![(HEADER_ADDR, &HEADER[..])]);
    let object = RemoteCfi::open(&mut parts, CfiAbi::X86_64, HEADER_ADDR).unwrap().unwrap();
    let (mut modules, mut objects) = (ModuleMap::<_, 4>::new(), ModuleMap::<_, 4>::new());
    for bias in [0, 0x5_0000] {
        let text = VirtAddr::new(bias + 0x1000)..VirtAddr::new(bias + 0x2000);
        let table = table.with_id(7).bias(bias);
        modules.add(Module { text: text.clone(), table }).unwrap();
        objects.add(Module { text, table: object.with_id(7).bias(bias) }).unwrap();
    }
    let text = VirtAddr::new(0x9000)..VirtAddr::new(0xa000);
    modules.add(Module { text, table }).unwrap();
    let mut scratch = CfiScratch::new();
    let source = CfiSource::new(&modules);
    let remote = RemoteCfiSource::new(&objects, &mut scratch);
    let key = |addr| RowSource::<X86_64>::row_key(&source, VirtAddr::new(addr));
    let remote_key = |addr| RowSource::<X86_64>::row_key(&remote, VirtAddr::new(addr));
    for addr in [0x1004, 0x5_1004] {
        let expected = Some(RowKey { table: 7, offset: 0x1004 });
        assert_eq!([key(addr), remote_key(addr)], [expected; 2]);
    }
    // All of an object's code is one range of keys.
    let mut scratch = CfiScratch::new();
    let mut remote = RemoteCfiSource::new(&objects, &mut scratch);
    let addr = VirtAddr::new(0x5_1004);
    let ranges = [RowKeys::find(&mut CfiSource::new(&modules), addr), remote.find(addr)];
    let text = VirtAddr::new(0x5_1000)..VirtAddr::new(0x5_2000);
    let range = KeyedRange { text, key: RowKey { table: 7, offset: 0x1000 } };
    assert_eq!(ranges, [Some(range.clone()), Some(range)]);
    assert_eq!(RowKeys::find(&mut CfiSource::new(&modules), VirtAddr::new(0x9004)), None);
    // Without a number, without an object, and as other code.
    assert_eq!([key(0x9004), key(0x4000), remote_key(0x4000)], [None; 3]);
    assert_eq!(RowSource::<Ia32>::row_key(&source, VirtAddr::new(0x1004)), None);
}

#[test]
fn what_exceptions_need_is_that_of_the_cie_and_of_the_fde() {
    let section_addr = 0x5000_u64;
    let from = |at: u64, to: u64| {
        i32::try_from(to.wrapping_sub(section_addr + at).cast_signed()).unwrap().to_le_bytes()
    };
    let mut bytes = vec![28, 0, 0, 0, 0, 0, 0, 0, 1];
    bytes.extend(b"zPLR\0\x01\x78\x10\x07\x9b");
    bytes.extend(from(19, 0x9000));
    // The encodings of the language's data and of code; CFA = rsp+8, RA at CFA-8.
    bytes.extend([0x1b, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0]);
    bytes.extend([20, 0, 0, 0, 36, 0, 0, 0]);
    bytes.extend(from(40, 0x1000));
    bytes.extend([0, 1, 0, 0, 4]);
    bytes.extend(from(49, 0xa000));
    bytes.extend([0; 3]);
    let section = CfiSection::eh_frame(&bytes, section_addr);
    let slots = &mut [IndexEntry::default(); 1];
    let index = index(Entries::new(section, CfiAbi::X86_64), slots).unwrap();
    let table = CfiTable::with_index(section, CfiAbi::X86_64, index);
    let found = table.find_exception_data(0x1010).unwrap().unwrap();
    let pointer = |addr, is_indirect| Some(EncodedPointer { addr, is_indirect });
    assert_eq!((found.personality, found.lsda), (pointer(0x9000, true), pointer(0xa000, false)));
    // Zero is none.
    let mut none = bytes.clone();
    none[49..53].fill(0);
    let section = CfiSection::eh_frame(&none, section_addr);
    let table = CfiTable::with_index(section, CfiAbi::X86_64, index);
    assert_eq!(table.find_exception_data(0x1010).unwrap().unwrap().lsda, None);
}

#[test]
fn u2_a_cfa_that_was_saved_leads_through_a_stack_that_was_aligned() {
    // As libcrypto: cfa = *(rsp+16)+8.
    let saved = [0x0f, 5, 0x77, 16, 0x06, 0x23, 8];
    let functions = [(0x1000, &saved[..]), (0x1100, &[0x0c, 6, 16, 0x86, 2]), (0x1200, &[])];
    let stack = [0, 0, STACK + 0x28, 0, STACK + 0x40, 0x1110, 0, 0, STACK, 0x1210, 0];
    let bytes = debug_frame(&cie(8), &functions);
    let mut slots = [IndexEntry::default(); 4];
    let mut modules = ModuleMap::<_, 4>::new();
    modules.add(module(0x1000, table(&bytes, CfiAbi::X86_64, &mut slots))).unwrap();
    let regs = X86_64Regs::new(0x1010, STACK, STACK + 0x40);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &stack);
    assert_eq!((pcs, end), (vec![0x1010, 0x1110, 0x1210], End::ZeroReturnAddress));
}

#[test]
fn u3_code_with_the_mark_of_a_signal_frame_goes_by_its_rules() {
    // As OCaml's caml_c_call: the stack of before is at the top of this one, and may be lower.
    let switched = [0x0f, 5, 0x77, 16, 0x06, 0x23, 8];
    let mut builder = CfiBuilder::eh_frame(0);
    let mut signal = Cie::amd64();
    signal.augmentation = b"zRS";
    let (plain, signal) = (builder.cie(&Cie::amd64()), builder.cie(&signal));
    builder.fde(signal, 0x1000, 0x100, &switched);
    builder.fde(plain, 0x1100, 0x100, &[]);
    builder.fde(plain, 0x1200, 0x100, &[UNDEFINED, 16]);
    let bytes = builder.build().to_vec();
    let section = CfiSection::eh_frame(&bytes, 0);
    let mut slots = [IndexEntry::default(); 4];
    let index = index(Entries::new(section, CfiAbi::X86_64), &mut slots).unwrap();
    let mut modules = ModuleMap::<_, 4>::new();
    modules.add(module(0x1000, CfiTable::with_index(section, CfiAbi::X86_64, index))).unwrap();
    let stack = [0, 0x1110, 0x1210, 0, 0, 0, STACK + 8, 0];
    let regs = X86_64Regs::new(0x1010, STACK + 0x20, 7);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, CfiSource::new(&modules), regs, &stack);
    assert_eq!((pcs, end), (vec![0x1010, 0x1110, 0x1210], End::Outermost));
}
