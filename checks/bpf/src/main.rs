//! Makes of an object file with BPF programs a program that loads them inside of the kernel
//! (`bpf_object__gen_loader` of libbpf), its data, and the names of what it makes.
//!
//! Usage: bpf-program OBJECT FOLDER. Writes FOLDER/walk.loader, walk.data and walk.names.

use std::ffi::{CStr, CString, c_char, c_uint};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::ptr;
use std::slice;

use libbpf_sys as bpf;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [object, folder] = &arguments[..] else {
        eprintln!("usage: bpf-program OBJECT FOLDER");
        return ExitCode::from(2);
    };
    match generate(object, Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{object}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn generate(object: &str, folder: &Path) -> Result<(), String> {
    let path = CString::new(object).map_err(|error| error.to_string())?;
    // SAFETY: the path is a string of C's.
    let object = unsafe { bpf::bpf_object__open(path.as_ptr()) };
    if object.is_null() {
        return Err("no object with BPF programs".into());
    }
    let mut made = bpf::gen_loader_opts {
        sz: size_of::<bpf::gen_loader_opts>() as u64,
        ..Default::default()
    };
    // SAFETY: `object` is open, and `made` has the length that it says.
    if unsafe { bpf::bpf_object__gen_loader(object, &raw mut made) } != 0 {
        return Err("no loader can be made of it".into());
    }
    // SAFETY: as above. Nothing is loaded: each step becomes one of the program that is made.
    if unsafe { bpf::bpf_object__load(object) } != 0 {
        return Err("it cannot be loaded".into());
    }
    // SAFETY: it belongs to the object, which stays open.
    let data = unsafe { bytes(made.data, made.data_sz) };
    // SAFETY: as above.
    let loader = unsafe { bytes(made.insns, made.insns_sz) };
    let write = |name: &str, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).map_err(|error| format!("{name}: {error}"))
    };
    write("walk.data", data)?;
    write("walk.loader", loader)?;
    // SAFETY: `object` is open.
    write("walk.names", unsafe { names(object) }.as_bytes())
}

/// # Safety
///
/// There are as many bytes, for as long as the result is used.
unsafe fn bytes<'a>(start: *const c_char, len: c_uint) -> &'a [u8] {
    // SAFETY: the caller's.
    unsafe { slice::from_raw_parts(start.cast(), len as usize) }
}

/// The maps and the programs, in the order in which they are made.
///
/// # Safety
///
/// The object is open.
unsafe fn names(object: *mut bpf::bpf_object) -> String {
    let mut names = String::new();
    // SAFETY: the object is open, and each map and program is one of it with a name.
    unsafe {
        let mut map = bpf::bpf_object__next_map(object, ptr::null());
        while !map.is_null() {
            let name = CStr::from_ptr(bpf::bpf_map__name(map));
            names += &format!("map {}\n", name.to_string_lossy());
            map = bpf::bpf_object__next_map(object, map);
        }
        let mut program = bpf::bpf_object__next_program(object, ptr::null_mut());
        while !program.is_null() {
            let name = CStr::from_ptr(bpf::bpf_program__name(program));
            names += &format!("program {}\n", name.to_string_lossy());
            program = bpf::bpf_object__next_program(object, program);
        }
    }
    names
}
