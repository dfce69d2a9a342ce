//! The processes whose ids a recording has, as far as it can be told now whose they were.

use nix::unistd::{SysconfVar, sysconf};
use rustix::time::ClockId;

use crate::clock::nanoseconds;
use crate::target::proc_text::read_text;
use crate::target::status::{Status, start_ticks};

/// What is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processes {
    /// They run.
    Running,
    /// They ran at a moment, in nanoseconds since 1970. A process that has such an id now and is
    /// older is the same.
    Since(u64),
    /// Nothing: others may have the ids by now.
    #[default]
    Unknown,
}

impl Processes {
    /// The user that a process belongs to; `None` if that is not known.
    #[must_use]
    pub fn owner(self, process: u32) -> Option<u32> {
        let process = i32::try_from(process).ok().filter(|&process| process > 0)?;
        let is_it = match self {
            Self::Running => true,
            Self::Since(moment) => began(process)? < moment,
            Self::Unknown => false,
        };
        // Read after its begin: the process that has ended meanwhile would be a younger one.
        let owner = is_it.then(|| Status::read(process).ok())?.map(|status| status.user);
        match self {
            Self::Since(moment) if began(process)? >= moment => None,
            _ => owner,
        }
    }
}

/// When a process began, in nanoseconds since 1970.
fn began(process: i32) -> Option<u64> {
    const SECOND: u64 = 1_000_000_000;
    let ticks = start_ticks(&read_text(format!("/proc/{process}/stat")).ok()?)?;
    let in_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    let tick = SECOND.checked_div(u64::try_from(in_second).ok()?)?;
    let boot = nanoseconds(ClockId::Realtime)?.checked_sub(nanoseconds(ClockId::Boottime)?)?;
    boot.checked_add(ticks.checked_mul(tick)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_a_process_has_an_owner_if_it_is_older_than_the_recording() {
        let own = std::process::id();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(Processes::Running.owner(own), Some(user));
        assert_eq!(Processes::Unknown.owner(own), None);
        assert_eq!(Processes::Since(u64::MAX).owner(own), Some(user));
        let began = began(i32::try_from(own).unwrap()).unwrap();
        assert_eq!(Processes::Since(began.saturating_add(60_000_000_000)).owner(own), Some(user));
        // Another process had the id then.
        assert_eq!(Processes::Since(began.saturating_sub(60_000_000_000)).owner(own), None);
        for none in [0, u32::MAX] {
            assert_eq!(Processes::Running.owner(none), None);
        }
    }
}
