//! The files whose code a guest executes, as the user names them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use memchr::memmem;
use object::elf;
use unwind_guest::VcpuRegisters;
use unwind_guest::orc::OrcTable;
use unwind_target::Untrusted;
use unwind_target::elf::ElfFile;
use unwind_target::elf::kernel_image::{IMAGE_LIMIT, is_kernel_image, unpack};
use unwind_target::loaded::loaded_file::LoadedImage;
use unwind_target::loaded::module::{Module, Modules, Opening};
use unwind_target::loaded::module_error::ModuleError;
use unwind_target::target::maps::{Backing, MappedFile, Mapping};
use unwind_target::untrusted::{escaped, plain};

use crate::commands::guest::error::GuestError;
use crate::commands::guest::kernel::{GuestKernel, OrcSections};
use crate::commands::guest::linux::FoundName;
use crate::commands::guest::ram::GuestRam;

/// A file, and where it is loaded if not where it was linked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SymbolFile {
    path: PathBuf,
    /// The address of its first segment.
    addr: Option<u64>,
}

impl SymbolFile {
    /// Reads `FILE` or `FILE@ADDR`, the address in hexadecimal with `0x`.
    ///
    /// # Errors
    ///
    /// What is wrong with the address.
    pub(crate) fn parse<T: AsRef<OsStr>>(argument: T) -> Result<Self, String> {
        const MARK: &[u8] = b"@0x";
        let argument = argument.as_ref().as_bytes();
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        let Some(at) = memmem::rfind(argument, MARK) else {
            return Ok(Self { path: path(argument), addr: None });
        };
        let (name, rest) = argument.split_at_checked(at).unwrap_or((argument, &[]));
        let digits = rest.strip_prefix(MARK).unwrap_or_default();
        let addr = plain(digits).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let addr = addr.ok_or_else(|| {
            let digits = escaped(digits);
            format!("`0x{digits}` is not an address; give FILE@0x…, or FILE as it is linked")
        })?;
        Ok(Self { path: path(name), addr: Some(addr) })
    }
}

/// All files that the user names. The same addresses may be 64-bit code in one
/// process and 32-bit code in another one, so the two are kept apart.
#[derive(Debug)]
pub(crate) struct GuestFiles {
    /// For 64-bit code.
    pub(crate) wide: Modules,
    /// For 32-bit code.
    pub(crate) narrow: Modules,
    /// The kernel, if one has ORC tables.
    kernel: Option<Kernel>,
    /// Whether there are none.
    pub(crate) is_empty: bool,
}

/// A kernel, and the file that it is of.
#[derive(Debug)]
struct Kernel {
    file: SymbolFile,
    kernel: GuestKernel,
}

impl GuestFiles {
    /// Opens the files.
    ///
    /// # Errors
    ///
    /// [`GuestError::Symbols`] for the first one that cannot be used.
    pub(crate) fn open(files: &[SymbolFile]) -> Result<Self, GuestError> {
        let (mut wide, mut narrow, mut kernel) = (Vec::new(), Vec::new(), None);
        for file in files {
            let failed = |error| GuestError::Symbols { path: file.path.clone(), error };
            let opened = open(file)?;
            if kernel.is_none()
                && let Some(tables) = OrcSections::read(&opened)
            {
                kernel =
                    Some(Kernel { file: file.clone(), kernel: GuestKernel::new(opened, tables) });
                continue;
            }
            let mappings = mappings(file, &opened);
            if mappings.is_empty() {
                return Err(failed(ModuleError::NoCodeAt(0)));
            }
            let side = if opened.is_64 { &mut wide } else { &mut narrow };
            side.push((opened, mappings));
        }
        if let Some(Kernel { file, kernel }) = &kernel
            && let Some(addr) = file.addr
        {
            kernel.place_at(
                |opened| addr.wrapping_sub(first_page(opened)),
                |opened, moved_by| load_at(file, opened, moved_by),
            );
        }
        let is_empty = files.is_empty();
        Ok(Self { wide: load(wide), narrow: load(narrow), kernel, is_empty })
    }

    /// Looks for the kernel in the guest's memory, unless it has been found.
    pub(crate) fn find_kernel(&self, vcpu: &VcpuRegisters, ram: &mut GuestRam) {
        if let Some(Kernel { file, kernel }) = &self.kernel {
            kernel.find(vcpu, ram, |opened, moved_by| load_at(file, opened, moved_by));
        }
    }

