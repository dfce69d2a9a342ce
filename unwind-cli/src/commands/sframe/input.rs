//! What a call names: files, archives of objects, standard input.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use object::read::archive::{ArchiveFile, ArchiveKind};
use unwind_target::InputError;
use unwind_target::elf::ElfFile;
use unwind_target::untrusted::escaped;

use crate::commands::sframe::error::SframeError;
use crate::failure::Failure;

/// The most bytes that are read of a raw section, a pipe or an archive. No table of
/// 32-bit offsets is larger.
const LIMIT: u64 = 1 << 33;

/// What the files hold.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Form {
    /// A file is not ELF, but the bytes of the section alone
    #[arg(long)]
    raw: bool,

    /// Where the raw section is loaded
    #[arg(long, value_name = "ADDR", requires = "raw", value_parser = parse_addr)]
    vaddr: Option<u64>,
}

impl Form {
    /// An ELF file or an archive of such.
    pub(crate) const ELF: Self = Self { raw: false, vaddr: None };
}

/// An object, a program or library, or a section alone.
#[derive(Debug)]
pub(crate) struct Image {
    /// The name of the file; of the member of an archive: `libx.a(y.o)`.
    pub(crate) path: PathBuf,
    pub(crate) content: Content,
    /// The call is about several.
    pub(crate) is_one_of_many: bool,
}

/// What an image is.
#[derive(Debug)]
pub(crate) enum Content {
    Elf(ElfFile),
    /// A section, and where it is loaded if the user says so.
    Raw(Vec<u8>, Option<u64>),
}

impl Image {
    /// Writes which of several images comes, as GNU tools do.
    pub(crate) fn write_heading(&self, out: &mut impl io::Write) -> io::Result<()> {
        match self.is_one_of_many {
            true => writeln!(out, "\nFile: {}", escaped(&self.path)),
            false => Ok(()),
        }
    }
}

