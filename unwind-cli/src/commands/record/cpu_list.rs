//! CPUs by their numbers, as in `0,2-4`.

use unwind_profile::engine::sampling::cpus;

/// Numbers of CPUs.
#[derive(Clone, Debug)]
pub(super) struct Cpus(pub(super) Vec<i32>);

pub(super) fn parse_cpus(text: &str) -> Result<Cpus, String> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|&cpu| cpu < cpus());
    let wrong = || format!("numbers and ranges of CPUs, from 0 to {}", cpus().saturating_sub(1));
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
        if first > last {
            return Err(wrong());
        }
        numbers.extend((first..=last).filter_map(|cpu| i32::try_from(cpu).ok()));
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(Cpus(numbers))
}
