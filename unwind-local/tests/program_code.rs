//! Stacks through code that the program has made itself.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tests"
)]

use std::arch::asm;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sframe::{Abi, Builder, Format, Function};
use unwind_core::{CfaRule, RegRule, Row};
use unwind_local::{
    Backtrace, CodeTable, ProgramCode, TooMuchCode, backtrace, backtrace_of, prepare,
};

const PAGE: usize = 4096;

/// Calls the function that it gets: with a frame pointer.
const BY_FRAME_POINTER: &[u8] = &[
    0x55, // push rbp
    0x48, 0x89, 0xe5, // mov rbp, rsp
    0xff, 0xd7, // call rdi
    0x5d, // pop rbp
    0xc3, // ret
];

/// The same without one, and with `room` bytes of locals.
fn by_stack_pointer(room: u8) -> Vec<u8> {
    // sub rsp, room; call rdi; add rsp, room; ret
    vec![0x48, 0x83, 0xec, room, 0xff, 0xd7, 0x48, 0x83, 0xc4, room, 0xc3]
}

/// The rows of that.
fn rows(room: u8) -> [(u32, Row); 3] {
    let row = |room: u8| {
        Row::new(CfaRule::sp(i32::from(room) + 8), RegRule::Offset(-8), RegRule::SameValue)
    };
    [(0, row(0)), (4, row(room)), (10, row(0))]
}

/// One walk at a time sees the list of ranges as it expects it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    prepare();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two pages: of code, and of its table.
struct Made {
    start: usize,
    len: usize,
}

impl Made {
    fn new(code: &[u8]) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let first = unsafe { libc::mmap(null_mut(), 2 * PAGE, protection, flags, -1, 0) };
        assert_ne!(first, libc::MAP_FAILED);
        let made = Self { start: first.expose_provenance(), len: code.len() };
        made.replace(code);
        made
    }

    fn replace(&self, code: &[u8]) {
        assert_eq!(code.len(), self.len);
        let first = std::ptr::with_exposed_provenance_mut(self.start);
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), first, code.len()) };
    }

    /// Writes a table to its page.
    fn table(&self, bytes: &[u8]) -> &'static [u8] {
        let to = std::ptr::with_exposed_provenance_mut(self.start + PAGE);
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            std::slice::from_raw_parts(to, bytes.len())
        }
    }

    fn table_addr(&self) -> u64 {
        u64::try_from(self.start + PAGE).unwrap()
    }

    fn sframe(&self, room: u8) -> &'static [u8] {
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
        let (start, len) = (u64::try_from(self.start).unwrap(), u32::try_from(self.len).unwrap());
        let lost = |omission| panic!("{omission:?}");
        builder.add(&Function::new(start, len, &rows(room)), lost).unwrap();
        self.table(&builder.finish(self.table_addr(), lost).unwrap())
    }

    fn eh_frame(&self, room: u8) -> &'static [u8] {
        let mut bytes = vec![
            0x14, 0, 0, 0, 0, 0, 0, 0, // CIE of 20 bytes
            1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, // code 1, data -8, RA 16, pc-relative
            0x0c, 7, 8, 0x90, 1, 0, 0, // CFA = rsp+8, RA at CFA-8
            0x18, 0, 0, 0, 0x1c, 0, 0, 0, // FDE of 24 bytes, CIE 28 bytes back
        ];
        let at = self.table_addr() + u64::try_from(bytes.len()).unwrap();
        let start = u64::try_from(self.start).unwrap().wrapping_sub(at);
        bytes.extend(i32::try_from(start.cast_signed()).unwrap().to_le_bytes());
        bytes.extend(u32::try_from(self.len).unwrap().to_le_bytes());
        // 4 bytes on: CFA = rsp+room+8; 6 bytes on: rsp+8.
        bytes.extend([0, 0x44, 0x0e, room + 8, 0x46, 0x0e, 8, 0]);
        bytes.extend([0; 12]);
        self.table(&bytes)
    }

    fn tell(&self, table: CodeTable<'_>) -> Result<ProgramCode, TooMuchCode> {
        unsafe { ProgramCode::tell(self.start..self.start + self.len, table) }
    }

    #[inline(never)]
    fn run(&self, callback: extern "C" fn()) {
        let function: extern "C" fn(extern "C" fn()) = unsafe { std::mem::transmute(self.start) };
        function(callback);
        std::hint::black_box(());
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.start), 2 * PAGE) };
    }
}

