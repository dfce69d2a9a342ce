//! Programs as people have them: how each is made, and what is true of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::{skip, tool};

use crate::support::{Target, compile, scratch, wait_for_cpu};

const TABLES: &[&str] =
    &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-Wl,--build-id"];

/// What a program is to those who look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Static,
    /// What was stripped off it is in a directory, by its build id.
    Stripped,
    /// The same, beside it, by its debug link.
    Linked,
    /// Its file is another one after it was recorded.
    Rebuilt,
    /// The same, and nothing is kept by build id.
    RebuiltNotKept,
    /// The same of a file without a build id.
    RebuiltNoId,
    /// Its file was removed while it ran.
    Removed,
    /// The same, and nothing is kept by build id.
    RemovedNotKept,
    /// It was executed from memory.
    Memory,
    /// Its file is in a mount namespace of its own, and another one has its path.
    Mounted,
    /// It has moved its code to memory.
    Moved,
    /// It executes code that it has made and that keeps frame pointers, which a map names.
    MadeMap,
    /// The same with a dump, which it maps.
    MadeDump,
    /// The same, of which nothing tells.
    MadeUntold,
    /// A child without an exec executes such code, which the map of its parent names.
    MadeForked,
    /// Such code in a container, whose map is there.
    ContainerMap,
    /// The same with a dump.
    ContainerDump,
    /// The same, and the container is gone when the recording is read.
    ContainerGone,
}

impl Kind {
    pub const ALL: [Self; 19] = [
        Self::Plain,
        Self::Static,
        Self::Stripped,
        Self::Linked,
        Self::Rebuilt,
        Self::RebuiltNotKept,
        Self::RebuiltNoId,
        Self::Removed,
        Self::RemovedNotKept,
        Self::Memory,
        Self::Mounted,
        Self::Moved,
        Self::MadeMap,
        Self::MadeDump,
        Self::MadeUntold,
        Self::MadeForked,
        Self::ContainerMap,
        Self::ContainerDump,
        Self::ContainerGone,
    ];

    /// What the program says of its code, if it makes that.
    fn teller(self) -> Option<&'static str> {
        match self {
            Self::MadeMap | Self::MadeForked | Self::ContainerMap | Self::ContainerGone => {
                Some("map")
            }
            Self::MadeDump | Self::ContainerDump => Some("dump"),
            Self::MadeUntold => Some("none"),
            _ => None,
        }
    }

    /// The functions that are on its stack.
    pub fn names(self) -> &'static [&'static str] {
        match self.teller() {
            None => &["moved_inner", "moved_outer", "main"],
            Some("dump") => &["named_by_dump", "main"],
            // Without a teller it has no name: whoever showed one would have made it up.
            Some(_) => &["named_by_map", "main"],
        }
    }

    const fn is_contained(self) -> bool {
        matches!(self, Self::ContainerMap | Self::ContainerDump | Self::ContainerGone)
    }

    /// Whether it still runs when its recording is read.
    const fn is_read_alive(self) -> bool {
        matches!(self, Self::ContainerMap | Self::ContainerDump)
    }

    /// How long it is looked at by the clock.
    pub const fn seconds(self) -> &'static str {
        // A child that began before is not recorded, and lives for one.
        if matches!(self, Self::MadeForked) { "2" } else { "1" }
    }

    pub const fn is_kept(self) -> bool {
        !matches!(self, Self::RebuiltNotKept | Self::RemovedNotKept)
    }

    /// Starts it; `None` if this machine cannot.
    pub fn start(self) -> Option<Subject> {
        let test = format!("people_{self:?}");
        let source = if self.teller().is_some() { "compiled.c" } else { "remapped.c" };
        let more: &[_] = match self {
            Self::Static => &["-static"],
            Self::RebuiltNoId => &["-Wl,--build-id=none"],
            _ => &[],
        };
        let program = compile(&test, source, &[TABLES, more].concat())?;
        let folder = scratch(&format!("{test}_folder"));
        if matches!(self, Self::Stripped | Self::Linked) {
            strip(&program, self == Self::Linked)?;
        }
        let target = Target::start_command(&mut self.command(&program, &folder)?);
        let build_id = build_id(&program);
        if matches!(self, Self::Removed | Self::RemovedNotKept) {
            fs::remove_file(&program).unwrap();
        }
        let process = if self.is_contained() { child_of(target.id())? } else { target.id() };
        Some(Subject { kind: self, target: Some(target), process, program, folder, build_id })
    }

    fn command(self, program: &Path, folder: &Path) -> Option<Command> {
        let mut command = Command::new(program);
        match self {
            Self::Memory => {
                let flags = ["-O1"];
                command = Command::new(compile("people_starter", "from_memory.c", &flags)?);
                command.arg(program);
            }
            Self::Mounted => {
                fs::copy("/bin/true", folder.join("program")).unwrap();
                let script = "mount -t tmpfs none \"$1\" && cp \"$0\" \"$1/program\" && shift && \
                              exec \"$folder/program\" \"$@\"";
                command = Command::new(unshare()?);
                command.args(["--mount", "sh", "-c", script]).arg(program).arg(folder);
                command.env("folder", folder);
            }
            _ if self.is_contained() => {
                // It is process 1 there, and has a /tmp of its own, which may hide its file.
                let script = "exec 9< \"$0\" && mount -t tmpfs none /tmp && cd /tmp && \
                              exec /proc/self/fd/9 \"$@\"";
                command = Command::new(unshare()?);
                command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
                command.arg(program);
            }
            _ => {}
        }
        let how = if self == Self::Moved { "mremap" } else { "stay" };
        match (self, self.teller()) {
            (Self::MadeForked, Some(teller)) => command.args([teller, "children"]),
            (_, Some(teller)) => command.arg(teller),
            (_, None) => command.args([how, "600", "ready"]),
        };
        command.current_dir(folder);
        Some(command)
    }
}

