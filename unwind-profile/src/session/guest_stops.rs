//! How a guest was stopped to be looked at.

use std::fmt;

use serde::{Deserialize, Serialize};
use unwind_target::counted::counted;

/// How often and how long a guest stood so that its vCPUs could be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStops {
    /// How often. Each time there is a sample of each vCPU.
    pub stops: u64,
    /// The median of the times that it stood.
    pub median_nanoseconds: u64,
    /// The longest one.
    pub maximum_nanoseconds: u64,
}

impl GuestStops {
    /// Of the times that it stood, in nanoseconds.
    pub(crate) fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        Self {
            stops: u64::try_from(times.len()).unwrap_or(u64::MAX),
            median_nanoseconds: times.get(times.len() / 2).copied().unwrap_or(0),
            maximum_nanoseconds: times.last().copied().unwrap_or(0),
        }
    }
}

impl fmt::Display for GuestStops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stops = counted(self.stops, "stop", "stops");
        let times = [self.median_nanoseconds, self.maximum_nanoseconds];
        let [median, maximum] = times.map(milliseconds);
        write!(f, "{stops} of the guest, half of them up to {median} ms, the longest {maximum} ms")
    }
}

/// With two digits after the point, cut.
fn milliseconds(nanoseconds: u64) -> String {
    let hundredths = nanoseconds / 10_000;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_longest_of_the_stops_are_told() {
        let stops = GuestStops::of(vec![3_000_000, 1_000_000, 70_456_000]);
        let text = "3 stops of the guest, half of them up to 3.00 ms, the longest 70.45 ms";
        assert_eq!(stops.to_string(), text);
        assert_eq!(GuestStops::of(Vec::new()), GuestStops::default());
    }
}
