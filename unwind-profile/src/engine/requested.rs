//! Events by the names that perf's users type.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use unwind_perf::record::AttrFlags;
use unwind_target::untrusted::{escaped, plain};

/// More events than a recording can have.
pub const MOST: usize = 16;

/// An event that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// As it was given, and as it is called in the recording.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// What it is limited to, and how precise it is.
    pub(crate) modes: AttrFlags,
    /// Which hits of a tracepoint are taken.
    pub filter: Option<CString>,
}

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By the kernel's numbers: of a type, which event.
    Numbered(u32, u64),
    /// A tracepoint or a probe, by its group and its name.
    Tracepoint { group: String, name: String },
}

/// The kernel's types of events.
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const TRACEPOINT: u32 = 2;
const RAW: u32 = 4;

/// Names of events, and their other names.
const NUMBERED: [(&str, u32, u64); 29] = [
    ("cycles", HARDWARE, 0),
    ("cpu-cycles", HARDWARE, 0),
    ("instructions", HARDWARE, 1),
    ("cache-references", HARDWARE, 2),
    ("cache-misses", HARDWARE, 3),
    ("branches", HARDWARE, 4),
    ("branch-instructions", HARDWARE, 4),
    ("branch-misses", HARDWARE, 5),
    ("bus-cycles", HARDWARE, 6),
    ("stalled-cycles-frontend", HARDWARE, 7),
    ("idle-cycles-frontend", HARDWARE, 7),
    ("stalled-cycles-backend", HARDWARE, 8),
    ("idle-cycles-backend", HARDWARE, 8),
    ("ref-cycles", HARDWARE, 9),
    ("cpu-clock", SOFTWARE, 0),
    ("task-clock", SOFTWARE, 1),
    ("page-faults", SOFTWARE, 2),
    ("faults", SOFTWARE, 2),
    ("context-switches", SOFTWARE, 3),
    ("cs", SOFTWARE, 3),
    ("cpu-migrations", SOFTWARE, 4),
    ("migrations", SOFTWARE, 4),
    ("minor-faults", SOFTWARE, 5),
    ("major-faults", SOFTWARE, 6),
    ("alignment-faults", SOFTWARE, 7),
    ("emulation-faults", SOFTWARE, 8),
    ("dummy", SOFTWARE, 9),
    ("bpf-output", SOFTWARE, 10),
    ("cgroup-switches", SOFTWARE, 11),
];

/// Why a text names no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// There is nothing.
    #[error("an event has no name")]
    Empty,
    /// Events in braces, which perf counts as a group.
    #[error(
        "events in braces are not recorded as a group; name them one after the other, as in a,b"
    )]
    Group,
    /// There is no event of this name.
    #[error(
        "there is no event {0}; events are those of perf: cpu-clock, page-faults, cycles and others, \
         rNNN in hexadecimal, and tracepoints and probes as GROUP:NAME"
    )]
    Unknown(String),
    /// Modes after the colon that are none.
    #[error("{0}: after the colon there may be u, k, h, H, G, and p up to three times")]
    Modes(String),
}

/// Events that are named one after the other, with commas between them.
///
/// # Errors
///
/// [`NameError`] for the first that is none.
pub fn parse(text: &str) -> Result<Vec<Requested>, NameError> {
    if text.contains(['{', '}']) {
        return Err(NameError::Group);
    }
    text.split(',').map(|name| one(name.trim())).collect()
}

fn one(name: &str) -> Result<Requested, NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    let requested = |kind, modes| Requested { name: name.to_owned(), kind, modes, filter: None };
    let (base, rest) = name.split_once(':').map_or((name, None), |(base, rest)| (base, Some(rest)));
    if let Some((kind, config)) = numbered(base) {
        let modes = rest.map_or(Ok(AttrFlags::empty()), |letters| modes(name, letters))?;
        return Ok(requested(Kind::Numbered(kind, config), modes));
    }
    let unknown = || NameError::Unknown(escaped(name).to_string());
    let rest = rest.ok_or_else(unknown)?;
    let (event, letters) = rest.split_once(':').map_or((rest, None), |(a, b)| (a, Some(b)));
    // It becomes a part of a path.
    let is_word = |word: &str| {
        !word.is_empty()
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    if !is_word(base) || !is_word(event) {
        return Err(unknown());
    }
    let modes = letters.map_or(Ok(AttrFlags::empty()), |letters| modes(name, letters))?;
    Ok(requested(Kind::Tracepoint { group: base.to_owned(), name: event.to_owned() }, modes))
}

