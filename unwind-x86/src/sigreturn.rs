//! Signal trampolines, known by their instructions.
//!
//! A signal handler returns to a few instructions that make one system call.
//! Debuggers and unwinders look for the bytes of the kernel's and of the C libraries;
//! other compilers and libraries put the number of the call into the register by other
//! instructions.
//!
//! # Why what is found is one
//!
//! The instructions are followed from the pc up to the system call, and nothing but what
//! sets its number may come before that. Whoever stands there is about to make this call,
//! and the kernel then takes the registers from where the stack pointer is: where that is
//! no signal's, the program would be killed, so there is no such code but in trampolines.
//! Only where the instruction that sets the number is before the pc is it taken on trust that
//! those bytes are an instruction: they have to begin where code may begin.
//!
//! A task that is in this very call has the pc after it, where other code may begin. There only the bytes that
//! debuggers know are a trampoline.

use unwind_core::{Memory, ReadError, VirtAddr, WordSize};

/// The numbers of the system calls.
const RT_SIGRETURN_64: u32 = 15;
const SIGRETURN_32: u32 = 119;
const RT_SIGRETURN_32: u32 = 173;

/// The most bytes of a trampoline: a landing mark, the longest move, the call.
const LEN: usize = 16;

/// Where the stack pointer will be when the system call is made, in bytes above where it is
/// now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToCall(i32);

impl ToCall {
    pub(crate) const fn get(self) -> i32 {
        self.0
    }
}

/// Which of the trampolines of 32-bit code a pc is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sigreturn32 {
    /// Of a handler without `SA_SIGINFO`.
    Plain(ToCall),
    /// Of a handler with `SA_SIGINFO`.
    Rt(ToCall),
}

/// Where the stack pointer will be at the call, if `pc` is at an instruction of a 64-bit
/// trampoline.
#[inline(never)]
pub(crate) fn find_rt_sigreturn_64<M: Memory>(
    pc: VirtAddr,
    mem: &mut M,
) -> Result<Option<ToCall>, ReadError> {
    // The handler's return has popped the trampoline's address, and nothing else is popped.
    let is_whole = |call: &Call| (call.number, call.popped) == (RT_SIGRETURN_64, 0);
    Ok(find(WordSize::Eight, pc, mem, is_whole)?.map(|call| call.left))
}

/// Which 32-bit trampoline `pc` is at an instruction of.
pub(crate) fn find_sigreturn_32<M: Memory>(
    pc: VirtAddr,
    mem: &mut M,
) -> Result<Option<Sigreturn32>, ReadError> {
    let is_whole = |call: &Call| {
        // The signal's number is popped in front of the first of them.
        matches!((call.number, call.popped), (SIGRETURN_32, 4) | (RT_SIGRETURN_32, 0))
    };
    let found = find(WordSize::Four, pc, mem, is_whole)?;
    Ok(found.map(|call| match call.number {
        SIGRETURN_32 => Sigreturn32::Plain(call.left),
        _ => Sigreturn32::Rt(call.left),
    }))
}

