//! What is printed of a sample: the list of `-F`, as perf takes it.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;

bitflags! {
    /// The parts of a sample's text, by perf's names in capital letters and in the order
    /// in which a message lists them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Fields: u16 {
        const COMM = 1 << 0;
        const TID = 1 << 1;
        const PID = 1 << 2;
        const TIME = 1 << 3;
        const CPU = 1 << 4;
        const EVENT = 1 << 5;
        const PERIOD = 1 << 6;
        const IP = 1 << 7;
        const SYM = 1 << 8;
        const SYMOFF = 1 << 9;
        const DSO = 1 << 10;
        const BRSTACK = 1 << 11;
        const BRSTACKSYM = 1 << 12;
    }
}

impl Fields {
    /// What perf prints without `-F`.
    pub(crate) const DEFAULT: Self =
        Self::all().difference(Self::PID.union(Self::BRSTACK).union(Self::BRSTACKSYM));

    /// The field that perf calls `name`.
    fn named(name: &str) -> Option<Self> {
        let mut known = Self::all().iter_names();
        known.find(|(known, _)| known.to_lowercase() == name).map(|(_, field)| field)
    }
}

/// Why a list of fields cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldsError {
    /// No such field is printed here.
    Unknown(String),
    /// Some are to be added to or taken from the usual ones, and others not.
    Mixed,
    /// There is none.
    Empty,
}

impl fmt::Display for FieldsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                write!(f, "no field `{}` is printed; the fields are ", name.escape_debug())?;
                let names = Fields::all().iter_names().map(|(name, _)| name.to_lowercase());
                f.write_str(&names.collect::<Vec<_>>().join(","))
            }
            Self::Mixed => f.write_str("give either all fields, or each with + or - in front"),
            Self::Empty => f.write_str("there is no field in it"),
        }
    }
}

impl std::error::Error for FieldsError {}

impl FromStr for Fields {
    type Err = FieldsError;

    /// `comm,tid,ip`, or `+pid,-period`: the usual ones with a change.
    fn from_str(list: &str) -> Result<Self, FieldsError> {
        let mut fields: Option<Self> = None;
        let mut changes = None;
        for name in list.split(',').filter(|name| !name.is_empty()) {
            let (sign, name) = match name.split_at_checked(1) {
                Some((sign @ ("+" | "-"), name)) => (sign, name),
                _ => ("", name),
            };
            if *changes.get_or_insert(!sign.is_empty()) == sign.is_empty() {
                return Err(FieldsError::Mixed);
            }
            let field = Self::named(name).ok_or_else(|| FieldsError::Unknown(name.into()))?;
            let start = if sign.is_empty() { Self::empty() } else { Self::DEFAULT };
            fields.get_or_insert(start).set(field, sign != "-");
        }
        fields.ok_or(FieldsError::Empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_fields_are_listed_or_changed_as_for_perf() {
        let list = "ip,sym".parse::<Fields>().unwrap();
        assert!(
            list.contains(Fields::IP) && list.contains(Fields::SYM) && !list.contains(Fields::COMM)
        );
        let changed = "+pid,-period".parse::<Fields>().unwrap();
        assert_eq!(changed, Fields::DEFAULT.union(Fields::PID).difference(Fields::PERIOD));
        assert!(Fields::DEFAULT.contains(Fields::TID) && !Fields::DEFAULT.contains(Fields::PID));
        assert_eq!("".parse::<Fields>(), Err(FieldsError::Empty));
        assert_eq!("comm,+pid".parse::<Fields>(), Err(FieldsError::Mixed));
        let error = "comm,iregs".parse::<Fields>().unwrap_err().to_string();
        assert!(error.contains("`iregs`") && error.contains("comm,tid,pid,time,cpu"), "{error}");
    }
}
