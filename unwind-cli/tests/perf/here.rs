//! Programs that are compiled and recorded here and now, by the perf of this machine, and
//! its text of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use test_support::{Compiler, perf_record, skip, tool};

use crate::files::{done, text, word};

/// The perf of this machine, and a folder for what it records.
pub(crate) struct Recorder {
    pub(crate) perf: PathBuf,
    /// What the command calls its layout.
    pub(crate) layout: &'static str,
    pub(crate) folder: PathBuf,
}

impl Recorder {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let perf = tool("perf")?;
        let version = text(&Command::new(&perf).arg("--version").output().unwrap().stdout);
        let layout = if version.contains(" 6.1") { "6.1" } else { "7.2" };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Some(Self { perf, layout, folder })
    }

    /// Compiles this source with these flags and the file that it is linked to.
    pub(crate) fn compile(&self, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let compiler = Compiler::find(if flags.contains(&"-m32") { &["-m32"] } else { &[] })?;
        let (path, out) = (self.folder.join(format!("{name}.c")), self.folder.join(name));
        fs::write(&path, source).unwrap();
        compiler.compile(&path, &out, flags);
        Some(out)
    }

    /// Records samples of a program with their call chains.
    fn record(&self, program: &Path, options: &[&str]) -> Option<PathBuf> {
        let data = self.folder.join("perf.data");
        let mut record = Command::new(&self.perf);
        record.env("HOME", &self.folder).args(["record", "-q", "-e", "cpu-clock:u", "-F", "9999"]);
        let output = perf_record(record.args(options).arg("-o").arg(&data).arg(program));
        if !output.status.success() {
            skip(&format!("perf cannot record here: {}", text(&output.stderr)));
            return None;
        }
        Some(data)
    }

    /// The text of perf.
    fn script(&self, data: &Path) -> String {
        let mut script = Command::new(&self.perf);
        script.env("HOME", &self.folder).args(["script", "--no-inline", "-i"]).arg(data);
        text(&script.output().unwrap().stdout)
    }

    /// The text of the command.
    fn own(&self, data: &Path) -> String {
        done(&["script", "--layout", self.layout, data.to_str().unwrap()])
    }
}

/// Code of its own and of the C library below and above each other.
pub(crate) const SORTING: &str = include_str!("../programs/sorting.c");

