//! How two lists of the frames of one stack agree.

use serde::Serialize;

/// How the frames that another unwinder has found agree with those found here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Agreement {
    /// They are the same.
    Equal,
    /// The other one ends earlier.
    OursFurther,
    /// The other one leaves out frames in between; all that it has are here, in order.
    OursMore,
    /// The other one continues where the walk ends here.
    TheirsFurther,
    /// The other one has frames that are not here.
    Differ,
    /// The other one has nothing.
    Nothing,
}

impl Agreement {
    /// All of them.
    pub(super) const ALL: [Self; 6] = [
        Self::Equal,
        Self::OursFurther,
        Self::OursMore,
        Self::TheirsFurther,
        Self::Differ,
        Self::Nothing,
    ];

    /// For people.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::OursFurther => "ours further",
            Self::OursMore => "ours more",
            Self::TheirsFurther => "theirs further",
            Self::Differ => "differ",
            Self::Nothing => "nothing",
        }
    }

    /// Whether the other one has a frame that is not here.
    pub(super) const fn is_contradiction(self) -> bool {
        matches!(self, Self::TheirsFurther | Self::Differ)
    }
}

/// Compares the frames of a stack, innermost first; also where they differ first, from 0 on.
pub(super) fn compare<F>(
    ours: &[F],
    theirs: &[u64],
    is_same: impl Fn(&F, u64) -> bool,
) -> (Agreement, usize) {
    let pairs = ours.iter().zip(theirs);
    let same = pairs.take_while(|&(ours, theirs)| is_same(ours, *theirs)).count();
    let agreement = match (theirs.len(), ours.len()) {
        (0, _) => Agreement::Nothing,
        (theirs, ours) if same == theirs && same == ours => Agreement::Equal,
        (theirs, _) if same == theirs => Agreement::OursFurther,
        (_, ours) if same == ours => Agreement::TheirsFurther,
        _ => {
            let mut rest = ours.iter();
            let is_part = theirs.iter().all(|&addr| rest.any(|frame| is_same(frame, addr)));
            if is_part { Agreement::OursMore } else { Agreement::Differ }
        }
    };
    (agreement, same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_stacks_agrees_in_one_way() {
        let compare = |ours: &[u64], theirs: &[u64]| compare(ours, theirs, |a, b| *a == b);
        assert_eq!(compare(&[1, 2], &[1, 2]), (Agreement::Equal, 2));
        assert_eq!(compare(&[1, 2, 3], &[1, 2]), (Agreement::OursFurther, 2));
        assert_eq!(compare(&[1, 2, 3], &[1, 3]), (Agreement::OursMore, 1));
        assert_eq!(compare(&[1, 2, 3], &[3]), (Agreement::OursMore, 0));
        assert_eq!(compare(&[1, 2], &[1, 2, 3]), (Agreement::TheirsFurther, 2));
        assert_eq!(compare(&[1, 2, 3], &[1, 3, 2]), (Agreement::Differ, 1));
        assert_eq!(compare(&[1, 2], &[]), (Agreement::Nothing, 0));
        assert_eq!(compare(&[], &[1]), (Agreement::TheirsFurther, 0));
        assert_eq!(compare(&[], &[]), (Agreement::Nothing, 0));
    }
}
