//! Tables into one: what a linker does.

use alloc::vec::Vec;

use unwind_core::Row;

use crate::{
    error::Error,
    format::{
        fde::{Fde, FdeType, FuncRange, PauthKey, PcType},
        header::Version,
    },
    read::{lookup::Lookup, table::Table},
    write::{
        builder::Builder,
        function::Function,
        lost::{Omission, OmissionReason, WriteError},
        work_counter,
    },
};

impl Builder {
    /// Copies the functions of another table, of any version, into this one.
    ///
    /// `place` gives the address that a function comes to be at, or `None` to
    /// leave it out; `|fde| Some(fde.range.start)` leaves it where it is. In a
    /// relocatable object the start in the table means nothing: the address is
    /// that of the relocation for the entry at [`Fde::at`].
    ///
    /// What this format cannot say, functions that are malformed, and those that
    /// share more rows than 16 for each byte of rows (and 65,536 in any case), are
    /// handed to `lost`, with addresses as `place` gave them.
    ///
    /// # Errors
    ///
    /// [`WriteError::OtherAbi`] if the table is of another ABI,
    /// [`WriteError::OutOfMemory`] and [`WriteError::TooLarge`]; functions
    /// before that one have been added then.
    pub fn add_table(
        &mut self,
        table: &Table<'_>,
        mut place: impl FnMut(&Fde) -> Option<u64>,
        mut lost: impl FnMut(Omission),
    ) -> Result<(), WriteError> {
        let abi = table.header().abi;
        if abi != self.abi() {
            return Err(WriteError::OtherAbi(abi));
        }
        let mut rows_left = table.max_rows();
        for (index, fde) in (0_u32..).zip(table.fdes()) {
            let fde = match fde {
                Ok(fde) => fde,
                Err(error) => {
                    let range = table.range(index).unwrap_or(FuncRange { start: 0, size: 0 });
                    let reason = OmissionReason::Malformed(error);
                    lost(Omission::new(range.start, range.start, range.size.into(), reason));
                    continue;
                }
            };
            let Some(start) = place(&fde) else { continue };
            // The rows are lent to `add`, which needs the whole builder.
            let mut rows = core::mem::take(&mut self.scratch);
            let result = copy(table, &fde, &mut rows, &mut rows_left).map(|shape| {
                let size = fde.range.size;
                Function { start, size, rows: &rows, ..shape }
            });
            let added = match result {
                Ok(function) => self.add(&function, &mut lost),
                Err(Violation::Omission(reason)) => {
                    lost(Omission::new(start, start, fde.range.size.into(), reason));
                    Ok(())
                }
                Err(Violation::Write(error)) => Err(error),
            };
            self.scratch = rows;
            added?;
        }
        Ok(())
    }
}

/// Why a function was not copied.
pub(crate) enum Violation {
    Omission(OmissionReason),
    Write(WriteError),
}

impl From<Error> for Violation {
    fn from(error: Error) -> Self {
        Self::Omission(OmissionReason::Malformed(error))
    }
}

/// Copies the rows of `fde`. Gives the function's marks, without its place and
/// rows. Takes those off `left`.
pub(crate) fn copy(
    table: &Table<'_>,
    fde: &Fde,
    rows: &mut Vec<(u32, Row)>,
    left: &mut u64,
) -> Result<Function<'static>, Violation> {
    rows.clear();
    // As a lookup does, also where there are no rows.
    if let FdeType::Unknown(_) = fde.fde_type() {
        return Err(Error::UnknownFdeType { at: fde.at, info2: fde.info2 }.into());
    }
    let fres = table.fres(fde)?;
    let mut function = Function::new(0, 0, &[]);
    function.signal = fde.is_signal();
    function.block_size = match fde.pc_type()? {
        PcType::Increment => None,
        PcType::Mask(size) => Some(size),
    };
    function.pauth_key = fde.pauth_key().unwrap_or(PauthKey::A);
    // No row is shorter than two bytes.
    let most = u64::try_from(fres.bytes().len() / 2).unwrap_or(u64::MAX);
    let most = most.min(fde.num_fres.into());
    *left = left.checked_sub(most).ok_or(Violation::Omission(OmissionReason::SharedRows))?;
    for fre in fres {
        work_counter::steps(1);
        let fre = fre?;
        let row = fde.row(&fre)?;
        rows.try_reserve(1).map_err(|error| Violation::Write(error.into()))?;
        rows.push((fre.start, row));
    }
    if fde.num_fres == 0 && table.header().version == Version::V3 {
        let row = Lookup { fde: *fde, fre: None }.row()?;
        rows.try_reserve(1).map_err(|error| Violation::Write(error.into()))?;
        rows.push((0, row));
        // It is about all bytes alike.
        function.block_size = None;
    }
    Ok(function)
}
