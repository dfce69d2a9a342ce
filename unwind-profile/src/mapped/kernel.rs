//! The functions of the running kernel, for recordings of it.

use std::io::Read as _;
use std::{fs, mem};

use memchr::{memchr, memchr_iter, memmem, memrchr};
use object::Endianness;
use unwind_target::elf::notes::{NOTE_GNU_BUILD_ID, Notes};
use unwind_target::files::build_id_cache;
use unwind_target::target::maps::hex;
use unwind_target::untrusted::{escaped, plain};
use unwind_target::{Notices, Untrusted};

/// The kernel that samples are of.
#[derive(Clone, Debug)]
pub enum SampledKernel {
    /// The one that runs.
    Running,
    /// That of a recording.
    Recorded(RecordedKernel),
}

/// What a recording says of its kernel.
#[derive(Clone, Debug, Default)]
pub struct RecordedKernel {
    /// The build id of its image.
    pub(crate) build_id: Option<Box<[u8]>>,
    /// Its release, such as `6.1.0-18-amd64`.
    pub(crate) release: Option<Untrusted>,
}

/// Where the image of a kernel was loaded: `[kernel.kallsyms]_text`, of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelText {
    /// A symbol of it, `_text` or `_stext`.
    pub(crate) symbol: Untrusted,
    pub(crate) addr: u64,
}

/// The functions of a kernel, as `/proc/kallsyms` lists them.
#[derive(Debug, Default)]
pub(crate) struct KernelSymbols {
    text: Vec<u8>,
    /// By address; several may have the same.
    lines: Vec<Line>,
    /// How far above the addresses of the list the recorded kernel had its image, wrapping.
    shift: u64,
}

/// A line of the list. There are more than 100,000, of which a report needs few: its other words are read
/// when it is found.
#[derive(Clone, Copy, Debug)]
struct Line {
    addr: u64,
    /// Where the line begins in the text.
    start: usize,
}

/// A function that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelSymbol<'l> {
    pub(crate) name: &'l str,
    /// The name of the module that it is in.
    module: Option<&'l str>,
}

/// What is known of the kernel that runs.
#[derive(Debug)]
struct RunningKernel {
    build_id: Option<Vec<u8>>,
    release: Vec<u8>,
}

impl RunningKernel {
    fn new() -> Self {
        let release = rustix::system::uname().release().to_bytes().to_vec();
        Self { build_id: running_build_id(), release }
    }

    /// Whether a recording is of this kernel, which has its image at `addr`: proved by the build
    /// id or, where none was recorded, by the release and the address.
    fn is_of(
        &self,
        recorded: &RecordedKernel,
        text: Option<&KernelText>,
        addr: Option<u64>,
    ) -> bool {
        if let Some(id) = &recorded.build_id {
            return self.build_id.as_deref() == Some(&**id);
        }
        let is_release = recorded.release.as_ref().is_some_and(|it| it.as_bytes() == self.release);
        is_release && addr.is_some() && text.map(|text| text.addr) == addr
    }
}

/// How far apart two functions may be that are not of one module, in bytes: no symbol says where
/// the first one ends. perf takes a page, too.
const PAGE: u64 = 4096;

impl KernelSymbols {
    /// Those of the kernel that samples are of: of the one that runs, if it is that and this user may
    /// see the addresses, else those that were kept when the recording was made. `text` is where it
    /// was loaded. A notice tells of another kernel.
    pub(crate) fn of(kernel: &SampledKernel, text: Option<&KernelText>, notices: &Notices) -> Self {
        let list = fs::read("/proc/kallsyms").map_or_else(|_| Self::default(), Self::parse);
        let SampledKernel::Recorded(recorded) = kernel else { return list };
        let running = RunningKernel::new();
        let of_running = list.of_recorded(recorded, text, &running);
        // A list from before the machine was started again has the modules as they were.
        let is_at_place = |list: &Self| list.shift == 0 && !list.lines.is_empty();
        let of_running = match of_running {
            Some(list) if is_at_place(&list) => return list,
            other => other,
        };
        let kept = recorded.build_id.as_deref().and_then(Self::kept);
        let kept = kept.and_then(|list| list.of_same(text));
        match kept.or(of_running) {
            Some(symbols) => symbols,
            None => {
                notices.add(of_another_kernel(recorded, &running));
                Self::default()
            }
        }
    }

