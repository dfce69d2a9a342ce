//! The stack of the calling thread: one of a known depth, how it is read, and
//! the unwinders that can walk nothing else.
//!
//! All unsafe code of the benches is here.
#![expect(unsafe_code, reason = "the own stack is read, and C libraries are called")]

use core::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::{env, fs, process, ptr, slice};

use libloading::{Library, Symbol};
use test_support::Compiler;
use unwind_core::{Memory, ReadError, VirtAddr, WordSize};

use crate::MAX_FRAMES;
use crate::own_maps::own_maps;

/// Where a walk starts.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The instruction pointer.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, if the code keeps one.
    pub fp: u64,
}

/// The stack of the calling thread, from the frame at which a walk starts to
/// its outer end.
#[derive(Clone, Copy, Debug)]
pub struct OwnStack<'s> {
    words: *const u64,
    start: u64,
    /// How many words there are.
    len: u64,
    frames: PhantomData<&'s ()>,
}

impl OwnStack<'_> {
    /// Reads the word at an address of this stack.
    #[inline]
    #[must_use]
    pub fn word(&self, addr: u64) -> Option<u64> {
        self.word_of(self.number(addr))
    }

    /// The number of the word at `addr`: if there is none, a number past the
    /// last one, as what is left of the division goes to the highest bits.
    #[inline]
    const fn number(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.start).rotate_right(3)
    }

    #[inline]
    #[expect(clippy::as_conversions, reason = "the benches are for 64-bit machines")]
    fn word_of(&self, number: u64) -> Option<u64> {
        // SAFETY: `Ladder::climb` made this for frames of this thread that
        // outlive it, of `len` aligned words. Other code owns the words, and
        // they may change: so the read is volatile.
        (number < self.len)
            .then(|| unsafe { self.words.wrapping_add(number as usize).read_volatile() })
    }

    /// A copy of all of it, and where it starts.
    #[must_use]
    pub fn copy(&self) -> (u64, Vec<u8>) {
        let words = (0..self.len).map_while(|number| self.word_of(number));
        (self.start, words.flat_map(u64::to_le_bytes).collect())
    }
}

impl Memory for OwnStack<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        for (byte, at) in buf.iter_mut().zip(addr.get()..) {
            let word = self.word(at & !7).ok_or(ReadError::Invalid)?;
            *byte = word.to_le_bytes()[usize::try_from(at & 7).unwrap()];
        }
        Ok(())
    }

    #[inline]
    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        self.word(addr.get()).ok_or(ReadError::Invalid)
    }

    #[inline]
    #[expect(clippy::as_conversions, reason = "the benches are for 64-bit machines")]
    fn read_pair(&mut self, addr: VirtAddr, size: WordSize) -> Result<[u64; 2], ReadError> {
        let addr = addr.get();
        let is_here = size == WordSize::Eight
            && addr.is_multiple_of(8)
            && addr.wrapping_sub(self.start) < (self.len * 8).saturating_sub(8);
        if !is_here {
            return Err(ReadError::Invalid);
        }
        let pair = ptr::with_exposed_provenance::<u64>(addr as usize);
        // By its address, a pair is read as soon as that is known, whatever the checks
        // take. SAFETY: as in `word_of`.
        let low = unsafe { pair.read_volatile() };
        // SAFETY: it is one of the words, too.
        let high = unsafe { pair.wrapping_add(1).read_volatile() };
        Ok([low, high])
    }

    #[inline]
    fn words(&mut self, _: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        let len = usize::try_from(self.len).ok()?;
        // SAFETY: the stack has that number of words, of any bytes. They are of calls that
        // wait for the walk, so nothing writes to them meanwhile.
        let words = unsafe { slice::from_raw_parts(self.words.cast(), len) };
        Some((VirtAddr::new(self.start), words))
    }
}

/// Follows frame pointers without any check, which is as fast as that can be;
/// returns how many addresses it wrote.
///
/// # Safety
///
/// All code on the stack keeps frame pointers, up to one that is zero.
#[inline]
#[expect(clippy::as_conversions, reason = "the chain is made of numbers")]
unsafe fn follow_frame_pointers(mut fp: u64, frames: &mut [u64; MAX_FRAMES]) -> usize {
    let mut count = 0;
    for frame in frames {
        let record = ptr::with_exposed_provenance::<u64>(fp as usize);
        // SAFETY: a frame pointer points to the caller's and then the return
        // address.
        *frame = unsafe { record.wrapping_add(1).read_volatile() };
        // SAFETY: as above.
        fp = unsafe { record.read_volatile() };
        count += 1;
        if fp == 0 {
            break;
        }
    }
    count
}

/// The inner end of a stack, while it is there.
#[derive(Debug)]
pub struct Top<'s> {
    /// Its frame.
    pub start: Start,
    /// Its bytes.
    pub stack: OwnStack<'s>,
    keeps_frame_pointers: bool,
}

impl Top<'_> {
    /// Follows frame pointers without any check; returns how many addresses it
    /// wrote.
    ///
    /// # Panics
    ///
    /// If the code on the stack keeps no frame pointers.
    #[inline]
    pub fn follow_frame_pointers(&self, frames: &mut [u64; MAX_FRAMES]) -> usize {
        assert!(self.keeps_frame_pointers, "there is no chain");
        // SAFETY: the code keeps them, and `ladder_start` has made the first
        // one zero.
        unsafe { follow_frame_pointers(self.start.fp, frames) }
    }
}

