//! Objects as they were when the list was made: for C libraries that tell handlers of none.
//!
//! `dl_iterate_phdr` locks, so a handler cannot ask it. What it tells is kept in slots that are
//! read without waiting. Only objects that stay are kept: musl never unloads one.

use core::ffi::{c_int, c_void};

use super::c_library;
use super::late_function::LateFunction;
use super::object::Object;
use super::program_headers::Headers;
use super::slot::Slot;
use super::sync::{AtomicU64, AtomicUsize, Ordering};

/// The most objects that are kept.
const MOST: usize = 512;

/// Where an object begins and ends, and its search table.
static LIST: [Slot<3>; MOST] =
    [const { Slot::new(AtomicU64::new(0), [const { AtomicU64::new(0) }; 3]) }; MOST];

/// How many of the slots are full at most: those after them are empty.
static USED: AtomicUsize = AtomicUsize::new(0);

/// How often an object was added, and one more once the list was made.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// Adds the objects that are new. It locks, so not for handlers.
///
/// Returns the number of changes, where it tells all: where objects stay.
pub(crate) fn refresh() -> Option<&'static AtomicUsize> {
    if c_library::is_glibc() {
        return None;
    }
    FIND.set(find_among);
    let mut added = CHANGES.load(Ordering::Relaxed) == 0;
    // SAFETY: the function gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut added).cast()) };
    // A static program is told of itself alone.
    let kernels = c_library::auxiliary(libc::AT_SYSINFO_EHDR);
    // SAFETY: the kernel's object is of at least this size, and stays.
    let headers = unsafe { Headers::of_first_page(kernels, kernels.saturating_add(4096)) };
    added |= keep(headers.and_then(|headers| headers.object()));
    if added {
        // Rows that were kept without the objects are looked up again.
        CHANGES.fetch_add(1, Ordering::Release);
    }
    Some(&CHANGES)
}

type Find = fn(u64) -> Option<Object>;

/// [`find_among`], once there is a list.
// SAFETY: a function.
static FIND: LateFunction<Find> = unsafe { LateFunction::new() };

/// The object with an address, if it was listed.
pub(super) fn find(addr: u64) -> Option<Object> {
    FIND.get()?(addr)
}

fn find_among(addr: u64) -> Option<Object> {
    let used = LIST.get(..USED.load(Ordering::Relaxed))?;
    let listed = used.iter().filter_map(Slot::read);
    listed.map(|[start, end, table]| Object::new(start..end, table)).find(|object| object.has(addr))
}

/// Keeps an object; `false` if it is kept already, or there is no room.
fn keep(object: Option<Object>) -> bool {
    let Some(object) = object else { return false };
    let words = object.words();
    // Two that do this at a time may keep one twice.
    if LIST.iter().filter_map(Slot::read).any(|listed| listed == words) {
        return false;
    }
    let slot = LIST.iter().position(|slot| slot.put(words).is_some());
    if let Some(slot) = slot {
        USED.fetch_max(slot.saturating_add(1), Ordering::Relaxed);
    }
    slot.is_some()
}

/// Called for each object, which stays meanwhile.
unsafe extern "C" fn add(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    added: *mut c_void,
) -> c_int {
    // SAFETY: as the C library passes it.
    let info = unsafe { info.as_ref() };
    // SAFETY: likewise.
    let headers = info.and_then(|info| unsafe { Headers::of_listed(info) });
    // SAFETY: as `refresh` passes it.
    if let Some(added) = unsafe { added.cast::<bool>().as_mut() } {
        *added |= keep(headers.and_then(|headers| headers.object()));
    }
    0
}