    /// What was kept of the kernel with a build id.
    fn kept(build_id: &[u8]) -> Option<Self> {
        /// The longest list that is read.
        const LIMIT: u64 = 64 << 20;
        let mut text = Vec::new();
        build_id_cache::open_kallsyms(build_id)?.take(LIMIT).read_to_end(&mut text).ok()?;
        Some(Self::parse(text)).filter(|list| !list.lines.is_empty())
    }

    /// The same list for a recording, if that is of the running kernel.
    fn of_recorded(
        self,
        recorded: &RecordedKernel,
        text: Option<&KernelText>,
        running: &RunningKernel,
    ) -> Option<Self> {
        let here = text.and_then(|text| self.addr_of(text.symbol.as_bytes()));
        if !running.is_of(recorded, text, here) {
            return None;
        }
        self.of_same(text)
    }

    /// The same list for a recording of the same image.
    fn of_same(self, text: Option<&KernelText>) -> Option<Self> {
        let here = text.and_then(|text| self.addr_of(text.symbol.as_bytes()));
        // It may be elsewhere since the machine was started again.
        let shift = text.zip(here).map_or(0, |(text, here)| text.addr.wrapping_sub(here));
        Some(Self { shift, ..self })
    }

    fn parse(text: Vec<u8>) -> Self {
        let mut next = 0;
        let lines = memchr_iter(b'\n', &text).chain([text.len()]).filter_map(|end| {
            let start = mem::replace(&mut next, end.saturating_add(1));
            let addr = addr_of_function(text.get(start..end)?)?;
            // All are zero for those who may not see them.
            (addr != 0).then_some(Line { addr, start })
        });
        let mut lines: Vec<_> = lines.collect();
        lines.sort_by_key(|line| line.addr);
        Self { text, lines, shift: 0 }
    }

    fn line(&self, start: usize) -> Option<&[u8]> {
        let rest = self.text.get(start..)?;
        rest.get(..memchr(b'\n', rest).unwrap_or(rest.len()))
    }

    fn symbol(&self, line: &Line) -> Option<KernelSymbol<'_>> {
        parse_line(self.line(line.start)?)
    }

    /// The address of a symbol of the image.
    fn addr_of(&self, name: &[u8]) -> Option<u64> {
        let end = [b" ", name, b"\n"].concat();
        let mut found = memmem::find_iter(&self.text, &end).filter_map(|at| {
            let start = memrchr(b'\n', self.text.get(..at)?).map_or(0, |end| end.saturating_add(1));
            let line = self.line(start)?;
            let is_it = parse_line(line)?.name.as_bytes() == name;
            addr_of_function(line).filter(|&addr| is_it && addr != 0)
        });
        found.next()
    }

    /// The name of the function that holds an address of the recorded kernel, and how far into it
    /// that is. Of several names it is the last one in the list, as perf has it.
    pub(crate) fn find(&self, addr: u64, module: Option<&str>) -> Option<(&str, u64)> {
        if module.is_some() && self.shift != 0 {
            // Modules were loaded again, and not as far from where they were.
            return None;
        }
        let addr = addr.wrapping_sub(self.shift);
        let after = self.lines.partition_point(|line| line.addr <= addr);
        let last = self.lines.get(after.checked_sub(1)?)?;
        let module_of = |line: &Line| self.symbol(line).map(|symbol| symbol.module);
        let is_followed =
            self.lines.get(after).is_some_and(|next| module_of(next) == module_of(last));
        let past = addr.wrapping_sub(last.addr);
        if !is_followed && past >= PAGE {
            return None;
        }
        let first = self.lines.partition_point(|line| line.addr < last.addr);
        let found = self.lines.get(first..after)?.iter().filter_map(|line| self.symbol(line));
        let last = found.rev().find(|symbol| symbol.module == module)?;
        Some((last.name, past))
    }
}