/// A library of `programs/ladder.c`, compiled for this run.
#[derive(Debug)]
pub struct Ladder {
    library: Library,
    folder: PathBuf,
    keeps_frame_pointers: bool,
}

/// One climb. The first two fields are those of `programs/ladder.c`.
#[repr(C)]
struct Climb<'f> {
    walk: for<'c> extern "C" fn(&'c mut Climb<'f>, u64, u64, u64),
    state: u64,
    keeps_frame_pointers: bool,
    at_top: &'f mut dyn FnMut(Top<'_>),
}

impl Ladder {
    /// Compiles and loads the library; `None` without a C compiler.
    ///
    /// # Panics
    ///
    /// If it cannot be compiled or loaded.
    #[must_use]
    pub fn new(keeps_frame_pointers: bool) -> Option<Self> {
        let compiler = Compiler::find(&[])?;
        let frame_pointers =
            if keeps_frame_pointers { "-fno-omit-frame-pointer" } else { "-fomit-frame-pointer" };
        let name = format!("unwind-ladder-{}{frame_pointers}", process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/ladder.c");
        let object = folder.join("ladder.so");
        let flags = [
            "-O2",
            "-fno-optimize-sibling-calls",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            frame_pointers,
        ];
        compiler.compile(&source, &object, &flags);
        // SAFETY: the library has no initialisers, and was written just now.
        let library = unsafe { Library::new(&object) }.unwrap();
        Some(Self { library, folder, keeps_frame_pointers })
    }

    /// Calls functions of the library to a depth, where `at_top` is called:
    /// four functions in turn, or in random order if `state` is not zero.
    ///
    /// # Panics
    ///
    /// If the library is another one.
    pub fn climb(&self, depth: u32, state: u64, mut at_top: impl FnMut(Top<'_>)) {
        type Start = unsafe extern "C" fn(*mut Climb<'_>, u32) -> u64;
        // SAFETY: `programs/ladder.c` defines it with this type.
        let start: Symbol<'_, Start> = unsafe { self.library.get("ladder_start") }.unwrap();
        let keeps_frame_pointers = self.keeps_frame_pointers;
        let mut climb =
            Climb { walk: walk_at_top, state, keeps_frame_pointers, at_top: &mut at_top };
        // SAFETY: the climb lives through the call, which uses it alone.
        unsafe { start(&raw mut climb, depth) };
    }
}

impl Drop for Ladder {
    fn drop(&mut self) {
        // There is no one left to tell of a failure.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What `programs/ladder.c` calls. A panic ends the process.
#[expect(clippy::as_conversions, reason = "an address becomes a pointer")]
extern "C" fn walk_at_top(climb: &mut Climb<'_>, pc: u64, sp: u64, fp: u64) {
    let stack = OwnStack {
        words: ptr::with_exposed_provenance(sp as usize),
        start: sp,
        len: (stack_end(sp) - sp) / 8,
        frames: PhantomData,
    };
    let keeps_frame_pointers = climb.keeps_frame_pointers;
    (climb.at_top)(Top { start: Start { pc, sp, fp }, stack, keeps_frame_pointers });
}

/// Where the mapping ends that an address of the calling thread's stack is in.
fn stack_end(sp: u64) -> u64 {
    let maps = own_maps();
    maps.iter().find(|map| map.range.contains(&sp)).unwrap().range.end
}

/// A C function that writes the return addresses of its callers to memory.
#[derive(Debug)]
pub struct Backtrace {
    library: Library,
    name: &'static str,
}

impl Backtrace {
    /// glibc's `backtrace`, whatever else may be loaded.
    #[must_use]
    pub fn of_glibc() -> Option<Self> {
        Self::find("libc.so.6", "backtrace")
    }

    /// libunwind's `unw_backtrace`; `None` where it is not installed.
    #[must_use]
    pub fn of_libunwind() -> Option<Self> {
        Self::find("libunwind.so.8", "unw_backtrace")
    }

    fn find(library: &str, name: &'static str) -> Option<Self> {
        // SAFETY: both libraries may be loaded at any time.
        let library = unsafe { Library::new(library) }.ok()?;
        let found = Self { library, name };
        found.function().is_some().then_some(found)
    }

    fn function(&self) -> Option<Symbol<'_, Function>> {
        // SAFETY: both functions have this type.
        unsafe { self.library.get(self.name) }.ok()
    }

    /// A function that walks the calling thread's stack, from somewhere
    /// further in; it returns how many addresses it wrote.
    ///
    /// # Panics
    ///
    /// If the library is gone.
    pub fn walker(&self) -> impl FnMut(&mut [u64; MAX_FRAMES]) -> usize {
        let function = self.function().unwrap();
        move |frames| {
            let room = c_int::try_from(frames.len()).unwrap();
            // SAFETY: there is room for that number of pointers.
            let count = unsafe { function(frames.as_mut_ptr().cast(), room) };
            usize::try_from(count).unwrap()
        }
    }
}

type Function = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