/// Finds the system call that code at `pc` is about to make, if it is the end of a whole
/// trampoline. Code at the edge of a mapping is none; absent code may be one.
fn find<M: Memory>(
    word: WordSize,
    pc: VirtAddr,
    mem: &mut M,
    is_whole: impl Fn(&Call) -> bool,
) -> Result<Option<Call>, ReadError> {
    // Who walks itself knows these bytes of its C library without reading them.
    let mut known = [0; 9];
    let known_len = if word == WordSize::Eight { 9 } else { 7 };
    let known = known.get_mut(..known_len).unwrap_or_default();
    if mem.read(pc, known).is_ok() && is_well_known(known) {
        if let Way::Call(call) = follow(word, known, 0) {
            if is_whole(&call) {
                return Ok(Some(call));
            }
        }
    }
    if let Some(call) = called(word, pc, mem).filter(&is_whole) {
        return Ok(Some(call));
    }
    let mut bytes = [0; 2 * LEN];
    let (before, after) = bytes.split_at_mut(LEN);
    let (len, error) = read_after(pc, after, mem);
    match follow(word, after.get(..len).unwrap_or_default(), 0) {
        Way::Call(call) if is_whole(&call) => return Ok(Some(call)),
        // The number may have been set before.
        Way::Call(_) | Way::Unset => {}
        Way::Cut => return error.map_or(Ok(None), Err),
        Way::Other => return Ok(None),
    }
    let (have, error) = read_before(pc, before, mem);
    let end = LEN.saturating_add(len);
    for distance in 1..=have {
        let at = LEN.saturating_sub(distance);
        let code = bytes.get(at..end).unwrap_or_default();
        match follow(word, code, distance) {
            Way::Call(call)
                if is_whole(&call)
                    && (is_well_known(code) || may_begin(pc, distance, bytes.get(..at))) =>
            {
                return Ok(Some(call));
            }
            _ => {}
        }
    }
    error.map_or(Ok(None), Err)
}

/// The call of the trampoline that ends at `pc`: the kernel has been entered there, and the call does not
/// return. Other code may begin there, so the whole of a well-known one has to stand before it.
fn called<M: Memory>(word: WordSize, pc: VirtAddr, mem: &mut M) -> Option<Call> {
    let lens: &[usize] = if word == WordSize::Eight { &[9] } else { &[8, 7] };
    lens.iter().find_map(|&len| {
        let mut bytes = [0; 9];
        let code = bytes.get_mut(..len)?;
        mem.read(pc.checked_sub(u64::try_from(len).ok()?)?, code).ok()?;
        let is_whole = is_well_known(code) && matches!(code, [.., 0x0f, 0x05] | [.., 0xcd, 0x80]);
        match follow(word, code, 0) {
            Way::Call(call) if is_whole => Some(Call { left: ToCall(0), ..call }),
            _ => None,
        }
    })
}

/// Reads what there is from `pc` on: how many bytes, and why there may be more.
fn read_after<M: Memory>(
    pc: VirtAddr,
    bytes: &mut [u8],
    mem: &mut M,
) -> (usize, Option<ReadError>) {
    if mem.read(pc, bytes).is_ok() {
        return (bytes.len(), None);
    }
    let mut addr = Some(pc);
    for (len, byte) in bytes.iter_mut().enumerate() {
        if let Err(error) = read_byte(addr, byte, mem) {
            return (len, Some(error).filter(|&error| error != ReadError::Invalid));
        }
        addr = addr.and_then(|addr| addr.checked_add(1));
    }
    (bytes.len(), None)
}

/// Reads what there is before `pc`, to the end of `bytes`.
fn read_before<M: Memory>(
    pc: VirtAddr,
    bytes: &mut [u8],
    mem: &mut M,
) -> (usize, Option<ReadError>) {
    let start = u64::try_from(bytes.len()).ok().and_then(|len| pc.checked_sub(len));
    if start.is_some_and(|start| mem.read(start, bytes).is_ok()) {
        return (bytes.len(), None);
    }
    let mut addr = pc.checked_sub(1);
    for (len, byte) in bytes.iter_mut().rev().enumerate() {
        if let Err(error) = read_byte(addr, byte, mem) {
            return (len, Some(error).filter(|&error| error != ReadError::Invalid));
        }
        addr = addr.and_then(|addr| addr.checked_sub(1));
    }
    (bytes.len(), None)
}

fn read_byte<M: Memory>(
    addr: Option<VirtAddr>,
    byte: &mut u8,
    mem: &mut M,
) -> Result<(), ReadError> {
    mem.read(addr.ok_or(ReadError::Invalid)?, core::slice::from_mut(byte))
}