    /// The kernel's table, where that was found.
    pub(crate) fn kernel_table(&self) -> Option<OrcTable<'_>> {
        self.kernel.as_ref()?.kernel.table()
    }

    /// What is to be said of a kernel that was not found.
    pub(crate) fn warning(&self) -> Option<String> {
        let missing = self.kernel.as_ref().filter(|of_file| !of_file.kernel.is_placed())?;
        let path = escaped(&missing.file.path);
        Some(format!("{path}: the guest does not have this kernel in its memory"))
    }

    /// The file whose code an address is in.
    pub(crate) fn find(&self, is_wide: bool, addr: u64) -> Option<&Module> {
        if !is_wide {
            return self.narrow.find(addr);
        }
        let of_kernel = || self.kernel.as_ref()?.kernel.module(addr);
        self.wide.find(addr).or_else(of_kernel)
    }

    /// Whether one of the files names an address.
    pub(crate) fn has_name(&self, is_wide: bool, addr: u64) -> bool {
        let image = self.find(is_wide, addr).and_then(|module| module.image().ok());
        image.is_some_and(|image| matches!(image.function(addr), Ok(Some(_))))
    }

    /// What an address in the code of one of the files is called.
    pub(crate) fn name(&self, is_wide: bool, addr: u64) -> Option<FoundName> {
        let module = self.find(is_wide, addr)?;
        let image = module.image().ok()?;
        let LoadedImage { file, bias } = image;
        let at = |linked: u64| linked.wrapping_add(*bias);
        let (start, end, offset) = file.elf.segments.iter().find_map(|segment| {
            let (start, end) =
                (at(segment.addr), at(segment.addr.checked_add(segment.memory_size)?));
            let is_code = segment.kind == elf::PT_LOAD && segment.executable;
            (is_code && (start..end).contains(&addr)).then_some((start, end, segment.offset))
        })?;
        let function = image.function(addr).ok().flatten();
        let function = function.map(|found| (found.name, at(found.start)..at(found.end)));
        let name = FoundName {
            object: Untrusted::from(module.path.as_os_str().as_bytes().to_vec()),
            bias: Some(*bias),
            text: start..end,
            offset,
            build_id: file.elf.build_id().map(Into::into),
            function,
        };
        let of_kernel = self.kernel.as_ref().and_then(|of_file| of_file.kernel.module(addr));
        Some(match of_kernel {
            // As if it was found in the guest.
            Some(kernel) if std::ptr::eq(kernel, module) => FoundName {
                object: Untrusted::from("[kernel]"),
                bias: None,
                offset: start,
                build_id: None,
                ..name
            },
            _ => name,
        })
    }
}

/// Opens an ELF file, or the one in a Linux image.
fn open(file: &SymbolFile) -> Result<ElfFile, GuestError> {
    let failed = |error| GuestError::Symbols { path: file.path.clone(), error };
    let opened = File::open(&file.path).map_err(|error| failed(ModuleError::Open(error.into())))?;
    let mut start = [0; 0x210];
    let is_image = opened.read_exact_at(&mut start, 0).is_ok() && is_kernel_image(&start);
    if !is_image {
        return ElfFile::from_file(opened).map_err(|error| failed(error.into()));
    }
    let mut image = Vec::new();
    let read = opened.take(IMAGE_LIMIT).read_to_end(&mut image);
    read.map_err(|error| failed(ModuleError::Open(error.into())))?;
    let unpacked = unpack(&image)
        .map_err(|error| GuestError::KernelImage { path: file.path.clone(), error })?;
    ElfFile::from_bytes(unpacked).map_err(|error| failed(error.into()))
}

/// Where the first page of a file is linked for.
fn first_page(opened: &ElfFile) -> u64 {
    const IN_PAGE: u64 = 0xfff;
    let loaded = opened.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD);
    loaded.map(|segment| segment.addr & !IN_PAGE).min().unwrap_or(0)
}

/// Where the code of a file is.
fn mappings(file: &SymbolFile, opened: &ElfFile) -> Vec<Mapping> {
    let bias = file.addr.map_or(0, |addr| addr.wrapping_sub(first_page(opened)));
    mappings_at(file, opened, bias)
}

fn mappings_at(file: &SymbolFile, opened: &ElfFile, bias: u64) -> Vec<Mapping> {
    let loaded = opened.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD);
    let path = file.path.as_os_str().as_bytes().to_vec();
    let code = loaded.filter(|segment| segment.executable);
    code.filter_map(|segment| {
        let start = segment.addr.wrapping_add(bias);
        Some(Mapping {
            range: start..start.checked_add(segment.memory_size)?,
            executable: true,
            access: None,
            offset: segment.offset,
            backing: Backing::File(MappedFile::new(path.clone(), None)),
        })
    })
    .collect()
}

fn load_at(file: &SymbolFile, opened: ElfFile, bias: u64) -> Modules {
    let mappings = mappings_at(file, &opened, bias);
    load(vec![(opened, mappings)])
}

fn load(files: Vec<(ElfFile, Vec<Mapping>)>) -> Modules {
    let mut opened = Vec::new();
    let mut mappings = Vec::new();
    for (file, of_file) in files {
        if let Some(first) = of_file.first() {
            opened.push((first.backing.clone(), file));
        }
        mappings.extend(of_file);
    }
    let modules = Modules::load(&mappings, |mapping| {
        let at = opened.iter().position(|(backing, _)| *backing == mapping.backing)?;
        Some(Opening::Now(Ok(opened.swap_remove(at).1)))
    });
    // Their names are read by this, and not while the guest stands.
    for Mapping { range, .. } in &mappings {
        if let Some(image) = modules.find(range.start).and_then(|module| module.image().ok()) {
            let _ = image.function(range.start);
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_follows_the_last_at_sign() {
        let file = |path: &str, addr| Ok(SymbolFile { path: path.into(), addr });
        let parse = SymbolFile::parse::<&str>;
        assert_eq!(parse("vmlinux"), file("vmlinux", None));
        assert_eq!(parse("a@b"), file("a@b", None));
        assert_eq!(parse("a@b@0x10"), file("a@b", Some(16)));
        assert_eq!(parse("k@0xffffffff81000000"), file("k", Some(0xffff_ffff_8100_0000)));
        let error = parse("k@0xzz").unwrap_err();
        assert!(error.contains("`0xzz` is not an address"), "{error}");
    }

    #[test]
    fn d10_a_file_whose_name_is_not_utf8_can_be_named() {
        let file = SymbolFile::parse(OsStr::from_bytes(b"k\xff@0x10")).unwrap();
        assert_eq!((file.path.as_os_str().as_bytes(), file.addr), (&b"k\xff"[..], Some(16)));
        let error = SymbolFile::parse(OsStr::from_bytes(b"k@0x\xff\x1b")).unwrap_err();
        assert!(error.contains(r"`0x\xff\x1b` is not an address"), "{error}");
    }
}
