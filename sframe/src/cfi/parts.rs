//! Entries become the parts of their code, each with what holds there.

use alloc::vec::Vec;
use core::{iter::Peekable, ops::Range, slice::Iter};

use unwind_cfi::{CfiError, Fde, NoRow, Rows, States};
use unwind_core::{CfaLoads, Row};

use super::convert::{CfiConverter, Known};
use crate::{
    compact::rbx::{self, Rbx},
    write::lost::WriteError,
};

/// What holds in a part of an entry's code.
#[derive(Clone, Copy)]
pub(crate) enum Held {
    /// What lookups find there.
    Row(Row),
    /// The same but for the CFA, which is found so in each frame.
    Loads(Row, CfaLoads),
    /// Something else.
    No(NoRow),
}

impl Held {
    fn of(rows: &Rows<'_, '_, '_>) -> Self {
        let found = rows.found();
        // Nearly all code has a row.
        let has_row = found.is_ok_and(|row| !row.is_context_only());
        match if has_row { None } else { rows.by_loads() } {
            Some((row, loads)) => Self::Loads(row, loads),
            None => found.map_or_else(Self::No, Self::Row),
        }
    }

    const fn with_eh_return(self) -> Self {
        match self {
            Self::Row(row) => Self::Row(row.with_eh_return()),
            Self::Loads(row, loads) => Self::Loads(row.with_eh_return(), loads),
            Self::No(no_row) => Self::No(no_row),
        }
    }
}

/// What holds in the parts of an entry's code, and where the caller's rbx is there: each with where it begins
/// to hold, in bytes from the start of the code.
#[derive(Default)]
pub(crate) struct Parts {
    held: Vec<(u32, Held)>,
    rbx: Vec<(u32, Rbx)>,
}

impl Parts {
    fn clear(&mut self) {
        self.held.clear();
        self.rbx.clear();
    }
}

/// Where the caller's rbx is, by ascending addresses.
struct RbxPlaces<'p> {
    rest: Peekable<Iter<'p, (u32, Rbx)>>,
    /// Where the code starts.
    start: u64,
    now: Rbx,
}

impl<'p> RbxPlaces<'p> {
    fn new(places: &'p [(u32, Rbx)], start: u64) -> Self {
        Self { rest: places.iter().peekable(), start, now: Rbx::UNKNOWN }
    }

    /// Where it is at an address, and up to which other one, `end` at most.
    fn at(&mut self, addr: u64, end: u64) -> (Rbx, u64) {
        let start = self.start;
        let begins = |&&(at, _): &&(u32, Rbx)| start.saturating_add(at.into());
        while let Some((_, rbx)) = self.rest.next_if(|place| begins(place) <= addr) {
            self.now = *rbx;
        }
        (self.now, self.rest.peek().map_or(end, |place| begins(place).min(end)))
    }
}

fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), WriteError> {
    if list.len() == list.capacity() {
        list.try_reserve(1)?;
    }
    list.push(item);
    Ok(())
}

impl CfiConverter<'_> {
    /// Hands the code of the next FDE to `each`, part by part and ascending, with what lookups find there;
    /// false at the end. An entry of which nothing can be used is an error without code.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`], and those of `each`.
    pub(crate) fn next_parts(
        &mut self,
        parts: &mut Parts,
        each: &mut impl FnMut(Range<u64>, Held, Rbx) -> Result<(), WriteError>,
    ) -> Result<bool, WriteError> {
        self.code = None;
        self.eh_returns.clear();
        parts.clear();
        let code = match self.entries.next_fde() {
            Ok(None) => return Ok(false),
            Ok(Some(fde)) => self.parts(&fde, parts)?,
            Err((_, reason)) => Err(reason),
        };
        let report = &mut self.report;
        report.fdes = report.fdes.saturating_add(1);
        let Range { start, end } = match code {
            Ok(code) => code,
            Err(reason) => {
                report.unusable = report.unusable.saturating_add(1);
                return each(0..0, Held::No(NoRow::Error(reason)), Rbx::UNKNOWN).map(|()| true);
            }
        };
        report.code_bytes = report.code_bytes.saturating_add(end.saturating_sub(start));
        self.code = Some(start..end);
        let mut eh_returns = self.eh_returns.ranges().iter().peekable();
        let mut rest = parts.held.iter().peekable();
        let mut places = RbxPlaces::new(&parts.rbx, start);
        while let Some(&(at, held)) = rest.next() {
            let next = rest.peek().map_or(end, |(next, _)| start.saturating_add((*next).into()));
            let part = start.saturating_add(at.into())..next.min(end);
            while eh_returns.next_if(|range| range.end <= part.start).is_some() {}
            let is_eh_return = eh_returns.peek().is_some_and(|range| range.contains(&part.start));
            if let Held::No(NoRow::Error(_)) = held {
                let lost = part.end.saturating_sub(part.start);
                self.report.lost_bytes = self.report.lost_bytes.saturating_add(lost);
            }
            let held = if is_eh_return { held.with_eh_return() } else { held };
            let mut from = part.start;
            loop {
                let (rbx, next) = places.at(from, part.end);
                // What has no row is counted once.
                let up_to = if matches!(held, Held::No(_)) { part.end } else { next };
                each(from..up_to, held, rbx)?;
                if up_to >= part.end {
                    break;
                }
                from = up_to;
            }
        }
        Ok(true)
    }

    /// Collects the parts of an entry, and gives its code. The inner error is a reason to leave out the
    /// whole entry.
    fn parts(
        &mut self,
        fde: &Fde<'_>,
        parts: &mut Parts,
    ) -> Result<Result<Range<u64>, CfiError>, WriteError> {
        let found = self.find_cie(fde.cie)?;
        let known = found.and_then(|at| self.known.get(at));
        let opened = Known::of(known, fde).and_then(|(cie, initial, remembered)| {
            Ok((cie, initial, remembered, self.entries.body(fde, cie)?))
        });
        let keeps_rbx = known.is_some_and(|known| known.keeps_rbx);
        let (cie, initial, remembered, body) = match opened {
            Ok(opened) => opened,
            Err(reason) => return Ok(Err(reason)),
        };
        let start = body.start;
        let end = start.saturating_add(body.len);
        let size = match u32::try_from(body.len) {
            Ok(0) => return Ok(Err(CfiError::Empty)),
            Ok(size) => size,
            Err(_) => return Ok(Err(CfiError::TooLong)),
        };
        let mut states = States::new(&mut self.slots);
        states.set(remembered);
        let mut rows = Rows::new(&self.entries, cie, initial, &body, size, &mut states);
        while let Some((at, _)) = rows.next() {
            self.eh_returns.row(start.wrapping_add(at.into()), &rows)?;
            push(&mut parts.held, (at, Held::of(&rows)))?;
        }
        self.eh_returns.end(end);
        if keeps_rbx {
            let entries = self.entries.keeping(rbx::REGISTER);
            let initial = initial.without_kept();
            push(&mut parts.rbx, (0, Rbx::SAME_VALUE))?;
            if body.may_name(rbx::REGISTER) {
                states.set(&[]);
                let mut rows = Rows::new(&entries, cie, &initial, &body, size, &mut states);
                while let Some((at, _)) = rows.next() {
                    push(&mut parts.rbx, (at, Rbx::new(rows.kept_rule())))?;
                }
            }
        }
        Ok(Ok(start..end))
    }
}