/// The kernel's numbers for a name.
fn numbered(name: &str) -> Option<(u32, u64)> {
    if let Some(&(_, kind, config)) = NUMBERED.iter().find(|&&(known, ..)| known == name) {
        return Some((kind, config));
    }
    let digits = name.strip_prefix('r').filter(|digits| !digits.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok().map(|config| (RAW, config))
}

/// What the letters after a colon say.
fn modes(name: &str, letters: &str) -> Result<AttrFlags, NameError> {
    use AttrFlags as Flags;
    let wrong = || NameError::Modes(escaped(name).to_string());
    let has = |letter: char| letters.contains(letter);
    if letters.is_empty() || !letters.chars().all(|letter| "ukhHGp".contains(letter)) {
        return Err(wrong());
    }
    let mut flags = Flags::empty();
    // One of these leaves out all that are not named.
    for kinds in [
        &[('u', Flags::EXCLUDE_USER), ('k', Flags::EXCLUDE_KERNEL), ('h', Flags::EXCLUDE_HV)][..],
        &[('H', Flags::EXCLUDE_HOST), ('G', Flags::EXCLUDE_GUEST)],
    ] {
        if kinds.iter().any(|&(letter, _)| has(letter)) {
            kinds.iter().filter(|&&(letter, _)| !has(letter)).for_each(|&(_, flag)| flags |= flag);
        }
    }
    let precise = u64::try_from(letters.matches('p').count()).unwrap_or(u64::MAX);
    if precise > 3 {
        return Err(wrong());
    }
    Ok(flags | Flags::from_bits_retain(precise << 15))
}

/// Why a tracepoint cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracepointError {
    /// tracefs is not mounted.
    #[error(
        "{name}: tracepoints are named in tracefs, which is not mounted: as root, `mount -t tracefs \
         none /sys/kernel/tracing`"
    )]
    NotMounted {
        /// The tracepoint.
        name: String,
    },
    /// There is no such tracepoint.
    #[error("there is no tracepoint or probe {name} in {}", escaped(folder))]
    None {
        /// Its name.
        name: String,
        /// Where it would be.
        folder: PathBuf,
    },
    /// What describes it cannot be read.
    #[error("{name}: {} cannot be read: {error}", escaped(path))]
    Unreadable {
        /// Its name.
        name: String,
        /// What cannot be read.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
}

impl Requested {
    /// As it was given: a name of the kernel, or letters and digits.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the CPU counts it.
    pub(crate) const fn is_of_hardware(&self) -> bool {
        matches!(self.kind, Kind::Numbered(HARDWARE | RAW, _))
    }

    /// Whether each of its samples stands for as much time of a thread: those of clocks, and what the CPU counts if
    /// the kernel takes them at a rate (`at_rate`).
    pub(crate) const fn is_by_time(&self, at_rate: bool) -> bool {
        match self.kind {
            Kind::Numbered(SOFTWARE, 0 | 1) => true,
            Kind::Numbered(HARDWARE | RAW, _) => at_rate,
            _ => false,
        }
    }

    /// The event that never takes a sample.
    pub(crate) fn dummy() -> Self {
        let (name, kind) = ("dummy".to_owned(), Kind::Numbered(SOFTWARE, 9));
        Self { name, kind, modes: AttrFlags::empty(), filter: None }
    }

    /// Whether it is a tracepoint or a probe.
    #[must_use]
    pub const fn is_tracepoint(&self) -> bool {
        matches!(self.kind, Kind::Tracepoint { .. })
    }

