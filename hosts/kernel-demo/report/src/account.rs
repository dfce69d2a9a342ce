//! The kernel's account at the end of a run: its counters by name.

use std::collections::BTreeMap;

/// The lines `name: number what, number what, …` of the console.
#[derive(Debug)]
pub(crate) struct Account {
    numbers: BTreeMap<String, u64>,
}

impl Account {
    /// Reads the account; an error if the kernel did not end well.
    pub(crate) fn parse(console: &str) -> Result<Self, String> {
        if !console.lines().any(|line| line == "RESULT ok") {
            return Err(format!("the kernel did not end well:\n{console}"));
        }
        let mut numbers = BTreeMap::new();
        for line in console.lines() {
            let Some((name, items)) = line.split_once(": ") else { continue };
            for item in items.split([',', ';']) {
                if let Some((number, what)) = item.trim().split_once(' ')
                    && let Ok(number) = number.parse()
                {
                    numbers.insert(format!("{name}: {what}"), number);
                }
            }
        }
        Ok(Self { numbers })
    }

    /// The number of this name.
    ///
    /// # Panics
    ///
    /// If the kernel does not give it: the two are made for each other.
    pub(crate) fn get(&self, name: &str) -> u64 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("the kernel says nothing of `{name}`"))
    }
}
