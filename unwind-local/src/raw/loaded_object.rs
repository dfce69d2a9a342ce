//! The loaded object that has an address of code, and its tables.

use super::c_library::{self, FindObject};
use super::listed_objects;
use super::object::{Object, Part};
use super::program_headers::Headers;
use super::registers::StartPc;

/// Program headers that tables are found by.
const PT_GNU_SFRAME: u32 = 0x6474_e554;

impl Object {
    /// The object with this address of code.
    #[inline(never)]
    pub(crate) fn find(addr: u64) -> Option<Self> {
        match c_library::find_object(addr) {
            FindObject::Found { map, eh_frame_hdr } => Some(Self::new(map, eh_frame_hdr)),
            FindObject::None => None,
            FindObject::CannotTell => listed_objects::find(addr),
        }
    }

    /// Whether it is the C library, which stays loaded.
    pub(crate) fn is_c_library(self) -> bool {
        let function: unsafe extern "C" fn(_, _, _) -> _ = libc::sigaction;
        #[expect(clippy::as_conversions, reason = "a function's address")]
        let addr = (function as *const ()).addr();
        u64::try_from(addr).is_ok_and(|addr| self.has(addr))
    }

    /// Whether it stays loaded for as long as the process runs: the C library, the dynamic
    /// linker, the program.
    pub(crate) fn is_permanent(self) -> bool {
        let is_program =
            || Headers::of_program().is_some_and(|headers| headers.cover(self.start()));
        // So do those that were listed.
        self.is_c_library()
            || self.has(c_library::linker())
            || is_program()
            || listed_objects::find(self.start()).is_some()
    }

    /// Its `.sframe`, if it has one.
    ///
    /// # Safety
    ///
    /// The object stays loaded while the bytes are used: code of it has a frame on this
    /// thread's stack.
    #[inline(never)]
    pub(crate) unsafe fn sframe<'o>(self) -> Option<Part<'o>> {
        // SAFETY: as the caller promises.
        let headers = unsafe { self.headers() }?;
        let header = headers.all().find(|header| header.kind == PT_GNU_SFRAME)?;
        let addr = headers.bias.wrapping_add(header.vaddr);
        headers.constant(addr, Some(header.memsz))
    }

    /// The segment with an address of it, from there on.
    ///
    /// # Safety
    ///
    /// As [`sframe`](Self::sframe).
    pub(crate) unsafe fn segment_from<'o>(self, addr: u64) -> Option<Part<'o>> {
        // SAFETY: as the caller promises.
        unsafe { self.headers() }?.constant(addr, None)
    }

    /// How far above its linked addresses it is loaded.
    ///
    /// # Safety
    ///
    /// As [`sframe`](Self::sframe).
    pub(super) unsafe fn bias(self) -> Option<u64> {
        // SAFETY: as the caller promises.
        unsafe { self.headers() }.map(|headers| headers.bias)
    }

    /// Its program headers.
    ///
    /// # Safety
    ///
    /// As [`sframe`](Self::sframe).
    unsafe fn headers<'o>(self) -> Option<Headers<'o>> {
        // The C library lists each code segment of the program by itself if the linker left
        // holes between the segments. It loads all other objects as one piece.
        Headers::of_program().filter(|headers| headers.cover(self.start())).or_else(|| {
            // SAFETY: as the caller promises.
            unsafe { Headers::of_first_page(self.start(), self.end()) }
        })
    }
}

/// Fills `buf` with code near to where a walk starts; `false` if it is not there.
pub(crate) fn read_code(start: StartPc, addr: u64, buf: &mut [u8]) -> bool {
    const NEAR: u64 = 256;
    let pc = start.get();
    let object = if pc.abs_diff(addr) <= NEAR { Object::find(pc) } else { None };
    // SAFETY: this thread runs code of it, or has it interrupted.
    let part = object.and_then(|object| unsafe { object.segment_from(addr) });
    let Some(bytes) = part.and_then(|part| part.bytes.get(..buf.len())) else { return false };
    for (byte, value) in buf.iter_mut().zip(bytes) {
        *byte = *value;
    }
    true
}