/// Whether this is what the kernel, glibc and musl have, by which debuggers know trampolines.
fn is_well_known(code: &[u8]) -> bool {
    matches!(
        code,
        // mov rax, 15; syscall
        [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, ..]
        // pop eax; mov eax, 119; int 0x80
        | [0x58, 0xb8, 0x77, 0, 0, 0, 0xcd, 0x80, ..]
        // mov eax, 173; int 0x80
        | [0xb8, 0xad, 0, 0, 0, 0xcd, 0x80, ..]
    )
}

/// Whether code may begin this far before `pc`, after these bytes: it is aligned as
/// functions are, or after a landing mark, padding, or what does not continue. Bytes that look
/// like a move may be the end of a longer instruction elsewhere: `mov r8d, 15` ends as `mov eax,
/// 15` does.
fn may_begin(pc: VirtAddr, distance: usize, before: Option<&[u8]>) -> bool {
    const NOP: u8 = 0x90;
    const RET: u8 = 0xc3;
    const INT3: u8 = 0xcc;
    const HLT: u8 = 0xf4;
    let start = pc.get().wrapping_sub(u64::try_from(distance).unwrap_or(0));
    start % 16 == 0
        || matches!(
            before,
            Some(
                [.., NOP | RET | INT3 | HLT]
                    | [.., 0xf3, 0x0f, 0x1e, 0xfa | 0xfb]
                    | [.., 0x0f, 0x0b | 0x05]
                    | [.., 0xcd, 0x80]
            )
        )
}

/// A system call that instructions lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    number: u32,
    /// What the instructions take from the stack, in bytes.
    popped: i32,
    /// The same of those from the pc on.
    left: ToCall,
}

/// Where instructions lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Call(Call),
    /// To a system call whose number they do not set.
    Unset,
    /// Beyond the bytes that there are.
    Cut,
    /// To something else.
    Other,
}

/// What an instruction does.
enum Does {
    Nothing,
    Set(u32),
    SetLow(u8),
    Push(u32),
    Pop,
    Call,
}

/// Follows the instructions in `code`, one of which has to begin `pc` bytes on.
fn follow(word: WordSize, code: &[u8], pc: usize) -> Way {
    let slot = match word {
        WordSize::Four => 4,
        WordSize::Eight => 8,
    };
    let (mut number, mut pushed) = (None, None);
    let mut popped = 0_i32;
    let mut popped_at_pc = None;
    let mut rest = code;
    // Each pass takes a byte at least.
    loop {
        let at = code.len().saturating_sub(rest.len());
        if at == pc {
            popped_at_pc = Some(popped);
        }
        if rest.is_empty() {
            return Way::Cut;
        }
        let (does, next) = match instruction(word, rest) {
            Ok(found) => found,
            Err(way) => return way,
        };
        rest = next;
        match does {
            Does::Nothing => {}
            Does::Set(value) => number = Some(value),
            // Of a register whose value is not known it leaves the rest.
            Does::SetLow(low) => {
                number = number.map(|value: u32| value & !0xff | u32::from(low));
            }
            Does::Push(value) if pushed.is_none() => {
                pushed = Some(value);
                popped = popped.saturating_sub(slot);
            }
            Does::Push(_) => return Way::Other,
            Does::Pop => {
                number = pushed.take();
                popped = popped.saturating_add(slot);
            }
            Does::Call => {
                let (Some(number), Some(before)) = (number, popped_at_pc) else {
                    return Way::Unset;
                };
                let left = ToCall(popped.saturating_sub(before));
                return Way::Call(Call { number, popped, left });
            }
        }
    }
}

