//! Types and generic code that keep a compiler busy.
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Debug, Display};

#[derive(Clone, Debug, PartialEq, PartialOrd, Default, Hash, Eq, Ord)]
pub struct Leaf<T>(T, Vec<Option<T>>, String);

#[derive(Clone, Debug, PartialEq)]
pub enum Tree<T, const N: usize> {
    Leaf(Leaf<T>),
    Pair(Box<Tree<T, N>>, Box<Tree<T, N>>),
    Many([Option<Box<Tree<T, N>>>; N]),
    Named(BTreeMap<String, Tree<T, N>>),
}

impl<T: Display, const N: usize> Display for Tree<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tree::Leaf(Leaf(value, all, name)) => {
                write!(f, "{name}:{value}:{}", all.iter().flatten().count())
            }
            Tree::Pair(a, b) => write!(f, "({a} {b})"),
            Tree::Many(all) => all.iter().flatten().try_for_each(|tree| write!(f, "[{tree}]")),
            Tree::Named(all) => all.iter().try_for_each(|(name, tree)| write!(f, "{name}={tree}")),
        }
    }
}

impl<T: Clone + Ord + Debug + Display, const N: usize> Tree<T, N> {
    pub fn values(&self) -> Vec<T> {
        match self {
            Tree::Leaf(Leaf(value, all, _)) => {
                std::iter::once(value).chain(all.iter().flatten()).cloned().collect()
            }
            Tree::Pair(a, b) => a.values().into_iter().chain(b.values()).collect(),
            Tree::Many(all) => all.iter().flatten().flat_map(|tree| tree.values()).collect(),
            Tree::Named(all) => all.values().flat_map(Tree::values).collect(),
        }
    }

    pub fn counted(&self) -> HashMap<String, (usize, Option<T>)> {
        let mut counted = HashMap::new();
        for value in self.values() {
            let entry = counted.entry(format!("{value:?}")).or_insert((0, None));
            entry.0 += 1;
            entry.1 = Some(value).max(entry.1.take());
        }
        counted
    }

    pub fn map<U>(&self, f: &impl Fn(&T) -> U) -> Tree<U, N> {
        match self {
            Tree::Leaf(Leaf(value, all, name)) => Tree::Leaf(Leaf(
                f(value),
                all.iter().map(|value| value.as_ref().map(f)).collect(),
                name.clone(),
            )),
            Tree::Pair(a, b) => Tree::Pair(Box::new(a.map(f)), Box::new(b.map(f))),
            Tree::Many(all) => {
                Tree::Many(std::array::from_fn(|at| Some(Box::new(all[at].as_ref()?.map(f)))))
            }
            Tree::Named(all) => {
                Tree::Named(all.iter().map(|(name, tree)| (name.clone(), tree.map(f))).collect())
            }
        }
    }
}

macro_rules! uses {
    ($($name:ident: $n:literal),*) => { $(
        pub fn $name(tree: &Tree<u32, $n>) -> Vec<String> {
            let wide = tree.map(&|value| u64::from(*value) + $n);
            let text = tree.map(&|value| format!("{value:x}"));
            let pairs = tree.map(&|value| value.to_string().repeat($n));
            let mut all: Vec<_> = wide.values().iter().map(u64::to_string).collect();
            all.extend(text.values());
            all.extend(pairs.counted().into_values().map(|(n, value)| format!("{n}{value:?}")));
            all.sort_by_key(|text| (text.len(), text.clone()));
            all.push(format!("{tree} {wide} {text:?} {pairs}"));
            all
        }
    )* };
}

uses!(a: 1, b: 2, c: 3, d: 4, e: 5, g: 6, h: 7, i: 8, j: 9, k: 10, l: 11, m: 12, n: 13, o: 14);