/// What is told of a recording of a kernel that does not run here.
fn of_another_kernel(recorded: &RecordedKernel, running: &RunningKernel) -> String {
    let hex = build_id_cache::hex;
    let release = recorded.release.as_ref().map(|it| format!("release {it}"));
    let id = recorded.build_id.as_deref().map(|id| format!("build id {}", hex(id)));
    let parts: Vec<String> = release.into_iter().chain(id).collect();
    let recorded = match parts.is_empty() {
        true => "that it says nothing of".to_owned(),
        false => format!("with {}", parts.join(" and ")),
    };
    let here = running.build_id.as_deref().map_or_else(|| "no build id".to_owned(), hex);
    format!(
        "functions of the kernel have no names: the recording is of a kernel {recorded}, and this \
         one, release {}, has {here}, and no symbols of it are kept in {}; report it where it was \
         recorded",
        escaped(running.release.as_slice()),
        build_id_cache::shown_folder(),
    )
}

/// How many functions a list has, and how long their names are that are found by their addresses.
#[must_use]
pub fn listed(text: &[u8]) -> (usize, usize) {
    let symbols = KernelSymbols::parse(text.to_vec());
    let found = symbols.lines.iter().filter_map(|line| {
        let (name, _) = symbols.find(line.addr, symbols.symbol(line)?.module)?;
        Some(name.len())
    });
    (symbols.lines.len(), found.sum())
}

/// The address of `ffffffff81000130 T entry_SYSCALL_64_after_hwframe`, if that is of a function.
fn addr_of_function(line: &[u8]) -> Option<u64> {
    let (addr, rest) = line.split_at_checked(memchr(b' ', line)?)?;
    let &[b' ', kind, b' ', ..] = rest else { return None };
    // perf takes data and weak symbols for functions, too.
    b"tdbw".contains(&kind.to_ascii_lowercase()).then(|| hex(addr))?
}

/// All of a line but the address; after the name there may be a tab and the module in brackets.
fn parse_line(line: &[u8]) -> Option<KernelSymbol<'_>> {
    let rest = line.get(memchr(b' ', line)?..)?;
    let &[_, _, _, ref rest @ ..] = rest else { return None };
    let (name, module) = match memchr(b'\t', rest) {
        Some(tab) => (rest.get(..tab)?, rest.get(tab.checked_add(1)?..).and_then(plain)),
        None => (rest, None),
    };
    let module = module.and_then(|module| module.strip_prefix('[')?.strip_suffix(']'));
    Some(KernelSymbol { name: plain(name)?, module })
}