/// Goes through the images of a call. A failure at one keeps nothing from the
/// others: it is printed, and the call fails in the end.
///
/// Members of archives that have no tables are passed over, but for an archive in
/// which none has.
///
/// # Errors
///
/// The [`Failure`] of the only image; of several, how many failed, with the exit code
/// of the first. At once, that the output cannot be written.
pub(crate) fn each_image(
    paths: &[PathBuf],
    form: Form,
    mut look: impl FnMut(&Image) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut failures = Failures { images: 0, failed: 0, exit_code: 0 };
    let is_many = paths.len() > 1;
    for path in paths {
        let result = match open(path, form) {
            Ok(Opened::Content(content)) => {
                look(&Image { path: path.clone(), content, is_one_of_many: is_many })
            }
            Ok(Opened::Archive(bytes)) => {
                match each_member(path, &bytes, &mut failures, &mut look) {
                    // Its members are counted.
                    Ok(()) => continue,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        if paths.len() == 1 && failures.images == 0 {
            return result;
        }
        failures.count(result)?;
    }
    failures.result()
}

/// The images of a call that could not be looked at, or were not good.
struct Failures {
    images: u64,
    failed: u64,
    exit_code: u8,
}

impl Failures {
    fn count(&mut self, result: Result<(), Failure>) -> Result<(), Failure> {
        self.images = self.images.saturating_add(1);
        match result {
            Ok(()) => {}
            Err(error) if error.is_of_output() => return Err(error),
            Err(error) => {
                // With standard error gone there is no other place to tell it.
                let _ = writeln!(io::stderr(), "unwind: {error}");
                self.failed = self.failed.saturating_add(1);
                if self.exit_code == 0 {
                    self.exit_code = error.exit_code();
                }
            }
        }
        Ok(())
    }

    fn result(&self) -> Result<(), Failure> {
        let &Self { images, failed, exit_code } = self;
        match failed {
            0 => Ok(()),
            _ => Err(SframeError::Several { images, failed, exit_code }.into()),
        }
    }
}

/// Goes through the members of an archive.
fn each_member(
    path: &Path,
    bytes: &[u8],
    failures: &mut Failures,
    look: &mut impl FnMut(&Image) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let damaged = |error: object::read::Error| SframeError::Archive {
        path: path.to_path_buf(),
        error: error.to_string(),
    };
    let archive = ArchiveFile::parse(bytes).map_err(damaged)?;
    if archive.is_thin() {
        return Err(SframeError::ThinArchive { path: path.to_path_buf() }.into());
    }
    // The members of other kinds are where a list says, and may share bytes.
    if matches!(archive.kind(), ArchiveKind::AixBig) {
        return Err(SframeError::UnknownArchive { path: path.to_path_buf() }.into());
    }
    let (mut with, mut without) = (0_u64, 0_u64);
    for member in archive.members() {
        let member = member.map_err(damaged)?;
        let mut name = path.as_os_str().to_owned();
        name.push("(");
        name.push(OsStr::from_bytes(member.name()));
        name.push(")");
        let path = PathBuf::from(name);
        let result =
            member.data(bytes).map_err(|error| Failure::from(damaged(error))).and_then(|bytes| {
                match ElfFile::from_bytes(bytes.to_vec()) {
                    Ok(elf) => {
                        let content = Content::Elf(elf);
                        look(&Image { path: path.clone(), content, is_one_of_many: true })
                    }
                    Err(error) => Err(InputError::Elf { path: path.clone(), error }.into()),
                }
            });
        let reason = result.as_ref().err().and_then(Failure::reason);
        if reason.is_some_and(SframeError::is_absence) {
            without = without.saturating_add(1);
        } else {
            with = with.saturating_add(1);
            failures.count(result)?;
        }
    }
    if with == 0 {
        return Err(SframeError::NoMember { path: path.to_path_buf() }.into());
    }
    if without != 0 {
        let path = escaped(path);
        let _ = writeln!(io::stderr(), "unwind: {path}: {without} members have no tables");
    }
    Ok(())
}

/// Goes through the members of an archive. Returns how many have tables or are damaged; `None`
/// if the archive is damaged itself, or none has tables.
pub(crate) fn members(
    bytes: &[u8],
    mut look: impl FnMut(&Image) -> Result<(), Failure>,
) -> Option<u64> {
    let mut failures = Failures { images: 0, failed: 0, exit_code: 0 };
    each_member(Path::new("-"), bytes, &mut failures, &mut look).ok()?;
    Some(failures.images)
}

enum Opened {
    Content(Content),
    Archive(Vec<u8>),
}

/// Opens one file; `-` is standard input.
fn open(path: &Path, form: Form) -> Result<Opened, Failure> {
    let read_error = |error| Failure::from(InputError::Read { path: path.to_path_buf(), error });
    let mut file = match path.as_os_str().as_encoded_bytes() {
        b"-" => io::stdin().as_fd().try_clone_to_owned().map(File::from),
        _ => File::open(path),
    }
    .map_err(read_error)?;
    let metadata = file.metadata().map_err(read_error)?;
    if form.raw {
        let bytes = read_all(path, file)?;
        return Ok(Opened::Content(Content::Raw(bytes, form.vaddr)));
    }
    let elf_error = |error| Failure::from(InputError::Elf { path: path.to_path_buf(), error });
    let mut magic = [0; 8];
    if metadata.is_file() {
        let is_archive = std::os::unix::fs::FileExt::read_exact_at(&file, &mut magic, 0).is_ok()
            && is_archive(&magic);
        if is_archive {
            // What standard input was read up to before does not matter.
            io::Seek::rewind(&mut file).map_err(read_error)?;
            return Ok(Opened::Archive(read_all(path, file)?));
        }
        return ElfFile::from_file(file)
            .map(|elf| Opened::Content(Content::Elf(elf)))
            .map_err(elf_error);
    }
    if metadata.is_dir() {
        return Err(read_error(Errno::EISDIR.into()));
    }
    let bytes = read_all(path, file)?;
    if is_archive(bytes.get(..magic.len()).unwrap_or_default()) {
        return Ok(Opened::Archive(bytes));
    }
    ElfFile::from_bytes(bytes).map(|elf| Opened::Content(Content::Elf(elf))).map_err(elf_error)
}

fn is_archive(magic: &[u8]) -> bool {
    matches!(magic, b"!<arch>\n" | b"!<thin>\n" | b"<bigaf>\n")
}

fn read_all(path: &Path, file: File) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = file.take(LIMIT).read_to_end(&mut bytes);
    match read.map(u64::try_from) {
        Ok(Ok(len)) if len < LIMIT => Ok(bytes),
        Ok(_) => Err(SframeError::TooLarge { path: path.to_path_buf() }.into()),
        Err(error) => Err(InputError::Read { path: path.to_path_buf(), error }.into()),
    }
}

/// An address: hexadecimal after `0x`, else decimal.
pub(crate) fn parse_addr(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = match digits {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "an address is 0x and hexadecimal digits, or a decimal number".into())
}
