//! Where and when a recording was made, as perf and `unwind record` write it in sections of
//! their own.

use std::collections::HashMap;
use std::sync::Arc;

use nix::unistd::{SysconfVar, sysconf};
use rustix::time::ClockId;
use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{AttrFlags, Endian};
use unwind_target::Untrusted;
use unwind_target::clock::nanoseconds;
use unwind_target::target::processes::Processes;

use crate::mapped::kernel::{RecordedKernel, SampledKernel};
use crate::recording::error::PerfError;
use crate::recording::guest_names::GuestNames;
use crate::recording::header::{Feature, text_of_section};
use crate::recording::reader::PerfReader;
use crate::recording::registered_code::RegisteredCode;

/// What a recording says of its origin. Recordings in pipe form say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The name of the machine.
    pub(crate) host: Option<Untrusted>,
    pub(crate) moment: Option<Moment>,
    /// The release of the kernel.
    pub(crate) release: Option<Untrusted>,
    /// `unwind record` has made it.
    pub(crate) is_own: bool,
    /// What functions of a guest are called, of a recording of one.
    pub(crate) guest: GuestNames,
    /// What compilers have registered in recorded processes.
    pub(crate) registered: Arc<RegisteredCode>,
}

/// One moment by two clocks, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Since 1970.
    since_epoch: u64,
    /// By the clock of the samples.
    of_samples: u64,
}

/// The version of the section with a moment.
const VERSION: u32 = 1;

/// The length to which perf pads texts.
const TEXT_PADDING: usize = 64;

impl Origin {
    /// What a recording says.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if a section cannot be where the file says.
    pub fn read(reader: &mut PerfReader) -> Result<Self, PerfError> {
        let endian = reader.endian();
        let mut section = |part, feature| {
            let place = reader.place_of(feature)?;
            place.map(|place| reader.section(part, place)).transpose()
        };
        let host = section("name of a host", Feature::HOSTNAME)?;
        let clock = section("time of a clock", Feature::CLOCK_DATA)?;
        let release = section("release of the kernel", Feature::OSRELEASE)?;
        Ok(Self {
            host: host.and_then(|section| text_of_section(&section, endian)),
            release: release.and_then(|section| text_of_section(&section, endian)),
            moment: clock.and_then(|section| Moment::parse(&section, endian)),
            is_own: reader.place_of(Feature::LEDGER)?.is_some(),
            guest: GuestNames::read(reader)?,
            registered: Arc::new(RegisteredCode::read(reader)?),
        })
    }

    /// The kernel that was recorded, in a recording of files with these build ids.
    #[must_use]
    pub fn kernel(&self, build_ids: &HashMap<Box<[u8]>, Box<[u8]>>) -> SampledKernel {
        let build_id = build_ids.get(&b"[kernel.kallsyms]"[..]).cloned();
        SampledKernel::Recorded(RecordedKernel { build_id, release: self.release.clone() })
    }

    /// The sections that tell of this machine and, if it is now by the clock of the events,
    /// of this moment.
    pub(crate) fn sections(attr: &EventAttr, endian: Endian) -> Vec<(Feature, Vec<u8>)> {
        let machine = rustix::system::uname();
        let texts = [
            (Feature::HOSTNAME, machine.nodename()),
            (Feature::OSRELEASE, machine.release()),
            (Feature::ARCH, machine.machine()),
        ];
        let texts = texts.map(|(feature, text)| (feature, section_of(text.to_bytes(), endian)));
        let mut sections = texts.to_vec();
        // perf reads records of each CPU apart, and takes 4,096 where nothing says how many.
        sections.push((Feature::NRCPUS, section_of_cpus(endian)));
        if let Some(moment) = Moment::now(attr) {
            // How fine the clock is: a nanosecond.
            sections.push((Feature::CLOCKID, endian.bytes_of_u64(1).to_vec()));
            sections.push((Feature::CLOCK_DATA, moment.section(attr, endian)));
        }
        sections
    }
}

impl Moment {
    fn now(attr: &EventAttr) -> Option<Self> {
        let is_monotonic = attr.clockid == libc::CLOCK_MONOTONIC;
        if !(attr.flags.contains(AttrFlags::USE_CLOCKID) && is_monotonic) {
            return None;
        }
        Some(Self {
            since_epoch: nanoseconds(ClockId::Realtime)?,
            of_samples: nanoseconds(ClockId::Monotonic)?,
        })
    }