/// A backtrace and its addresses.
type Found = (Backtrace, Vec<usize>);

thread_local! {
    static FOUND: RefCell<Vec<Found>> = const { RefCell::new(Vec::new()) };
}

fn keep(found: Backtrace, addresses: &[usize]) {
    FOUND.with_borrow_mut(|list| list.push((found, addresses[..found.len].to_vec())));
}

extern "C" fn walk() {
    let mut addresses = [0; 256];
    let found = backtrace(&mut addresses);
    keep(found, &addresses);
}

extern "C" fn walk_in_a_handler() {
    unsafe extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, _: *mut c_void) {
        walk();
    }
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGUSR1, &raw const action, null_mut());
        libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
    }
}

/// Runs the code, which walks from inside, and returns what was found there.
#[inline(never)]
fn walk_through(made: &Made, callback: extern "C" fn()) -> Found {
    made.run(callback);
    FOUND.with_borrow_mut(|list| list.pop().unwrap())
}

/// The callers of this place, as without any code of the program.
#[inline(never)]
fn outer() -> Vec<usize> {
    let mut addresses = [0; 256];
    let found = backtrace(&mut addresses);
    assert!(found.is_complete);
    addresses[..found.len].to_vec()
}

/// Whether it is a whole stack through the code.
#[inline(never)]
fn is_whole(made: &Made, callback: extern "C" fn()) -> bool {
    let outer = outer();
    let (found, addresses) = walk_through(made, callback);
    let own = addresses.iter().filter(|addr| (made.start..made.start + made.len).contains(addr));
    // But for this function's own frame, which stands elsewhere by now.
    let is_right = addresses.ends_with(&outer[2..]) && own.count() == 1;
    assert!(is_right || !found.is_complete, "{found:?} {addresses:x?} {outer:x?}");
    is_right && found.is_complete
}

#[test]
fn a_stack_through_code_is_whole_while_the_program_tells_of_it() {
    let _alone = alone();
    let kept = Made::new(BY_FRAME_POINTER);
    let [plain, other] = [(); 2].map(|()| Made::new(&by_stack_pointer(0x18)));
    for (made, table) in [
        (&kept, CodeTable::FramePointers),
        (&kept, CodeTable::CallerFramePointers),
        (&plain, CodeTable::Sframe(plain.sframe(0x18))),
        (&other, CodeTable::EhFrame(other.eh_frame(0x18))),
    ] {
        for callback in [walk, walk_in_a_handler] {
            assert!(!is_whole(made, callback), "{table:?}");
            let told = made.tell(table).unwrap();
            for _ in 0..3 {
                assert!(is_whole(made, callback), "{table:?}");
            }
            drop(told);
            assert!(!is_whole(made, callback), "{table:?}");
        }
    }
}

#[test]
fn what_is_not_asked_after_a_guess_is_found_by_later_walks() {
    let _alone = alone();
    let plain = Made::new(&by_stack_pointer(0x18));
    let _told = plain.tell(CodeTable::Sframe(plain.sframe(0x18))).unwrap();
    // push rbp; mov rbp, rsp; mov rax, walk; call rax; pop rbp; ret: this is not told.
    let walk_at = (walk as extern "C" fn() as usize).to_le_bytes();
    let untold = [&[0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8][..], &walk_at, &[0xff, 0xd0, 0x5d, 0xc3]];
    let untold = Made::new(&untold.concat());
    let untold: extern "C" fn() = unsafe { std::mem::transmute(untold.start) };
    let (by_a_guess, _) = walk_through(&plain, untold);
    assert!(!by_a_guess.is_complete);
    assert!(is_whole(&plain, walk));
}