/// Moves what is not executed to a file of its own, which the other one names if `is_linked`.
fn strip(program: &Path, is_linked: bool) -> Option<()> {
    let folder = match is_linked {
        true => program.parent().unwrap().to_owned(),
        false => debug_folder(program).join(".build-id").join(&build_id(program)[..2]),
    };
    let name = if is_linked { "program" } else { &build_id(program)[2..] };
    let debug = folder.join(format!("{name}.debug"));
    fs::create_dir_all(&folder).unwrap();
    let run = |options: &[&str], files: &[&Path]| {
        let output = Command::new(tool("objcopy")?).args(options).args(files).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Some(())
    };
    run(&["--only-keep-debug"], &[program, &debug])?;
    run(&["--strip-all"], &[program])?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    if is_linked { run(&[&link], &[program]) } else { Some(()) }
}

fn debug_folder(program: &Path) -> PathBuf {
    program.with_file_name("debug")
}

fn unshare() -> Option<PathBuf> {
    if !nix::unistd::geteuid().is_root() {
        skip("only root can make a container");
        return None;
    }
    tool("unshare")
}

/// The child of a process that was started last.
fn child_of(process: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    children.split_whitespace().next_back()?.parse().ok()
}

fn build_id(program: &Path) -> String {
    let output = Command::new("readelf").arg("-n").arg(program).output().unwrap();
    let notes = String::from_utf8_lossy(&output.stdout).into_owned();
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap_or_default().to_owned()
}

/// A program that runs, or has run.
pub struct Subject {
    pub kind: Kind,
    target: Option<Target>,
    process: u32,
    pub program: PathBuf,
    pub folder: PathBuf,
    /// That of its file while it is recorded.
    build_id: String,
}

impl Subject {
    /// The process that is recorded, with its children.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The process that has the functions on its stack.
    pub fn busy(&self) -> u32 {
        match self.kind {
            // There may be none between two.
            Kind::MadeForked => child_of(self.process).unwrap_or(self.process),
            _ => self.process,
        }
    }

    /// How a recording of it ends, which is longer at each attempt: when it has had some time of a CPU,
    /// or after a time by the clock where others have that.
    pub fn end_of_recording(&self, attempt: u32) -> Vec<String> {
        if self.kind == Kind::MadeForked {
            let seconds: u64 = self.kind.seconds().parse().unwrap();
            return vec!["--duration".to_owned(), (seconds << attempt >> 1).to_string()];
        }
        [vec!["--".to_owned()], wait_for_cpu(self.process, 500 * attempt)].concat()
    }

    pub fn debug_folder(&self) -> PathBuf {
        debug_folder(&self.program)
    }

    /// Ends it, if it does not live on, and what happens to its file after that.
    pub fn end(&mut self) {
        if self.kind.is_read_alive() {
            return;
        }
        self.target = None;
        if matches!(self.kind, Kind::Rebuilt | Kind::RebuiltNotKept | Kind::RebuiltNoId) {
            fs::remove_file(&self.program).unwrap();
            fs::copy("/bin/true", &self.program).unwrap();
        }
    }

    /// What has to be in the one line that tells what is not found in a recording of it, if
    /// something is not.
    pub fn lacks(&self) -> Option<Vec<String>> {
        let file = self.program.display().to_string();
        let (process, recorded) = (self.process, self.build_id.as_str());
        let of_file = |parts: &[&str]| {
            Some([&[file.as_str()], parts].concat().into_iter().map(str::to_owned).collect())
        };
        match self.kind {
            Kind::RebuiltNotKept => {
                let now = build_id(&self.program);
                of_file(&[recorded, &now, "perf buildid-cache --add"])
            }
            Kind::RebuiltNoId => {
                of_file(&["no build id", "another file is there now", "link it with --build-id"])
            }
            Kind::RemovedNotKept => {
                of_file(&[recorded, "there is no such file now", "perf buildid-cache --add"])
            }
            Kind::MadeUntold | Kind::ContainerGone => Some(vec![
                format!("process {process} "),
                format!("neither /tmp/perf-{process}.map nor a dump"),
                "--perf-basic-prof".to_owned(),
            ]),
            _ => None,
        }
    }

    /// The same of the program while it runs.
    pub fn lacks_alive(&self) -> Option<Vec<String>> {
        self.lacks().filter(|_| self.kind == Kind::MadeUntold)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.process));
    }
}
