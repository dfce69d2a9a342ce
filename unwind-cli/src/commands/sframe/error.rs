//! What can go wrong with the tables of a file.

use std::io;
use std::path::PathBuf;

use unwind_target::counted::counted;
use unwind_target::untrusted::escaped;

use crate::commands::sframe::embed::EmbedError;
use crate::failure::Failure;

/// Why the tables of a file could not be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SframeError {
    /// An ELF file without the section.
    #[error("{} has no .sframe section; {}", escaped(path), instead_of_section(*has_frames))]
    NoSection {
        /// Which file.
        path: PathBuf,
        /// It has call frame information that a table can be made of.
        has_frames: bool,
    },
    /// An archive in which no member has tables.
    #[error("no member of {} has an .sframe section", escaped(path))]
    NoMember {
        /// Which archive.
        path: PathBuf,
    },
    /// An archive that names files and does not hold them.
    #[error("{} is a thin archive, which holds no objects; name the objects", escaped(path))]
    ThinArchive {
        /// Which archive.
        path: PathBuf,
    },
    /// An archive of another system.
    #[error("{} is an archive of a kind that is not read", escaped(path))]
    UnknownArchive {
        /// Which archive.
        path: PathBuf,
    },
    /// An archive that cannot be read to its end.
    #[error("{} is a damaged archive: {error}", escaped(path))]
    Archive {
        /// Which archive.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// Several files, not all of them good.
    #[error("{failed} of {} failed", counted(*images, "file", "files"))]
    Several {
        /// How many files and members of archives there are.
        images: u64,
        /// How many of them failed.
        failed: u64,
        /// The exit code of the first that failed.
        exit_code: u8,
    },
    /// Two tables do not say the same.
    #[error(
        "{} and {} differ in {}",
        escaped(old),
        escaped(new),
        counted(*count, "function", "functions")
    )]
    Differ {
        /// The first file.
        old: PathBuf,
        /// The second one.
        new: PathBuf,
        /// How many functions.
        count: u64,
    },
    /// A section, or a raw file, of no bytes: "no information".
    #[error("{} has an .sframe section of zero bytes, which tells nothing", escaped(path))]
    Empty {
        /// Which file.
        path: PathBuf,
    },
    /// A raw section that no file can hold.
    #[error("{} is larger than any section; is it one?", escaped(path))]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// A table that cannot be opened.
    #[error("{}: {error}", escaped(path))]
    Table {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: sframe::Error,
    },
    /// Functions or rows that could not be shown.
    #[error(
        "{} is damaged: {} could not be shown whole",
        escaped(path),
        counted(*count, "function or table", "functions or tables")
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// How many.
        count: u64,
    },
    /// Addresses mean nothing in the file.
    #[error(
        "{} is a relocatable object, or a section of one: its functions have no addresses \
         before it is linked; `unwind sframe dump` shows their sizes and rows",
        escaped(path)
    )]
    Relocatable {
        /// Which file.
        path: PathBuf,
    },
    /// A file without call frame information to make a table of.
    #[error("{} has no call frame information of a CPU that has SFrame tables", escaped(path))]
    NoFrames {
        /// Which file.
        path: PathBuf,
    },
    /// No table could be made.
    #[error("no table can be made of {}: {error}", escaped(path))]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: sframe::WriteError,
    },
    /// The result cannot be written.
    #[error("cannot write {}: {error}", escaped(path))]
    Output {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// A table that could not be put into its file.
    #[error(
        "{} cannot have a segment more: {error}; {} is the section alone",
        escaped(path),
        escaped(output)
    )]
    NotEmbedded {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: EmbedError,
        /// What was written instead.
        output: PathBuf,
    },
    /// Input and output are one file, which would be replaced.
    #[error("{} is the input, too; name another file by -o", escaped(path))]
    SameFile {
        /// Which file.
        path: PathBuf,
    },
    /// A table is against the format, or says something else than the call frame
    /// information.
    #[error("{}: {} in its tables", escaped(path), counted(*count, "fault", "faults"))]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// How many.
        count: u64,
    },
    /// The answer to a question for an address is that there is none.
    #[error(
        "{missing} of {} {} no row",
        counted(u64::try_from(*asked).unwrap_or(u64::MAX), "address", "addresses"),
        if *missing == 1 { "has" } else { "have" }
    )]
    NoRow {
        /// How many have none.
        missing: usize,
        /// How many were asked for.
        asked: usize,
    },
}

impl SframeError {
    /// Whether the file has no tables, which of a member of an archive is no failure.
    pub(crate) const fn is_absence(&self) -> bool {
        matches!(self, Self::NoSection { .. } | Self::Empty { .. } | Self::NoFrames { .. })
    }

    /// The exit code, as `--help` documents it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::SameFile { .. } => 2,
            Self::NoRow { .. } => 7,
            Self::Wrong { .. } | Self::Differ { .. } | Self::Write { .. } | Self::Output { .. } => {
                1
            }
            Self::Several { exit_code, .. } => *exit_code,
            _ => 5,
        }
    }
}

/// What can be done where there is no section.
fn instead_of_section(has_frames: bool) -> &'static str {
    match has_frames {
        true => {
            "of its call frame information `unwind sframe build` makes one, which `unwind \
             sframe check --built v3` checks"
        }
        false => "assemble it with `-Wa,--gsframe` to have one",
    }
}

impl From<SframeError> for Failure {
    fn from(error: SframeError) -> Self {
        let exit_code = error.exit_code();
        Self::new(error, exit_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d9_one_function_is_not_called_functions() {
        let differ =
            |count| SframeError::Differ { old: "a".into(), new: "b".into(), count }.to_string();
        assert_eq!(differ(1), "a and b differ in 1 function");
        assert_eq!(differ(2), "a and b differ in 2 functions");
    }
}