    /// The kernel's numbers for it.
    ///
    /// # Errors
    ///
    /// [`TracepointError`] if it is a tracepoint that is not there.
    pub(crate) fn numbers(&self) -> Result<(u32, u64), TracepointError> {
        match &self.kind {
            Kind::Numbered(kind, config) => Ok((*kind, *config)),
            Kind::Tracepoint { group, name } => self.tracepoint(group, name),
        }
    }

    fn tracepoint(&self, group: &str, event: &str) -> Result<(u32, u64), TracepointError> {
        let name = self.name.clone();
        let unreadable = |path: &Path, error| {
            let path = path.to_owned();
            TracepointError::Unreadable { name: self.name.clone(), path, error }
        };
        for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
            let events = Path::new(root).join("events");
            match fs::metadata(&events) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(&events, error)),
            }
            let path = events.join(group).join(event).join("id");
            return match fs::read(&path) {
                Ok(text) => match plain(text.trim_ascii()).and_then(|text| text.parse().ok()) {
                    Some(id) => Ok((TRACEPOINT, id)),
                    None => Err(unreadable(&path, io::ErrorKind::InvalidData.into())),
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(TracepointError::None { name, folder: events })
                }
                Err(error) => Err(unreadable(&path, error)),
            };
        }
        Err(TracepointError::NotMounted { name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_names_of_events_are_those_that_perf_takes() {
        let numbers = |text: &str| match &parse(text).unwrap()[..] {
            [Requested { kind: Kind::Numbered(kind, config), modes, .. }] => {
                (*kind, *config, modes.bits())
            }
            other => panic!("{text}: {other:?}"),
        };
        for (name, expected) in [
            ("cpu-clock", (1, 0, 0)),
            ("cs", (1, 3, 0)),
            ("migrations", (1, 4, 0)),
            ("faults", (1, 2, 0)),
            ("cycles", (0, 0, 0)),
            ("instructions:u", (0, 1, 1 << 5 | 1 << 6)),
            ("cycles:k", (0, 0, 1 << 4 | 1 << 6)),
            ("cycles:uk", (0, 0, 1 << 6)),
            ("cycles:pp", (0, 0, 2 << 15)),
            ("cycles:Hppp", (0, 0, 1 << 20 | 3 << 15)),
            ("r1c2", (4, 0x1c2, 0)),
            ("rc0:u", (4, 0xc0, 1 << 5 | 1 << 6)),
            ("ref-cycles", (0, 9, 0)),
        ] {
            assert_eq!(numbers(name), expected, "{name}");
        }
        let parsed = parse("cpu-clock, sched:sched_switch:k,probe_libc:malloc__return").unwrap();
        let names: Vec<_> = parsed.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["cpu-clock", "sched:sched_switch:k", "probe_libc:malloc__return"]);
        assert!(parsed[1].is_tracepoint() && parsed[2].is_tracepoint());
        assert_eq!(parsed[1].modes, AttrFlags::EXCLUDE_USER | AttrFlags::EXCLUDE_HV);
    }

    #[test]
    fn n3_what_is_no_event_is_said() {
        for (text, error) in [
            ("", NameError::Empty),
            ("cycles,,faults", NameError::Empty),
            ("{cycles,instructions}", NameError::Group),
            ("cycels", NameError::Unknown("cycels".to_owned())),
            ("r+1", NameError::Unknown("r+1".to_owned())),
            ("../x:y", NameError::Unknown("../x:y".to_owned())),
            ("sched:../../x", NameError::Unknown("sched:../../x".to_owned())),
            ("sched:sched_*", NameError::Unknown("sched:sched_*".to_owned())),
            ("cycles:", NameError::Modes("cycles:".to_owned())),
            ("cycles:x", NameError::Modes("cycles:x".to_owned())),
            ("cycles:pppp", NameError::Modes("cycles:pppp".to_owned())),
        ] {
            assert_eq!(parse(text).unwrap_err(), error, "{text}");
        }
    }
}
