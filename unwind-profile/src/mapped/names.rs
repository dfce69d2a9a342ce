//! What functions and files are called in the text, which is what perf calls them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use unwind_perf::record::{Context, Misc};
use unwind_target::demangle::{Parameters, demangle_with};
use unwind_target::jit::jit_maps::JitMaps;
use unwind_target::rows::linkage::Callee;
use unwind_target::symbols::{Alias, Rank};
use unwind_target::untrusted::plain;
use unwind_target::{Notices, Untrusted};

use crate::mapped::address_spaces::Space;
use crate::mapped::kernel::{KernelSymbols, KernelText, SampledKernel};
use crate::mapped::layout::Layout;
use crate::mapped::ranges::Range;
use crate::mapped::recorded_file::RecordedFile;

/// How many names are kept, so that they need not be read and unfolded again.
const MAX_KEPT: usize = 1 << 14;

/// The longest demangled name, in bytes: some short names unfold to gigabytes.
const MAX_NAME: usize = 64 << 10;

/// The kernel's own file.
const KERNEL: &[u8] = b"[kernel.kallsyms]";

/// That of a guest.
pub const GUEST_KERNEL: &[u8] = b"[guest.kernel.kallsyms]";

/// In which code an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    User,
    Kernel,
    /// A guest's.
    GuestUser,
    GuestKernel,
    /// That of a hypervisor, of which nothing is known.
    Other,
}

impl Mode {
    /// Where the CPU was.
    #[must_use]
    pub fn of_sample(misc: Misc) -> Self {
        match misc.cpu_mode() {
            Misc::USER => Self::User,
            Misc::KERNEL => Self::Kernel,
            Misc::GUEST_USER => Self::GuestUser,
            Misc::GUEST_KERNEL => Self::GuestKernel,
            _ => Self::Other,
        }
    }

    /// Where an address is that a branch of a sample led from or to: the CPU records
    /// branches on both sides.
    #[must_use]
    pub fn of_branch(addr: u64, misc: Misc) -> Self {
        match Self::of_sample(misc) {
            other @ (Self::Other | Self::GuestUser | Self::GuestKernel) => other,
            Self::User | Self::Kernel if addr >> 63 != 0 => Self::Kernel,
            Self::User | Self::Kernel => Self::User,
        }
    }

    /// Where the addresses are that follow a mark.
    pub(crate) const fn of_context(context: Context) -> Self {
        match context {
            Context::User | Context::UserDeferred => Self::User,
            Context::Kernel => Self::Kernel,
            Context::Guest | Context::GuestUser => Self::GuestUser,
            Context::GuestKernel => Self::GuestKernel,
            _ => Self::Other,
        }
    }

    /// Whose addresses are that follow the mark of a kernel or of user code: the guest's in its samples.
    pub(crate) const fn of_guest(self) -> Self {
        match self {
            Self::User => Self::GuestUser,
            Self::Kernel => Self::GuestKernel,
            other => other,
        }
    }

    /// Where the code of an address is mapped.
    pub(crate) fn range_of<'s>(
        self,
        addr: u64,
        user: &'s Space,
        kernel: &'s Space,
    ) -> Option<&'s Range> {
        match self {
            Self::User => user.find(addr),
            Self::Kernel => kernel.find(addr),
            Self::GuestUser => user.guest.find(addr),
            Self::GuestKernel => user.guest.find(addr).or_else(|| kernel.guest.find(addr)),
            Self::Other => None,
        }
    }

    /// Whether it is code that a vCPU executes.
    #[must_use]
    pub const fn is_guest(self) -> bool {
        matches!(self, Self::GuestUser | Self::GuestKernel)
    }

    /// Whether it is user code, also a guest's.
    #[must_use]
    pub const fn is_user(self) -> bool {
        matches!(self, Self::User | Self::GuestUser)
    }

    /// Whether it is a kernel's.
    pub(crate) const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::GuestKernel)
    }
}

/// An address with its names.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The function, and how far into it the address is.
    pub function: Option<Function>,
    /// The file.
    pub file: Option<Untrusted>,
    /// Where the address is in the file; the address itself in the kernel.
    pub in_file: u64,
}

/// A function, and how far into it an address is.
type Function = (Rc<Untrusted>, u64);

/// Finds names.
#[derive(Debug)]
pub struct Names {
    /// By file and link-time address: the function and how far into it that is.
    kept: HashMap<(usize, u64), Option<Function>>,
    /// Files that names are kept of, so that no other can have their address in memory.
    files: HashMap<usize, Arc<RecordedFile>>,
    /// What compilers have told of code that is in no file.
    jit_maps: JitMaps,
    kernel: OnceLock<KernelSymbols>,
    sampled: SampledKernel,
    version: Layout,
    notices: Notices,
}