/// Functions that a program calls by entries of its linkage table, and one that the
/// library itself calls so, since it is chosen when it is loaded.
const LIBRARY: &str = "
static int plain(int a) { return a + 3; }
static int (*choose(void))(int) { return plain; }
__attribute__((visibility(\"hidden\"), ifunc(\"choose\"))) int chosen(int);
int f1(int a) { return a + 1; }
int f2(int a) { return chosen(a) + 2; }
";

/// Without the start code of C programs, whose `_init` perf 6.1 takes for as long as the
/// way to the next symbol. The entries of the linkage table and the words that they read are taken out of
/// the CPU's caches, so that samples are in these entries: a CPU is through them too soon otherwise. An
/// entry is where a call leads that is never made.
const CALLER: &str = "
int f1(int), f2(int);
volatile int sum;
extern char _GLOBAL_OFFSET_TABLE_[] __attribute__((visibility(\"hidden\")));
#ifdef TAKEN
int (*volatile taken)(int);
#endif
extern char call1[] __attribute__((visibility(\"hidden\")));
extern char call2[] __attribute__((visibility(\"hidden\")));
static char *entry(char *call) { return call + 5 + *(int *)(call + 1); }
void _start(void) {
    __asm__ volatile(\"jmp 1f; call1: call f1@PLT; call2: call f2@PLT; 1:\");
#ifdef TAKEN
    taken = f1;
    taken = f2;
#endif
    for (long i = 0; i < 2000000; i++) {
        for (int at = -64; at <= 64; at += 64)
            __asm__ volatile(\"clflush %0\" : : \"m\"(_GLOBAL_OFFSET_TABLE_[at]));
        __asm__ volatile(\"clflush %0\" : : \"m\"(*entry(call1)));
        __asm__ volatile(\"clflush %0\" : : \"m\"(*entry(call2)));
        sum = f1(sum);
        sum = f2(sum);
    }
#ifdef __x86_64__
    __asm__ volatile(\"syscall\" : : \"a\"(231), \"D\"(0));
#else
    __asm__ volatile(\"int $0x80\" : : \"a\"(252), \"b\"(0));
#endif
}
";

impl Recorder {
    /// Builds the library and its caller.
    fn caller(&self, flags: &[&str]) -> Option<PathBuf> {
        let shared = [flags, &["-shared", "-fPIC", "-nostartfiles"]].concat();
        let library = self.compile("library.so", LIBRARY, &shared)?;
        let library = library.to_str().unwrap();
        let own = ["-nostartfiles", "-Wl,--no-as-needed", library];
        self.compile("caller", CALLER, &[flags, &own].concat())
    }

    /// Records until samples are in entries of the linkage tables of these files, and returns
    /// what `show` makes of that. How often a CPU is interrupted in an entry differs from one to
    /// the next. `None` if nothing can be recorded.
    fn with_entries(
        &self,
        program: &Path,
        files: &[&str],
        show: impl Fn(&Path) -> String,
    ) -> Option<(PathBuf, String)> {
        const ATTEMPTS: usize = 40;
        for attempt in 1.. {
            let data = self.record(program, &["-g"])?;
            let shown = show(&data);
            let has_entry = |file: &&str| {
                let end = format!("/{file})");
                shown.lines().any(|line| line.contains("@plt") && line.ends_with(&end))
            };
            if files.iter().all(has_entry) || attempt == ATTEMPTS {
                return Some((data, shown));
            }
        }
        None
    }
}

#[test]
fn d5_entries_of_linkage_tables_are_called_as_perf_calls_them() {
    let Some(recorder) = Recorder::new("d5_linkage") else { return };
    for flags in [&["-O2"][..], &["-O2", "-m32", "-no-pie"], &["-O2", "-m32", "-pie", "-fPIE"]] {
        let Some(program) = recorder.caller(flags) else { continue };
        let own = |data: &Path| recorder.own(data);
        let Some((data, found)) = recorder.with_entries(&program, &["caller"], own) else { return };
        let expected = recorder.script(&data);
        assert!(found.contains("@plt"), "{flags:?}: no sample is in an entry");
        assert_eq!(found.lines().count(), expected.lines().count(), "{flags:?}");
        for (found, expected) in found.lines().zip(expected.lines()) {
            // perf 6.1 takes the entries of 32-bit files for 4 bytes long.
            let has_entry = found.contains("@plt") || expected.contains("@plt");
            let is_other = flags.contains(&"-m32") && has_entry;
            assert!(is_other || found == expected, "{flags:?}:\n{found}\n{expected}");
        }
    }
}

#[test]
fn d5_entries_beside_plt_are_called_by_the_function_that_they_lead_to() {
    let Some(recorder) = Recorder::new("d5_plt_sec") else { return };
    for flags in [
        &["-O2", "-fcf-protection", "-Wl,-z,ibtplt"][..],
        // By `.plt.got`, whose words are set when the program is loaded.
        &["-O2", "-DTAKEN"],
    ] {
        let Some(program) = recorder.caller(flags) else { return };
        let shown = |data: &Path| done(&["script", "-F", "ip,sym,dso", data.to_str().unwrap()]);
        let files = ["caller", "library.so"];
        let Some((data, frames)) = recorder.with_entries(&program, &files, shown) else { return };
        let name = data.to_str().unwrap();
        let of = |file: &str| -> Vec<&str> {
            let end = format!("/{file})");
            let lines = frames.lines().filter(|line| line.ends_with(&end));
            lines.map(|line| line.split_whitespace().nth(1).unwrap()).collect()
        };
        let caller = of("caller");
        assert!(caller.iter().any(|name| name.ends_with("@plt")), "{flags:?}: {caller:?}");
        let known = ["f1@plt", "f2@plt", "_start"];
        assert!(caller.iter().all(|name| known.contains(name)), "{flags:?}: {caller:?}");
        // perf 6.1 has names for entries of `.plt` alone, as the help says.
        let old = done(&["script", "--layout", "6.1", "-F", "ip,sym,dso", name]);
        let names = |listing: &str| -> Vec<String> {
            let lines = listing.lines().filter(|line| line.ends_with("/caller)"));
            lines.map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect()
        };
        for (new, old) in names(&frames).iter().zip(names(&old)) {
            let expected = if new.ends_with("@plt") { "[unknown]" } else { new };
            assert_eq!(old, expected, "{flags:?}: {new}");
        }
        // By the function that chooses, as perf 7.2 has it.
        assert!(of("library.so").contains(&"choose@plt"), "{flags:?}");
    }
}

/// In the first sample with four words of a chain, takes `word` for the one at `at`.
fn put_into_a_chain(data: &Path, at: usize, garbage: u64) {
    let mut bytes = fs::read(data).unwrap();
    // IP, TID, TIME, CALLCHAIN, PERIOD
    let sample_type = 0x127;
    assert_eq!(word(&bytes, word(&bytes, 24) + 24), sample_type);
    let (mut record, end) = (word(&bytes, 40), word(&bytes, 40) + word(&bytes, 48));
    while record < end {
        let (kind, len) = (bytes[record], word(&bytes, record) >> 48);
        let chain = record + 8 + 4 * 8;
        if kind == 9 && word(&bytes, chain) >= 4 {
            bytes[chain + 8 + 8 * at..][..8].copy_from_slice(&garbage.to_le_bytes());
            fs::write(data, bytes).unwrap();
            return;
        }
        record += len;
    }
    panic!("no chain of four words");
}

#[test]
fn d5_a_chain_with_a_word_that_is_no_address_is_left_out_as_by_perf_and_says_so() {
    let Some(recorder) = Recorder::new("d5_garbage") else { return };
    let flags = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let flags = [&flags[..], &ALONE].concat();
    let Some(program) = recorder.compile("chain", CHAIN, &flags) else { return };
    let Some(data) = recorder.record(&program, &["-g"]) else { return };
    let whole = recorder.own(&data);
    for at in [1, 2, 3] {
        // No context has this number.
        put_into_a_chain(&data, at, 0xffff_ffff_ffff_ff9c);
        let (found, expected) = (recorder.own(&data), recorder.script(&data));
        let mark = "\t                 (";
        let (marks, frames): (Vec<_>, Vec<_>) =
            found.lines().partition(|line| line.starts_with(mark));
        let [mark] = marks[..] else { panic!("{marks:?}") };
        assert!(mark.ends_with("is left out: ffffffffffffff9c is no address)"), "{mark}");
        assert_eq!(frames, expected.lines().collect::<Vec<_>>());
        assert!(found.len() < whole.len());
    }
    // What perf takes for an address is one here.
    for garbage in [0, 1, 0xffff_8000_0000_0000, 0xffff_ffff_ffff_e000] {
        let Some(data) = recorder.record(&program, &["-g"]) else { return };
        put_into_a_chain(&data, 2, garbage);
        assert_eq!(recorder.own(&data), recorder.script(&data), "{garbage:#x}");
    }
}

const CHAIN: &str = "
volatile int sum;
__attribute__((noinline)) int work(int n) { for (int i = 0; i < 1000; i++) sum += i; return n; }
__attribute__((noinline)) int middle(int n) { return work(n) + 1; }
__attribute__((noinline)) int outer(int n) { return middle(n) + 1; }
int main(void) { for (int i = 0; i < 60000; i++) sum += outer(i); return 0; }
#ifdef ALONE
void _start(void) {
    main();
#ifdef __x86_64__
    __asm__ volatile(\"syscall\" : : \"a\"(231), \"D\"(0));
#else
    __asm__ volatile(\"int $0x80\" : : \"a\"(252), \"b\"(0));
#endif
}
#endif
";

/// Without the C library, in whose start code perf 6.1 names some places otherwise.
const ALONE: [&str; 4] = ["-DALONE", "-static", "-nostdlib", "-no-pie"];

#[test]
fn d5_samples_of_a_32_bit_program_are_named_and_walked() {
    let Some(recorder) = Recorder::new("d5_32_bit") else { return };
    let flags = ["-m32", "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let flags = [&flags[..], &ALONE].concat();
    let Some(program) = recorder.compile("chain", CHAIN, &flags) else { return };
    let Some(data) = recorder.record(&program, &["--call-graph", "fp"]) else { return };
    assert_eq!(recorder.own(&data), recorder.script(&data));

    // perf 6.1 walks no 32-bit stack, and shows the innermost frame at most; the command
    // has all.
    let Some(data) = recorder.record(&program, &["--call-graph", "dwarf,8192"]) else { return };
    let name = data.to_str().unwrap();
    let script = ["script", "--trust-fp", "--layout", recorder.layout, name];
    let (found, expected) = (done(&script), recorder.script(&data));
    let (found, expected): (Vec<_>, Vec<_>) =
        (found.split("\n\n").collect(), expected.split("\n\n").collect());
    assert_eq!(found.len(), expected.len());
    let whole = ["work", "middle", "outer", "main"];
    let mut walked = 0;
    for (found, expected) in found.iter().zip(&expected) {
        assert!(recorder.layout != "6.1" || expected.lines().count() <= 2, "{expected}");
        assert!(expected.lines().zip(found.lines()).all(|(expected, found)| expected == found));
        let names = found.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
        let names: Vec<_> = names.map(|name| name.split('+').next().unwrap()).collect();
        walked += usize::from(names.starts_with(&whole));
    }
    assert!(walked * 10 > found.len() * 9, "{walked} of {}", found.len());

    let json = done(&["script", "--json", "--trust-fp", name]);
    let samples = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let samples: Vec<_> = samples.filter(|line| line["type"] == "sample").collect();
    assert!(samples.iter().all(|sample| sample["end"] == "walked"));
}

#[test]
fn samples_of_32_bit_code_are_walked_by_its_call_frame_information() {
    let Some(recorder) = Recorder::new("32_bit_cfi") else { return };
    let flags = ["-m32", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let flags = [&flags[..], &ALONE].concat();
    let Some(program) = recorder.compile("chain", CHAIN, &flags) else { return };
    let Some(data) = recorder.record(&program, &["--call-graph", "dwarf,8192"]) else { return };
    let json = done(&["script", "--json", data.to_str().unwrap()]);
    let lines = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let samples: Vec<_> = lines.filter(|line| line["type"] == "sample").collect();
    // From `work` to what called `main`, none by a guess.
    let is_whole = |sample: &&Value| {
        let frames = sample["chain"][0]["ips"].as_array().map_or(0, Vec::len);
        frames >= 5 && sample["walk"]["gaps"].as_array().is_some_and(Vec::is_empty)
    };
    let whole = samples.iter().filter(is_whole).count();
    assert!(samples.len() > 10 && whole * 10 > samples.len() * 9, "{whole} of {}", samples.len());
}

/// So that frame pointers are all there is.
const WITHOUT_CALL_FRAMES: [&str; 2] = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];

#[test]
fn a7_a_stack_that_frame_pointers_led_along_is_marked_unless_they_are_trusted() {
    let Some(recorder) = Recorder::new("a7_gaps") else { return };
    let flags = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let flags = [&flags[..], &["-m32"], &WITHOUT_CALL_FRAMES, &ALONE].concat();
    let Some(program) = recorder.compile("chain", CHAIN, &flags) else { return };
    let Some(data) = recorder.record(&program, &["--call-graph", "dwarf,8192"]) else { return };
    let name = data.to_str().unwrap();
    let walked = |options: &[&str]| -> Vec<Value> {
        let json = done(&[&["script", "--json"], options, &[name]].concat());
        let lines = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let samples = lines.filter(|line| line["type"] == "sample");
        let deep = samples.filter(|line| line["chain"][0]["ips"].as_array().unwrap().len() > 3);
        deep.map(|line| line["walk"].clone()).collect()
    };
    let (guessed, trusted) = (walked(&[]), walked(&["--trust-fp"]));
    assert!(guessed.len() > 10 && guessed.len() == trusted.len());
    let gaps = |walk: &Value| walk["gaps"].as_array().unwrap().len();
    for (guessed, trusted) in guessed.iter().zip(&trusted) {
        // What instructions prove is no guess. At the entry of a function there may be one again.
        assert!(gaps(trusted) <= gaps(guessed));
        assert_eq!(guessed["complete"], false);
    }
    let mark = "(callers may be missing here)";
    let lines = |options: &[&str]| {
        let text = done(&[&["script"], options, &[name]].concat());
        text.lines().filter(|line| line.trim() == mark).count()
    };
    let marks = lines(&[]);
    let counted: usize = guessed.iter().map(gaps).sum();
    assert!(marks >= counted && lines(&["--trust-fp"]) <= marks, "{marks} {counted}");
}
