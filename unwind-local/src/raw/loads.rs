//! How many objects the dynamic linker has loaded, as a word that can be read at any point.
//!
//! A kept row is wrong when another object comes to where the one was that it is of. The
//! dynamic linker counts what it loads, and tells the number by `dl_iterate_phdr`, under a
//! lock. [`find`] looks for that word in the dynamic linker's data and sees whether it counts
//! when an object is loaded. Where it is not found no rows are kept.
//!
//! A static program of glibc has the word under a name.
//!
//! Where objects stay, as with musl, the number is that of changes to the list of objects.

use core::ffi::{CStr, c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::c_library;
use super::elf::Symbol;

static COUNT: AtomicPtr<AtomicUsize> = AtomicPtr::new(null_mut());

/// The number, if the word is known.
#[inline]
pub(crate) fn count() -> Option<usize> {
    let word = COUNT.load(Ordering::Relaxed);
    // SAFETY: null, or a word of the dynamic linker's data, which stays; it writes it in one
    // piece.
    unsafe { word.as_ref() }.map(|word| word.load(Ordering::Acquire))
}

/// Objects that hardly any program has loaded, and every installation of glibc has.
const LOADABLE: [&CStr; 4] =
    [c"libBrokenLocale.so.1", c"libthread_db.so.1", c"libnss_hesiod.so.2", c"libanl.so.1"];

/// The most words that may have the number before it changes.
const MOST: usize = 64;

/// `dladdr1` of glibc, which other C libraries do not have.
type DlAddr1 = unsafe extern "C" fn(
    addr: *const c_void,
    info: *mut libc::Dl_info,
    extra: *mut *mut c_void,
    flags: c_int,
) -> c_int;

fn dladdr1() -> Option<DlAddr1> {
    // SAFETY: a name that ends with a zero.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dladdr1".as_ptr()) };
    // SAFETY: null, or this function.
    unsafe { transmute::<*mut c_void, Option<DlAddr1>>(function) }
}

/// Takes another word for the number.
pub(crate) fn set(word: &'static AtomicUsize) {
    COUNT.store((&raw const *word).cast_mut(), Ordering::Release);
}

/// Takes the word of a static program, if it has the number that is told. Locks, so not for handlers.
pub(crate) fn find_in_program() {
    let Some(word) = c_library::loads_of_program() else { return };
    let mut is_right = false;
    let to: *mut bool = &raw mut is_right;
    // SAFETY: the function gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(look_at_program), to.cast()) };
    if is_right && count().is_none() {
        set(word);
    }
}

/// Called with a lock, so that the number does not change.
unsafe extern "C" fn look_at_program(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    is_right: *mut c_void,
) -> c_int {
    // SAFETY: as `find_in_program` passes it.
    let is_right = unsafe { is_right.cast::<bool>().as_mut() };
    // SAFETY: as glibc passes it.
    let info = unsafe { info.as_ref() };
    let number = c_library::loads_of_program().map(|word| word.load(Ordering::Relaxed));
    if let (Some(info), Some(is_right)) = (info, is_right) {
        *is_right = number == Some(number_of_loads(info));
    }
    1
}

/// The low half where a word is shorter, at the same address.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "that half")]
const fn number_of_loads(info: &libc::dl_phdr_info) -> usize {
    info.dlpi_adds as usize
}

/// Looks for the word. Locks and loads an object, so not for handlers.
pub(crate) fn find() {
    if count().is_some() {
        return;
    }
    let Some(mut search) = Search::new() else { return };
    let before = search.look();
    for name in LOADABLE {
        // SAFETY: a name that ends with a zero; these objects only define functions.
        let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        let after = search.look();
        if !object.is_null() {
            // SAFETY: it was opened.
            unsafe { libc::dlclose(object) };
        }
        // How many objects there are is another number only now.
        search.look();
        if after != before {
            break;
        }
    }
    // It has counted, and no other word with it.
    if let (Some([word]), true) = (search.words.get(..search.len), search.number != before) {
        COUNT.store(*word, Ordering::Relaxed);
    }
}

/// The words of the dynamic linker's data that have had the number each time.
struct Search {
    words: [*mut AtomicUsize; MOST],
    len: usize,
    /// The number, as it was told last.
    number: usize,
    /// All words, and how many: before the first look.
    data: Option<(*mut AtomicUsize, usize)>,
}

impl Search {
    /// In `_rtld_global`, by its symbol's size.
    fn new() -> Option<Self> {
        const RTLD_DL_SYMENT: c_int = 1;
        let dladdr1 = dladdr1()?;
        // SAFETY: a name that ends with a zero.
        let data = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_rtld_global".as_ptr()) };
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        let mut symbol: *mut c_void = null_mut();
        // SAFETY: both results have room.
        let found = unsafe { dladdr1(data, info.as_mut_ptr(), &raw mut symbol, RTLD_DL_SYMENT) };
        // SAFETY: null, or the entry of the symbol table, which stays.
        let symbol = unsafe { symbol.cast::<Symbol>().as_ref() }?;
        let count = usize::try_from(symbol.st_size).ok()?.checked_div(size_of::<usize>())?;
        let is_usable = found != 0
            && !data.is_null()
            && data.addr().is_multiple_of(size_of::<usize>())
            && count < 1 << 13;
        let data = is_usable.then_some((data.cast(), count))?;
        Some(Self { words: [null_mut(); MOST], len: 0, number: 0, data: Some(data) })
    }

    /// Keeps the words that have the number, and returns it.
    fn look(&mut self) -> usize {
        let to: *mut Self = self;
        // SAFETY: the function gets what it expects.
        unsafe { libc::dl_iterate_phdr(Some(look_at), to.cast()) };
        self.number
    }

    fn keep(&mut self, number: usize) {
        self.number = number;
        // SAFETY: words of the dynamic linker's data, which stay. Its lock is held.
        let has = |word: *mut AtomicUsize| unsafe { &*word }.load(Ordering::Relaxed) == number;
        let old = self.words;
        let old_len = core::mem::take(&mut self.len);
        if let Some((first, count)) = self.data.take() {
            for at in 0..count {
                self.keep_if(first.wrapping_add(at), has);
            }
        } else {
            for word in old.into_iter().take(old_len) {
                self.keep_if(word, has);
            }
        }
    }

    fn keep_if(&mut self, word: *mut AtomicUsize, has: impl Fn(*mut AtomicUsize) -> bool) {
        if has(word) {
            // One too many is none of them: two are as bad as all.
            if let Some(slot) = self.words.get_mut(self.len) {
                *slot = word;
            }
            self.len = self.len.saturating_add(1);
        }
    }
}

/// Called with the dynamic linker's lock, so that the number does not change.
unsafe extern "C" fn look_at(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: as `look` passes it.
    let search = unsafe { search.cast::<Search>().as_mut() };
    // SAFETY: as glibc passes it.
    let info = unsafe { info.as_ref() };
    if let (Some(info), Some(search)) = (info, search) {
        search.keep(number_of_loads(info));
    }
    1
}