/// The build id of the running kernel.
pub(crate) fn running_build_id() -> Option<Vec<u8>> {
    let notes = fs::read("/sys/kernel/notes").ok()?;
    let endian = if cfg!(target_endian = "big") { Endianness::Big } else { Endianness::Little };
    let mut notes = Notes::new(&notes, endian, 4);
    let note = notes.find(|note| note.name == b"GNU" && note.kind == NOTE_GNU_BUILD_ID)?;
    Some(note.desc.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_an_address_of_the_kernel_belongs_to_the_function_before_it() {
        let list = b"0000000000000000 A fixed_percpu_data\n\
             ffffffff81000000 T _text\n\
             ffffffff81000000 T startup_64\n\
             ffffffff81000130 t helper\n\
             ffffffff81000140 W weak\n\
             ffffffffc0000000 t hook\t[some_module]\n";
        let symbols = KernelSymbols::parse(list.to_vec());
        let name = |addr, module| symbols.find(addr, module).map(|(name, _)| name);
        assert_eq!(name(0xffff_ffff_8100_0000, None), Some("startup_64"), "the last of several");
        assert_eq!(name(0xffff_ffff_8100_0131, None), Some("helper"));
        assert_eq!(name(0xffff_ffff_80ff_ffff, None), None);
        assert_eq!(name(0xffff_ffff_c000_0010, None), None);
        assert_eq!(name(0xffff_ffff_c000_0010, Some("some_module")), Some("hook"));
        assert_eq!(name(0xffff_ffff_8100_0141, None), Some("weak"));
    }

    const LIST: &[u8] = b"ffffffff81000000 T _text\n\
        ffffffff81000100 T first\n\
        ffffffff81200000 T last\n\
        ffffffffc0000000 t hook\t[some_module]\n";

    fn running() -> RunningKernel {
        RunningKernel { build_id: Some(vec![7; 20]), release: b"6.1.0".to_vec() }
    }

    fn text_at(addr: u64) -> KernelText {
        KernelText { symbol: Untrusted::from(b"_text"), addr }
    }

    #[test]
    fn k1_only_a_kernel_that_is_proved_to_be_this_one_has_its_names() {
        let here = text_at(0xffff_ffff_8100_0000);
        let recorded = |id: Option<u8>, release: Option<&str>| RecordedKernel {
            build_id: id.map(|byte| [byte; 20].into()),
            release: release.map(|text| Untrusted::from(text.as_bytes())),
        };
        for (kernel, text, is_this) in [
            (recorded(Some(7), None), Some(&here), true),
            (recorded(Some(7), Some("other")), None, true),
            (recorded(Some(8), Some("6.1.0")), Some(&here), false),
            (recorded(None, Some("6.1.0")), Some(&here), true),
            (recorded(None, Some("6.1.0")), Some(&text_at(0xffff_ffff_9100_0000)), false),
            (recorded(None, Some("6.1.0")), None, false),
            (recorded(None, Some("3.8.11")), Some(&here), false),
            (recorded(None, None), Some(&here), false),
            (recorded(None, None), None, false),
        ] {
            let symbols =
                KernelSymbols::parse(LIST.to_vec()).of_recorded(&kernel, text, &running());
            assert_eq!(symbols.is_some(), is_this, "{kernel:?} {text:?}");
        }
        let other = recorded(Some(8), Some("3.8\x1b[2J"));
        let told = of_another_kernel(&other, &running());
        assert!(told.contains("release 3.8\\x1b[2J and build id 0808"), "{told}");
        assert!(told.contains("release 6.1.0, has 0707"), "{told}");
        let told = of_another_kernel(&recorded(None, None), &running());
        assert!(told.contains("of a kernel that it says nothing of"), "{told}");
    }

    #[test]
    fn k2_a_kernel_that_was_elsewhere_before_a_reboot_has_the_names_of_its_functions() {
        let kernel = RecordedKernel { build_id: Some([7; 20].into()), release: None };
        let moved = text_at(0xffff_ffff_9d00_0000);
        let symbols =
            KernelSymbols::parse(LIST.to_vec()).of_recorded(&kernel, Some(&moved), &running());
        let symbols = symbols.unwrap();
        assert_eq!(symbols.find(0xffff_ffff_9d00_0104, None), Some(("first", 4)));
        assert_eq!(symbols.find(0xffff_ffff_8100_0104, None), None);
        // Where a module is now nothing says.
        assert!(symbols.find(0xffff_ffff_c000_0010, Some("some_module")).is_none());
    }

    #[test]
    fn k3_an_address_far_above_the_last_function_is_in_none() {
        let symbols = KernelSymbols::parse(LIST.to_vec());
        assert_eq!(symbols.find(0xffff_ffff_811f_ffff, None), Some(("first", 0x1f_feff)));
        assert_eq!(symbols.find(0xffff_ffff_8120_0fff, None), Some(("last", 0xfff)));
        assert_eq!(symbols.find(0xffff_ffff_8120_1000, None), None, "a module comes next");
        let module = Some("some_module");
        assert!(symbols.find(0xffff_ffff_c000_0fff, module).is_some());
        assert!(symbols.find(0xffff_ffff_c000_1000, module).is_none(), "nothing comes next");
    }
}