impl Names {
    /// The names that a version of perf gives, of samples of this kernel.
    #[must_use]
    pub fn new(sampled: SampledKernel, version: Layout, notices: &Notices) -> Self {
        Self {
            kept: HashMap::new(),
            files: HashMap::new(),
            jit_maps: JitMaps::new(notices.clone()),
            kernel: OnceLock::new(),
            sampled,
            version,
            notices: notices.clone(),
        }
    }

    /// Without the functions of the running kernel, which are no part of a recording.
    pub fn without_kernel(self) -> Self {
        Self { kernel: OnceLock::from(KernelSymbols::default()), ..self }
    }

    /// Has what compilers tell read again: it grows as long as they run.
    pub(crate) fn read_jit_maps_again(&mut self) {
        self.jit_maps.clear();
    }

    /// The place of an address, in a process with these mappings.
    pub fn place(&mut self, addr: u64, mode: Mode, user: &Space, kernel: &Space) -> Place {
        self.place_of(addr, mode, (user, kernel), false)
    }

    /// The same of a frame that may execute a call of an interpreter: that names what has no name of its own.
    pub(crate) fn place_of(
        &mut self,
        addr: u64,
        mode: Mode,
        (user, kernel): (&Space, &Space),
        has_call: bool,
    ) -> Place {
        let Some(range) = mode.range_of(addr, user, kernel) else {
            return Place { function: None, file: None, in_file: addr };
        };
        if mode == Mode::Kernel {
            return self.kernel_place(addr, range, kernel);
        }
        if !mode.is_guest() && !range.file.has_code() && !range.file.is_jit() {
            if let Some((function, map)) = self.jit_maps.function(addr, user.maker()) {
                let file = Some(Untrusted::from(map.as_os_str().as_bytes()));
                return Place { function: Some(function), file, in_file: addr };
            }
            if has_call && range.executable && range.file.is_memory() {
                let name = Rc::new(Untrusted::from("[compiled code]"));
                return Place { function: Some((name, 0)), file: None, in_file: addr };
            }
            self.tell_if_untold(range, user);
        }
        let name = range.file.name.as_bytes();
        let file = match name {
            b"//anon" => None,
            _ if name.starts_with(GUEST_KERNEL) => Some(Untrusted::from(GUEST_KERNEL)),
            _ => Some(range.file.name.clone()),
        };
        Place { function: self.function(addr, range), file, in_file: range.file_offset(addr) }
    }

    /// Tells the user once that code of a process has no names, if nothing tells of any.
    fn tell_if_untold(&mut self, range: &Range, space: &Space) {
        let is_told = || space.find_range(&|range: &Range| range.file.is_jit()).is_some();
        if range.executable
            && range.file.is_memory()
            && let Some(missing) = self.jit_maps.missing(space.maker()).filter(|_| !is_told())
        {
            self.notices.add(missing);
        }
    }

    fn function(&mut self, addr: u64, range: &Range) -> Option<Function> {
        let Some(addr) = range.link_time(addr) else {
            range.file.tell_if_missing(&self.notices);
            return None;
        };
        let file = Arc::as_ptr(&range.file).addr();
        if let Some(kept) = self.kept.get(&(file, addr)) {
            return kept.clone();
        }
        let named = |addr| {
            let (start, aliases) = range.file.function(addr)?;
            Some((start, self.best_alias(&aliases)?))
        };
        let found = self.linkage_entry(&range.file, addr).or_else(|| named(addr));
        // A handler returns to the first byte of its trampoline, which was not called.
        let trampoline = || named(addr.wrapping_add(1)).filter(|(start, _)| *start > addr);
        let found = found.or_else(|| range.file.is_trampoline(addr).then(trampoline)?);
        let found = found.map(|(start, name)| (Rc::new(name), addr.saturating_sub(start)));
        if self.kept.len() >= MAX_KEPT {
            self.kept.clear();
            self.files.clear();
        }
        self.kept.insert((file, addr), found.clone());
        self.files.entry(file).or_insert_with(|| Arc::clone(&range.file));
        found
    }

    /// The best name of a function, as it is shown.
    fn best_alias(&self, aliases: &[Alias]) -> Option<Untrusted> {
        let named = aliases.iter().filter(|alias| !alias.name.is_empty());
        let named = named.map(|alias| (shown(&alias.name, self.version), alias.rank));
        let named: Vec<_> = named.collect();
        let (best, _) = best_of(named.iter(), |(name, rank)| (name.as_bytes(), *rank))?;
        Some(best.clone())
    }

    /// The start of the entry of a linkage table that holds a link-time address, and
    /// what perf calls it.
    fn linkage_entry(&self, file: &RecordedFile, addr: u64) -> Option<(u64, Untrusted)> {
        let entry = file.linkage(addr)?;
        let callee = match (self.version, entry.callee) {
            (Layout::Perf6_1, _) if !entry.is_in_plt => return None,
            (version, Callee::Named(at)) => shown(&file.name_at(at)?, version),
            (Layout::Perf6_1, Callee::Chosen(_)) => Untrusted::default(),
            (Layout::Perf7_2, Callee::Chosen(at)) => {
                let there = file.function(at).filter(|&(start, _)| start == at);
                let name = there.and_then(|(_, aliases)| self.best_alias(&aliases));
                name.unwrap_or_else(|| Untrusted::from(format!("offset_{at:#x}")))
            }
        };
        Some((entry.start, Untrusted::from([callee.as_bytes(), b"@plt"].concat())))
    }