#[test]
fn rows_of_code_that_was_replaced_are_not_used() {
    let _alone = alone();
    let made = Made::new(&by_stack_pointer(0x18));
    for round in 0..20_u8 {
        let room = 0x18 + round % 2 * 0x20;
        made.replace(&by_stack_pointer(room));
        let told = made.tell(CodeTable::EhFrame(made.eh_frame(room))).unwrap();
        assert!(is_whole(&made, walk) && is_whole(&made, walk), "{room:#x}");
        drop(told);
    }
}

thread_local! {
    /// The code whose instructions are looked at, and how many were.
    static STEPPED: RefCell<(usize, usize)> = const { RefCell::new((0, 0)) };
}

/// Runs the code an instruction at a time, with a walk after each.
#[inline(never)]
fn step_through(made: &Made) -> Vec<Found> {
    unsafe extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        let pc = context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned();
        let (start, len) = STEPPED.with_borrow(|stepped| *stepped);
        if usize::try_from(pc).is_ok_and(|pc| pc >= start && pc < start + len) {
            let mut addresses = [0; 256];
            let found = unsafe { backtrace_of(context, &mut addresses) };
            keep(found, &addresses);
        }
    }
    extern "C" fn nothing() {}
    STEPPED.set((made.start, made.len));
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &raw const action, null_mut());
        // With the CPU's flag for single steps.
        asm!(
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "call {code}",
            "pushfq",
            "and qword ptr [rsp], -0x101",
            "popfq",
            code = in(reg) made.start,
            in("rdi") nothing as *const (),
            clobber_abi("C"),
        );
    }
    FOUND.with_borrow_mut(std::mem::take)
}

#[test]
fn a_stack_from_any_instruction_of_such_code_has_its_callers() {
    let _alone = alone();
    let (kept, plain) = (Made::new(BY_FRAME_POINTER), Made::new(&by_stack_pointer(0x18)));
    for (made, table, instructions) in [
        (&kept, CodeTable::FramePointers, 5),
        (&plain, CodeTable::EhFrame(plain.eh_frame(0x18)), 4),
    ] {
        let told = made.tell(table).unwrap();
        let outer = outer();
        let found = step_through(made);
        assert_eq!(found.len(), instructions);
        for (found, addresses) in found {
            // The code, the function that steps, this one.
            assert_eq!(addresses[3..], outer[2..], "{found:?} {addresses:x?}");
            assert!(found.is_complete, "{found:?} {addresses:x?}");
        }
        drop(told);
    }
}

#[test]
fn code_that_keeps_frame_pointers_in_callers_is_not_believed_to_where_it_was_interrupted() {
    let _alone = alone();
    let plain = Made::new(&by_stack_pointer(0x18));
    let told = plain.tell(CodeTable::CallerFramePointers).unwrap();
    let outer = outer();
    let found = step_through(&plain);
    drop(told);
    assert_eq!(found.len(), 4);
    for (found, addresses) in &found {
        assert!(!found.is_complete || addresses[3..] == outer[2..], "{found:?} {addresses:x?}");
    }
    // What follows a call does not tell; an addition and a return do.
    let complete: Vec<_> = found.iter().map(|(found, _)| found.is_complete).collect();
    assert_eq!(complete, [false, false, true, true]);
}

#[test]
fn there_is_room_for_as_many_ranges_as_is_said_and_each_is_forgotten_once() {
    let _alone = alone();
    let made = Made::new(BY_FRAME_POINTER);
    let tell = || made.tell(CodeTable::FramePointers);
    let all: Vec<_> = (0..ProgramCode::MOST).map(|_| tell().unwrap()).collect();
    assert_eq!(tell(), Err(TooMuchCode));
    assert!(is_whole(&made, walk));
    drop(all);
    let number = tell().unwrap().into_number().get();
    assert!(is_whole(&made, walk));
    assert!(ProgramCode::forget(number) && !ProgramCode::forget(number));
    assert!(!is_whole(&made, walk));
    for none in [0, 1, u64::MAX, number + 1] {
        assert!(!ProgramCode::forget(none), "{none:#x}");
    }
}