    /// ```text
    ///     0   version
    ///     4   the clock of the samples
    ///     8   nanoseconds since 1970
    ///    16   the same moment by the clock of the samples
    /// ```
    fn parse(section: &[u8], endian: Endian) -> Option<Self> {
        let (head, rest) = section.split_first_chunk::<8>()?;
        let version = head.first_chunk().map(|&version| endian.u32(version))?;
        let (since_epoch, rest) = rest.split_first_chunk()?;
        let of_samples = rest.first_chunk()?;
        (version == VERSION).then(|| Self {
            since_epoch: endian.u64(*since_epoch),
            of_samples: endian.u64(*of_samples),
        })
    }

    fn section(self, attr: &EventAttr, endian: Endian) -> Vec<u8> {
        let clock = attr.clockid.cast_unsigned();
        let words = [VERSION, clock].into_iter().flat_map(|word| endian.bytes_of_u32(word));
        let times = [self.since_epoch, self.of_samples];
        words.chain(times.into_iter().flat_map(|time| endian.bytes_of_u64(time))).collect()
    }

    /// The moment itself, in nanoseconds since 1970.
    pub(crate) const fn of_wall(self) -> u64 {
        self.since_epoch
    }

    /// What is known now of the processes that ran then.
    pub(crate) const fn processes(self) -> Processes {
        Processes::Since(self.since_epoch)
    }

    /// The later one of this moment and a time that a sample has, in nanoseconds since 1970. Mappings
    /// that there were before have no time.
    pub(crate) fn latest(self, time: u64) -> Option<u64> {
        self.since_epoch(time).max(Some(self.since_epoch))
    }

    /// What to add to a time that a sample has for that of a sample of another recording at the same
    /// moment.
    pub(crate) fn shift_to(self, other: Self) -> i64 {
        let began =
            |moment: Self| i128::from(moment.since_epoch).saturating_sub(moment.of_samples.into());
        let shift = began(self).saturating_sub(began(other));
        i64::try_from(shift).unwrap_or(if shift < 0 { i64::MIN } else { i64::MAX })
    }

    /// Nanoseconds since 1970 of a time that a sample has.
    pub(crate) fn since_epoch(self, time: u64) -> Option<u64> {
        match time.checked_sub(self.of_samples) {
            Some(after) => self.since_epoch.checked_add(after),
            None => self.since_epoch.checked_sub(self.of_samples.saturating_sub(time)),
        }
    }
}

/// The section of a text, which ends with zeros.
fn section_of(text: &[u8], endian: Endian) -> Vec<u8> {
    let len = text.len().saturating_add(1).next_multiple_of(TEXT_PADDING);
    let mut section = endian.bytes_of_u32(u32::try_from(len).unwrap_or(u32::MAX)).to_vec();
    section.extend(text);
    section.resize(len.saturating_add(4), 0);
    section
}

/// The section that says how many CPUs this machine has.
fn section_of_cpus(endian: Endian) -> Vec<u8> {
    let count = |variable| {
        let count = sysconf(variable).ok().flatten();
        count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1)
    };
    let counts = [SysconfVar::_NPROCESSORS_CONF, SysconfVar::_NPROCESSORS_ONLN].map(count);
    counts.into_iter().flat_map(|count| endian.bytes_of_u32(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_a_moment_and_a_host_are_read_as_they_were_written() {
        let moment = Moment { since_epoch: 1_700_000_000_000_000_000, of_samples: 5_000 };
        let mut attr = EventAttr::default();
        attr.clockid = 1;
        for endian in [Endian::Little, Endian::Big] {
            let section = moment.section(&attr, endian);
            assert_eq!(Moment::parse(&section, endian), Some(moment));
            let name = section_of(b"web-1", endian);
            assert_eq!(name.len(), 68);
            assert_eq!(text_of_section(&name, endian), Some(Untrusted::from(b"web-1")));
            // A section that is cut tells nothing.
            assert!((0..24).all(|cut| Moment::parse(&section[..cut], endian).is_none()));
            assert!((0..68).all(|cut| text_of_section(&name[..cut], endian).is_none()));
        }
        assert_eq!(moment.since_epoch(6_000), Some(1_700_000_000_000_001_000));
        assert_eq!(moment.since_epoch(4_000), Some(1_699_999_999_999_999_000));
        let early = Moment { since_epoch: 5, of_samples: 10 };
        assert_eq!(early.since_epoch(1), None);
    }
}
