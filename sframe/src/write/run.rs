//! Which rows of a function one entry can hold.

use unwind_core::Row;

use crate::{
    format::header::Version,
    write::{
        encode::{Encoder, Kind},
        lost::OmissionReason,
        work_counter,
    },
};

/// The most rows of one V3 entry.
pub(super) const V3_MAX_ROWS: usize = 0xffff;

/// What becomes of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Words for functions of this kind say it, and with
    /// [`Default`](Kind::Default) those of the other kind do too.
    Rows(Kind),
    /// No rules: an entry without rows says it.
    SignalContext,
    Omission(OmissionReason),
}

impl Class {
    #[inline]
    pub(super) fn of(encoder: Encoder, row: &Row, in_blocks: bool) -> Self {
        work_counter::steps(1);
        let is_v3 = encoder.version == Version::V3;
        if row.is_context_only() {
            return match is_v3 && !in_blocks {
                true => Self::SignalContext,
                false => Self::Omission(OmissionReason::SignalContext),
            };
        }
        match encoder.encode(Kind::Default, row) {
            Ok(_) => Self::Rows(Kind::Default),
            Err(reason) if !is_v3 => Self::Omission(reason),
            Err(_) => match encoder.encode(Kind::Flexible, row) {
                Ok(_) => Self::Rows(Kind::Flexible),
                Err(reason) => Self::Omission(reason),
            },
        }
    }

    pub(super) const fn lost(self) -> Option<OmissionReason> {
        match self {
            Self::Omission(reason) => Some(reason),
            _ => None,
        }
    }
}

/// Consecutive rows that can share an entry.
pub(super) struct Run {
    /// Index after the last row.
    pub(super) end: usize,
    pub(super) class: Class,
}

impl Run {
    /// The longest one from row `first` on.
    pub(super) fn longest(encoder: Encoder, rows: &[(u32, Row)], first: usize) -> Self {
        let mut run = Self { end: first, class: Class::SignalContext };
        let rest = rows.get(first..).unwrap_or_default();
        let limit = match encoder.version {
            Version::V3 => V3_MAX_ROWS,
            _ => usize::MAX,
        };
        for (_, row) in rest.iter().take(limit) {
            run.class = match (run.class, Class::of(encoder, row, false)) {
                (_, class) if run.end == first => class,
                (Class::Rows(a), Class::Rows(b)) => {
                    Class::Rows(if a == b { a } else { Kind::Flexible })
                }
                (before, class) if before == class => class,
                _ => break,
            };
            run.end = run.end.wrapping_add(1);
        }
        run
    }
}
