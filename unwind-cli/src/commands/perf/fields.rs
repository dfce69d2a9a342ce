//! What is printed of a sample: the list of `-F`, as perf takes it.

use std::fmt;
use std::str::FromStr;

/// A part of a sample's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Comm,
    Pid,
    Tid,
    Cpu,
    Time,
    Period,
    Event,
    Ip,
    Sym,
    Symoff,
    Dso,
    Brstack,
    Brstacksym,
}

impl Field {
    const ALL: [(Self, &'static str); 13] = [
        (Self::Comm, "comm"),
        (Self::Tid, "tid"),
        (Self::Pid, "pid"),
        (Self::Time, "time"),
        (Self::Cpu, "cpu"),
        (Self::Event, "event"),
        (Self::Period, "period"),
        (Self::Ip, "ip"),
        (Self::Sym, "sym"),
        (Self::Symoff, "symoff"),
        (Self::Dso, "dso"),
        (Self::Brstack, "brstack"),
        (Self::Brstacksym, "brstacksym"),
    ];

    const fn bit(self) -> u16 {
        match self {
            Self::Comm => 1 << 0,
            Self::Pid => 1 << 1,
            Self::Tid => 1 << 2,
            Self::Cpu => 1 << 3,
            Self::Time => 1 << 4,
            Self::Period => 1 << 5,
            Self::Event => 1 << 6,
            Self::Ip => 1 << 7,
            Self::Sym => 1 << 8,
            Self::Symoff => 1 << 9,
            Self::Dso => 1 << 10,
            Self::Brstack => 1 << 11,
            Self::Brstacksym => 1 << 12,
        }
    }
}

/// Which fields are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields(u16);

impl Fields {
    /// What perf prints without `-F`.
    pub(crate) const DEFAULT: Self = Self(0x7ff & !Field::Pid.bit());

    pub(crate) const fn has(self, field: Field) -> bool {
        self.0 & field.bit() != 0
    }

    const fn with(self, field: Field) -> Self {
        Self(self.0 | field.bit())
    }

    const fn without(self, field: Field) -> Self {
        Self(self.0 & !field.bit())
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
                let names = Field::ALL.map(|(_, name)| name);
                f.write_str(&names.join(","))
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
        let mut fields = None;
        let mut changes = None;
        for name in list.split(',').filter(|name| !name.is_empty()) {
            let (sign, name) = match name.split_at_checked(1) {
                Some((sign @ ("+" | "-"), name)) => (sign, name),
                _ => ("", name),
            };
            if *changes.get_or_insert(!sign.is_empty()) == sign.is_empty() {
                return Err(FieldsError::Mixed);
            }
            let known = Field::ALL.iter().find(|(_, known)| *known == name);
            let &(field, _) = known.ok_or_else(|| FieldsError::Unknown(name.into()))?;
            let start = if sign.is_empty() { Self(0) } else { Self::DEFAULT };
            let so_far: Self = fields.unwrap_or(start);
            fields = Some(if sign == "-" { so_far.without(field) } else { so_far.with(field) });
        }
        fields.ok_or(FieldsError::Empty)
    }
}

/// Which perf's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layout {
    /// Wide columns of thread ids, and in stacks the addresses of the process
    #[value(name = "7.2")]
    Perf7_2,
    /// Narrow columns of thread ids, and in stacks offsets in the mapped files
    #[value(name = "6.1")]
    Perf6_1,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_fields_are_listed_or_changed_as_for_perf() {
        let list = "ip,sym".parse::<Fields>().unwrap();
        assert!(list.has(Field::Ip) && list.has(Field::Sym) && !list.has(Field::Comm));
        let changed = "+pid,-period".parse::<Fields>().unwrap();
        assert_eq!(changed, Fields::DEFAULT.with(Field::Pid).without(Field::Period));
        assert!(Fields::DEFAULT.has(Field::Tid) && !Fields::DEFAULT.has(Field::Pid));
        assert_eq!("".parse::<Fields>(), Err(FieldsError::Empty));
        assert_eq!("comm,+pid".parse::<Fields>(), Err(FieldsError::Mixed));
        let error = "comm,iregs".parse::<Fields>().unwrap_err().to_string();
        assert!(error.contains("`iregs`") && error.contains("comm,tid,pid,time,cpu"), "{error}");
    }
}
