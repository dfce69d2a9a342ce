//! libgcc's own functions, for contexts that it has made.

use core::ffi::{CStr, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that takes a context, and maybe where to write something.
pub(crate) struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

pub(crate) static GET_IP: Function = Function::new(c"_Unwind_GetIP");
pub(crate) static GET_IP_INFO: Function = Function::new(c"_Unwind_GetIPInfo");
pub(crate) static GET_CFA: Function = Function::new(c"_Unwind_GetCFA");
pub(crate) static GET_REGION_START: Function = Function::new(c"_Unwind_GetRegionStart");
pub(crate) static GET_LANGUAGE_SPECIFIC_DATA: Function =
    Function::new(c"_Unwind_GetLanguageSpecificData");

/// Looks for all of them in libgcc, which the library needs. Not for handlers.
pub(crate) fn find() {
    for function in
        [&GET_IP, &GET_IP_INFO, &GET_CFA, &GET_REGION_START, &GET_LANGUAGE_SPECIFIC_DATA]
    {
        function.find();
    }
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    fn find(&self) -> *mut c_void {
        // SAFETY: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// The function. Others may be called before this library has looked.
    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    /// What it returns; zero in a libgcc without it.
    ///
    /// # Safety
    ///
    /// The context is one of libgcc's, and this is a function of it alone.
    pub(crate) unsafe fn call(&self, context: *const c_void) -> u64 {
        let function = self.get();
        if function.is_null() {
            return 0;
        }
        // SAFETY: libgcc's function of this name has that type.
        let function: unsafe extern "C" fn(*const c_void) -> u64 = unsafe { transmute(function) };
        // SAFETY: as the caller promises.
        unsafe { function(context) }
    }

    /// The same with where to write something.
    ///
    /// # Safety
    ///
    /// The context is one of libgcc's, and this is a function of it and such a place.
    pub(crate) unsafe fn call_with(&self, context: *const c_void, to: *mut c_void) -> u64 {
        let function = self.get();
        if function.is_null() {
            return 0;
        }
        // SAFETY: libgcc's function of this name has that type.
        let function: unsafe extern "C" fn(*const c_void, *mut c_void) -> u64 =
            unsafe { transmute(function) };
        // SAFETY: as the caller promises.
        unsafe { function(context, to) }
    }
}
