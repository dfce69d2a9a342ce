//! Compiles the chain of calls that the demonstration walks.
//!
//! The object's `.sframe` has to come from an assembler, and to be merged by a
//! linker that knows the format: GNU's. rustc links by lld, which does not, so
//! the chain is a shared object of its own that the program carries as bytes.
//! Where a tool is missing the program has only the prebuilt object.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCES: &str = "src/chain";

/// The two builds of the one source: the prefix of its functions, and the flag.
const BUILDS: [(&str, &str); 2] =
    [("fp", "-fno-omit-frame-pointer"), ("nofp", "-fomit-frame-pointer")];

const FLAGS: &[&str] = &[
    "-O2",
    "-fPIC",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-optimize-sibling-calls",
    "-Wa,--gsframe",
];

/// How many functions both builds have: each needs a table entry.
const FUNCTIONS: u32 = 20;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCES}");
    println!("cargo::rerun-if-env-changed=CC");

    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let compiled = match compile(&out) {
        Ok(_) => "Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/chain.so\")))",
        Err(reason) => {
            // Not a warning: the prebuilt object serves as well.
            println!("the chain is not compiled: {reason}");
            "None"
        }
    };
    fs::write(out.join("compiled.rs"), compiled)
}

/// Writes `chain.so` into `out`.
fn compile(out: &Path) -> Result<(), String> {
    let is = |key: &str, value: &str| env::var(key).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_ARCH", "x86_64") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return Err("the target is not x86-64 Linux".into());
    }
    if env::var("HOST") != env::var("TARGET") {
        return Err("the program is not compiled for this machine".into());
    }

    let mut objects = Vec::new();
    for (prefix, flag) in BUILDS {
        let object = out.join(format!("{prefix}.o"));
        let mut command = compiler();
        command.args(FLAGS).arg(flag).arg(format!("-DCHAIN={prefix}"));
        command.arg("-c").arg(Path::new(SOURCES).join("chain.c")).arg("-o").arg(&object);
        run(command)?;
        objects.push(object);
    }
    let object = out.join("chain.so");
    let mut command = compiler();
    command.args(["-shared", "-nostdlib", "-fuse-ld=bfd", "-Wl,-s", "-o"]).arg(&object);
    run(command_with(command, &objects))?;

    let bytes = fs::read(&object).map_err(|error| error.to_string())?;
    match functions(&bytes) {
        Some(FUNCTIONS) => Ok(()),
        Some(other) => Err(format!("the table has {other} of {FUNCTIONS} functions")),
        None => Err("the linker made no table".into()),
    }
}

fn command_with(mut command: Command, objects: &[PathBuf]) -> Command {
    command.args(objects);
    command
}

/// `$CC`, which may have arguments, or `cc`.
fn compiler() -> Command {
    let cc = env::var("CC").unwrap_or_default();
    let mut words = cc.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    command.args(words);
    command
}

fn run(mut command: Command) -> Result<(), String> {
    let name = command.get_program().to_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", name.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().next().unwrap_or("no message");
    Err(format!("{} failed ({}): {line}", OsStr::display(&name), output.status))
}

/// The number of functions in the table that `PT_GNU_SFRAME` leads to.
fn functions(elf: &[u8]) -> Option<u32> {
    const PT_GNU_SFRAME: u32 = 0x6474_e554;
    let headers = usize::try_from(read_u64(elf, 0x20)?).ok()?;
    let headers = elf.get(headers..)?.chunks_exact(56);
    let header = headers
        .take(usize::from(u16::from_le_bytes(field(elf, 0x38)?)))
        .find(|header| field(header, 0).map(u32::from_le_bytes) == Some(PT_GNU_SFRAME))?;
    let table = elf.get(usize::try_from(read_u64(header, 8)?).ok()?..)?;
    Some(u32::from_le_bytes(field(table, 8)?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_le_bytes)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