/// The instruction that code begins with, and what follows it.
fn instruction(word: WordSize, code: &[u8]) -> Result<(Does, &[u8]), Way> {
    let is_64 = word == WordSize::Eight;
    // endbr64, endbr32
    if let [0xf3, 0x0f, 0x1e, 0xfa | 0xfb, rest @ ..] = code {
        return Ok((Does::Nothing, rest));
    }
    let (is_wide, operation) = match code {
        [0x48, rest @ ..] if is_64 => (true, rest),
        _ => (false, code),
    };
    Ok(match (operation, is_wide) {
        // mov rax, n
        (&[0xb8, a, b, c, d, 0, 0, 0, 0, ref rest @ ..], true)
        // mov eax, n
        | (&[0xb8, a, b, c, d, ref rest @ ..], false)
        // mov rax, n; mov eax, n
        | (&[0xc7, 0xc0, a, b, c, d, ref rest @ ..], _) => {
            (Does::Set(u32::from_le_bytes([a, b, c, d])), rest)
        }
        // xor eax, eax
        ([0x31 | 0x33, 0xc0, rest @ ..], _) => (Does::Set(0), rest),
        // mov al, n
        (&[0xb0, low, ref rest @ ..], false) => (Does::SetLow(low), rest),
        // push n
        (&[0x6a, n @ ..0x80, ref rest @ ..], false) => (Does::Push(n.into()), rest),
        (&[0x68, a, b, c, d, ref rest @ ..], false) => {
            (Does::Push(u32::from_le_bytes([a, b, c, d])), rest)
        }
        // pop rax
        ([0x58, rest @ ..], false) => (Does::Pop, rest),
        // syscall
        ([0x0f, 0x05, rest @ ..], false) if is_64 => (Does::Call, rest),
        // int 0x80
        ([0xcd, 0x80, rest @ ..], false) if !is_64 => (Does::Call, rest),
        ([], _) => return Err(Way::Cut),
        ([0x0f | 0x31 | 0x33 | 0x68 | 0x6a | 0xb0 | 0xb8 | 0xc7 | 0xcd | 0xf3, ..], _)
            // The longest of these has ten.
            if code.len() < 10 =>
        {
            return Err(Way::Cut);
        }
        _ => return Err(Way::Other),
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use test_support::SparseMemory;

    use super::*;

    const ENDBR: [&[u8]; 2] = [&[0xf3, 0x0f, 0x1e, 0xfa], &[0xf3, 0x0f, 0x1e, 0xfb]];

    /// Instructions that set the number, each with what it pops.
    type Instructions = Vec<(Vec<u8>, i32)>;

    /// The ways in which compilers, assemblers and libraries set a number below 256.
    fn ways(word: WordSize, number: u8) -> Vec<Instructions> {
        let slot = if word == WordSize::Four { 4 } else { 8 };
        let n = [number, 0, 0, 0];
        let mov = |code: &[u8]| vec![([code, &n[..]].concat(), 0)];
        let then_pop = |push: Vec<u8>| vec![(push, i32::wrapping_neg(slot)), (vec![0x58], slot)];
        let then_low = |xor: &[u8]| vec![(xor.to_vec(), 0), (vec![0xb0, number], 0)];
        let mut ways = vec![
            mov(&[0xb8]),
            mov(&[0xc7, 0xc0]),
            then_pop([&[0x68][..], &n].concat()),
            then_low(&[0x31, 0xc0]),
            then_low(&[0x33, 0xc0]),
        ];
        if number < 0x80 {
            ways.push(then_pop(vec![0x6a, number]));
        }
        if word == WordSize::Eight {
            ways.push(mov(&[0x48, 0xc7, 0xc0]));
            ways.push(then_low(&[0x48, 0x31, 0xc0]));
            let mut long = mov(&[0x48, 0xb8]);
            long[0].0.extend([0; 4]);
            ways.push(long);
        }
        for way in ways.clone() {
            let mark = ENDBR[usize::from(word == WordSize::Four)];
            ways.push([&[(mark.to_vec(), 0)][..], &way].concat());
        }
        ways
    }

    /// What is found at a pc of code: the call's number, and how far the stack pointer is from
    /// where it will be.
    fn found(word: WordSize, pc: u64, memory: &SparseMemory) -> Option<(u32, i32)> {
        let (pc, mem) = (VirtAddr::new(pc), &mut memory.clone());
        match word {
            WordSize::Eight => {
                find_rt_sigreturn_64(pc, mem).unwrap().map(|to_call| (15, to_call.get()))
            }
            WordSize::Four => find_sigreturn_32(pc, mem).unwrap().map(|found| match found {
                Sigreturn32::Plain(to_call) => (119, to_call.get()),
                Sigreturn32::Rt(to_call) => (173, to_call.get()),
            }),
        }
    }

    #[test]
    fn u6_each_way_to_set_the_number_is_a_trampoline_at_each_of_its_instructions() {
        use WordSize::{Eight, Four};
        let mut looked_at = 0;
        for (word, number) in [(Eight, 15), (Four, 119), (Four, 173)] {
            for mut way in ways(word, number) {
                if number == 119 {
                    way.insert(0, (vec![0x58], 4));
                }
                let call = if word == Four { [0xcd, 0x80] } else { [0x0f, 0x05] };
                way.push((call.to_vec(), 0));
                let code: Vec<u8> = way.iter().flat_map(|(code, _)| code.clone()).collect();
                let end = 0x7000 - u64::try_from(code.len()).unwrap();
                // Aligned, after padding, after a return, at the end of what is mapped.
                for (start, before) in [(0x6010, 0x55), (0x6013, 0x90), (0x6013, 0xc3), (end, 0xcc)]
                {
                    let memory =
                        SparseMemory::default().put(start - 1, &[before]).put(start, &code);
                    let mut at = start;
                    for (place, (bytes, _)) in way.iter().enumerate() {
                        let left = way[place..].iter().map(|(_, popped)| popped).sum();
                        let expected = Some((number.into(), left));
                        assert_eq!(found(word, at, &memory), expected, "{code:x?} at {at:#x}");
                        looked_at += 1;
                        at += u64::try_from(bytes.len()).unwrap();
                    }
                }
            }
        }
        assert!(looked_at > 500, "{looked_at}");
    }

    #[test]
    fn u6_after_the_call_of_a_well_known_trampoline_its_context_is_at_the_stack_pointer() {
        use WordSize::{Eight, Four};
        let cases: [(WordSize, &[u8], Option<u32>); 6] = [
            (Eight, &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], Some(15)),
            (Four, &[0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80], Some(119)),
            (Four, &[0xb8, 173, 0, 0, 0, 0xcd, 0x80], Some(173)),
            // Not those bytes, another call, and what another program calls.
            (Eight, &[0x90, 0x90, 0xb8, 15, 0, 0, 0, 0x0f, 0x05], None),
            (Eight, &[0x48, 0xc7, 0xc0, 14, 0, 0, 0, 0x0f, 0x05], None),
            (Four, &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], None),
        ];
        for (word, code, number) in cases {
            let end = 0x6010 + u64::try_from(code.len()).unwrap();
            // Before a function, and at the end of what is mapped.
            for next in [&[0x55, 0xc3][..], &[]] {
                let memory = SparseMemory::default().put(0x6010, code).put(end, next);
                let expected = number.map(|number| (number, 0));
                assert_eq!(found(word, end, &memory), expected, "{code:x?}");
                assert_eq!(found(word, end + 1, &memory), None, "{code:x?} + 1");
            }
        }
    }

    #[test]
    fn u6_code_that_only_looks_like_a_trampoline_is_none() {
        use WordSize::{Eight, Four};
        let cases: [(WordSize, &[u8], u64); 13] = [
            // mov r8d, 15; syscall
            (Eight, &[0x41, 0xb8, 15, 0, 0, 0, 0x0f, 0x05], 6),
            // mov dword [rsp - 72], 15; syscall
            (Eight, &[0xc7, 0x44, 0x24, 0xb8, 15, 0, 0, 0, 0x0f, 0x05], 8),
            // Another call, one by a register, one of another size.
            (Eight, &[0xb8, 14, 0, 0, 0, 0x0f, 0x05], 0),
            (Eight, &[0xb8, 15, 1, 0, 0, 0x0f, 0x05], 0),
            (Eight, &[0x48, 0xb8, 15, 0, 0, 0, 1, 0, 0, 0, 0x0f, 0x05], 0),
            (Eight, &[0xb0, 15, 0x0f, 0x05], 0),
            (Eight, &[0x0f, 0x05], 0),
            // Something comes between.
            (Eight, &[0xb8, 15, 0, 0, 0, 0x5f, 0x0f, 0x05], 0),
            // What was pushed before is popped, or is not popped.
            (Eight, &[0x58, 0xb8, 15, 0, 0, 0, 0x0f, 0x05], 0),
            (Eight, &[0x6a, 15, 0xb8, 15, 0, 0, 0, 0x0f, 0x05], 0),
            // The signal's number is still there.
            (Four, &[0xb8, 119, 0, 0, 0, 0xcd, 0x80], 0),
            (Four, &[0x58, 0xb8, 173, 0, 0, 0, 0xcd, 0x80], 0),
            // The call of the other kind of code.
            (Four, &[0xb8, 173, 0, 0, 0, 0x0f, 0x05], 0),
        ];
        for (word, code, at) in cases {
            let memory = SparseMemory::default().put(0x6001, &[0x24]).put(0x6002, code);
            assert_eq!(found(word, 0x6002 + at, &memory), None, "{code:x?} +{at}");
        }
        // Between instructions.
        for at in 1..5 {
            let code = [0xb8, 15, 0, 0, 0, 0x0f, 0x05];
            assert_eq!(
                found(Eight, 0x6000 + at, &SparseMemory::default().put(0x6000, &code)),
                None
            );
        }
    }

    #[test]
    fn u6_no_code_of_a_c_library_but_its_trampoline_is_taken_for_one() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let files = maps.lines().filter(|line| line.contains(" r-xp "));
        let mut files: Vec<_> = files.filter_map(|line| line.split_whitespace().nth(5)).collect();
        files.dedup();
        let (mut bytes, mut of_others) = (0, Vec::new());
        for file in files.iter().filter(|file| file.starts_with('/')) {
            let code = std::fs::read(file).unwrap();
            bytes += code.len();
            let well_known: Vec<_> = code
                .windows(9)
                .enumerate()
                .filter(|(_, code)| is_well_known(code))
                .map(|(at, _)| at)
                .collect();
            let mut memory = Flat(&code);
            for pc in 0..code.len() {
                let addr = VirtAddr::new(u64::try_from(pc).unwrap());
                let is_found = find_rt_sigreturn_64(addr, &mut memory).unwrap().is_some();
                let is_known = well_known.iter().any(|at| (*at..=at + 9).contains(&pc));
                // Inside of the moves by which libgcc compares code with a trampoline's.
                let is_operand = matches!(code[..pc], [.., 0x48, 0xb8..=0xbf]);
                if is_found && !is_known && !is_operand {
                    of_others.push((*file, pc));
                }
            }
        }
        assert!(bytes > 1 << 20 || files.is_empty(), "{bytes} bytes of {files:?}");
        // This test's own cases are data of its program, where any byte is looked at.
        of_others.retain(|(file, _)| !file.contains("unwind_x86"));
        assert_eq!(of_others, []);
    }

    struct Flat<'a>(&'a [u8]);

    impl Memory for Flat<'_> {
        fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            let at = usize::try_from(addr.get()).unwrap();
            let bytes = self.0.get(at..).and_then(|rest| rest.get(..buf.len()));
            buf.copy_from_slice(bytes.ok_or(ReadError::Invalid)?);
            Ok(())
        }
    }
}
