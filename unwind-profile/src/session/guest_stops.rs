//! How a guest was stopped to be looked at.

use std::collections::BTreeMap;
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

/// How long a guest stood each time, with three digits: so they are few, however many stops there are.
#[derive(Debug, Default)]
pub(crate) struct StopTimes {
    /// How often it stood for that many nanoseconds.
    counts: BTreeMap<u64, u64>,
    longest: u64,
}

impl StopTimes {
    /// Takes note of a stop of that many nanoseconds.
    pub(crate) fn add(&mut self, nanoseconds: u64) {
        let mut digits = nanoseconds;
        let mut unit = 1_u64;
        while digits > 999 {
            (digits, unit) = (digits / 10, unit.saturating_mul(10));
        }
        let count = self.counts.entry(digits.saturating_mul(unit)).or_default();
        *count = count.saturating_add(1);
        self.longest = self.longest.max(nanoseconds);
    }

    /// What they were.
    pub(crate) fn stops(&self) -> GuestStops {
        let stops = self.counts.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
        let mut before = 0_u64;
        let median = self.counts.iter().find(|(_, count)| {
            before = before.saturating_add(**count);
            before > stops / 2
        });
        GuestStops {
            stops,
            median_nanoseconds: median.map_or(0, |(time, _)| *time),
            maximum_nanoseconds: self.longest,
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
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use super::*;

    fn stops(times: impl IntoIterator<Item = u64>) -> StopTimes {
        let mut stops = StopTimes::default();
        times.into_iter().for_each(|time| stops.add(time));
        stops
    }

    #[test]
    fn the_median_and_the_longest_of_the_stops_are_told() {
        let text = "3 stops of the guest, half of them up to 3.00 ms, the longest 70.45 ms";
        assert_eq!(stops([3_000_000, 1_000_000, 70_456_000]).stops().to_string(), text);
        assert_eq!(stops([]).stops(), GuestStops::default());
        // Of three digits each, but the longest.
        let [median, longest] = [stops([1_239_999]), stops([7, 5, 5])]
            .map(|stops| (stops.stops().median_nanoseconds, stops.stops().maximum_nanoseconds));
        assert_eq!((median, longest), ((1_230_000, 1_239_999), (5, 7)));
    }

    #[test]
    fn what_is_kept_of_any_number_of_stops_is_bounded() {
        let times = (0..200_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let stops = stops(times);
        assert_eq!(stops.stops().stops, 200_000);
        assert!(stops.counts.len() < 20 * 1000, "{}", stops.counts.len());
    }
}
