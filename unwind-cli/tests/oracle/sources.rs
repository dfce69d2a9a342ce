//! Sources that keep compilers busy.

/// A source that keeps a compiler busy: `part` repeated, with a number for
/// `@`.
pub fn long_source(start: &str, part: &str, count: u32) -> String {
    let parts = (0..count).map(|number| part.replace('@', &number.to_string()));
    [start.to_owned()].into_iter().chain(parts).collect()
}

pub const CPLUSPLUS: &str = r#"
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>
template <int N> struct Item {
    int words[N % 7 + 1];
    bool operator<(const Item &other) const { return words[0] < other.words[0]; }
};
template <int N> long work(const std::vector<int> &values) {
    std::map<std::string, std::vector<Item<N>>> groups;
    for (int value : values) {
        Item<N> item{};
        item.words[0] = value * N;
        groups[std::to_string(value % (N + 2))].push_back(item);
    }
    long sum = 0;
    for (auto &group : groups) {
        std::sort(group.second.begin(), group.second.end());
        for (auto &item : group.second) sum += item.words[0] ^ N;
    }
    return sum + std::make_shared<Item<N>>()->words[0];
}
"#;

pub const CPLUSPLUS_PART: &str = "template long work<@>(const std::vector<int> &);\n";

pub const RUST: &str = "
use std::collections::{BTreeMap, HashMap};
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item<const N: usize> {
    Words([u32; N]),
    Text(String),
    Node { bytes: Vec<u8>, next: Option<Box<Item<N>>> },
}
pub fn work<const N: usize>(items: &[Item<N>]) -> BTreeMap<String, Vec<Item<N>>> {
    let mut counts: HashMap<&Item<N>, usize> = HashMap::new();
    for item in items { *counts.entry(item).or_insert(N) += 1; }
    let mut groups: BTreeMap<String, Vec<Item<N>>> = BTreeMap::new();
    for (item, count) in counts {
        groups.entry(format!(\"{item:?}{count}\")).or_default().push(item.clone());
    }
    for group in groups.values_mut() { group.sort_by(|a, b| b.cmp(a)); group.dedup(); }
    groups
}
";

pub const RUST_PART: &str = "
pub fn work@(items: &[Item<@>]) -> BTreeMap<String, Vec<Item<@>>> { work(items) }
";