    fn kernel_place(&mut self, addr: u64, range: &Range, kernel: &Space) -> Place {
        let name = range.file.name.as_bytes();
        let is_core = name.starts_with(KERNEL);
        let module = if is_core { None } else { module_name(name) };
        let file = match &module {
            Some(module) => Untrusted::from(format!("[{module}]")),
            None if is_core => Untrusted::from(KERNEL),
            None => range.file.name.clone(),
        };
        let symbols = self.kernel.get_or_init(|| {
            let is_core = |range: &Range| range.file.name.as_bytes().starts_with(KERNEL);
            let core = kernel.find_range(&is_core);
            let mut sampled = self.sampled.clone();
            if let SampledKernel::Recorded(recorded) = &mut sampled {
                if let Some(id) = core.and_then(|range| range.file.build_id()) {
                    recorded.build_id = Some(id.into());
                }
                if let Some(told) = &kernel.release {
                    recorded.release = Some((**told).clone());
                }
            }
            KernelSymbols::of(&sampled, core.and_then(text_of).as_ref(), &self.notices)
        });
        let function = symbols.find(addr, module.as_deref());
        let function = function.map(|(name, past)| (Rc::new(Untrusted::from(name)), past));
        Place { function, file: Some(file), in_file: addr }
    }
}

/// Where the kernel was loaded: the mapping of its image is called by a symbol, and has the address of
/// that in place of an offset.
fn text_of(core: &Range) -> Option<KernelText> {
    let symbol = core.file.name.as_bytes().strip_prefix(KERNEL)?;
    (!symbol.is_empty()).then(|| KernelText { symbol: Untrusted::from(symbol), addr: core.offset })
}

/// The name of a module from that of its file: `/lib/…/nf-tables.ko.xz`, or `[nf_tables]`.
fn module_name(file: &[u8]) -> Option<String> {
    let file = plain(file)?;
    if let Some(name) = file.strip_prefix('[') {
        return name.strip_suffix(']').map(str::to_owned);
    }
    let (_, name) = file.rsplit_once('/')?;
    let (name, _) = name.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

/// Which of several names of one function perf shows: one with a size, not a weak one, a
/// global one, the one with the fewest underscores in front, the longest.
fn best_of<T>(
    names: impl Iterator<Item = T>,
    of: impl for<'b> Fn(&'b T) -> (&'b [u8], Rank),
) -> Option<T> {
    let key = |candidate: &T| {
        let (name, rank) = of(candidate);
        let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
        let is_sized = rank != Rank::Label;
        (is_sized, rank != Rank::Weak, rank == Rank::Global, Reverse(underscores), name.len())
    };
    // The first of those that are alike.
    names.reduce(|best, next| if key(&next) > key(&best) { next } else { best })
}

/// What a function is called, which has this name in its file.
pub(crate) fn function_name(name: &[u8]) -> Untrusted {
    shown(name, Layout::Perf7_2)
}

/// The name of a function, as it was in the source where it is a mangled one.
fn shown(name: &[u8], version: Layout) -> Untrusted {
    let parameters = match version {
        Layout::Perf7_2 => Parameters::Shown,
        Layout::Perf6_1 => Parameters::LeftOut,
    };
    let demangled = plain(name).and_then(|name| demangle_with(name, MAX_NAME, parameters));
    demangled.map_or_else(|| Untrusted::from(name), Untrusted::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_of_several_names_the_one_that_perf_shows_is_taken() {
        let best = |names: &[(&'static str, Rank)]| {
            best_of(names.iter(), |name| (name.0.as_bytes(), name.1)).map(|name| name.0)
        };
        use Rank::{Global, Label, Local, Weak};
        for (names, expected) in [
            (&[("label", Label), ("f", Local)][..], Some("f")),
            (&[("weak", Weak), ("__local", Local)], Some("__local")),
            (&[("local", Local), ("__global", Global)], Some("__global")),
            (&[("__a", Global), ("b", Global), ("_c", Global)], Some("b")),
            (&[("ab", Global), ("abc", Global), ("a", Global)], Some("abc")),
            (&[("one", Global), ("two", Global)], Some("one")),
            (&[], None),
        ] {
            assert_eq!(best(names), expected, "{names:?}");
        }
    }

    #[test]
    fn d5_a_module_of_the_kernel_is_called_by_its_name() {
        assert_eq!(
            module_name(b"/lib/modules/6.1/net/nf-tables.ko.xz").as_deref(),
            Some("nf_tables")
        );
        assert_eq!(module_name(b"[ext4]").as_deref(), Some("ext4"));
        assert_eq!(module_name(b"/bin/true"), None);
    }
}
