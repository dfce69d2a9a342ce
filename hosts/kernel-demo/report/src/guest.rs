//! What `unwind guest` saw of the machine from outside, against the known chains.

use std::error::Error;
use std::fs;
use std::path::Path;

use crate::known;

/// How many stacks there are of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    /// User stacks of 64-bit and of 32-bit code that are known as a whole.
    whole: u64,
    whole_32: u64,
    /// User stacks that end early, as they say: a page was absent.
    cut: u64,
    kernel: u64,
    unknown: u64,
}

/// Checks a profile of folded stacks, prints what is in it, and returns how
/// many faults there are.
pub(crate) fn check(folded: &Path) -> Result<usize, Box<dyn Error>> {
    let counts = count(&fs::read_to_string(folded)?)?;
    let Counts { whole, whole_32, cut, kernel, unknown } = counts;
    println!(
        "from outside: {whole} user stacks of 64-bit and {whole_32} of 32-bit code as known, \
         {cut} cut by absent pages, {unknown} unknown; {kernel} kernel stacks"
    );
    // What did not happen was not shown. Pages are absent for a moment only.
    let shown = whole > 0 && whole_32 > 0 && kernel > 0 && cut < whole;
    Ok(usize::try_from(unknown)? + usize::from(!shown))
}

fn count(folded: &str) -> Result<Counts, Box<dyn Error>> {
    let mut counts = Counts::default();
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').ok_or("a line without a count")?;
        let count: u64 = count.parse()?;
        let mut frames: Vec<&str> = stack.split(';').collect();
        let what = frames.remove(0);
        let is_incomplete = frames.first() == Some(&"[incomplete]");
        if is_incomplete {
            frames.remove(0);
        }
        frames.reverse();
        let is_known = |is_begin| {
            known::PROGRAMS.iter().any(|known| known::is_known(known.program, &frames, is_begin))
        };
        let counter = match what {
            "[user]" if is_known(false) => &mut counts.whole,
            "[user 32-bit]" if is_known(false) => &mut counts.whole_32,
            "[user]" | "[user 32-bit]" if is_incomplete && is_known(true) => &mut counts.cut,
            "[kernel]" | "[idle]" => &mut counts.kernel,
            _ => {
                println!("FAULT unknown: {line}");
                &mut counts.unknown
            }
        };
        *counter += count;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_whole_cut_or_unknown() {
        let text = "[user];_start;main;exit_outer;exit_inner 3\n\
                    [user 32-bit];[incomplete];_start;main;compat_deep 2\n\
                    [user];[incomplete];exit_outer;exit_inner 1\n\
                    [kernel];[incomplete];kernel_entry 4\n";
        let counts = Counts { whole: 3, whole_32: 2, cut: 1, kernel: 4, unknown: 0 };
        assert_eq!(count(text).unwrap(), counts);
        // Cut, and does not say so; a frame is missing; not a program's.
        for line in
            ["[user];exit_outer;exit_inner 1", "[user];_start;exit_outer 1", "[user];main;f 1"]
        {
            assert_eq!(count(line).unwrap(), Counts { unknown: 1, ..Counts::default() }, "{line}");
        }
    }
}
