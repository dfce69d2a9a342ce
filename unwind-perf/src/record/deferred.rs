//! `PERF_RECORD_CALLCHAIN_DEFERRED`: the user part of earlier call chains.

use super::encode::{Encode, Encoder, Output};
use super::header::{Misc, Record, RecordType};
use super::sample_id::{SampleId, split_trailer};
use super::{AttrFlags, Context, Error, EventFormat, Words};

/// Which layout the record has.
///
/// Both have the same type number. Linux merged the one with a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeferredLayout {
    /// A cookie, a count, that many addresses.
    ///
    /// ```text
    ///     u64 cookie
    ///     u64 nr
    ///     u64 ips[nr]      innermost first, no marks
    ///     sample_id
    /// ```
    #[default]
    Cookie,
    /// A count, the user mark, and one address less than the count says.
    ///
    /// ```text
    ///     u64 nr
    ///     u64 ips[nr]      ips[0] is the user mark
    ///     sample_id
    /// ```
    MarkerFirst,
}

impl DeferredLayout {
    /// Returns the layout that events with these switches receive.
    ///
    /// [`AttrFlags::DEFER_OUTPUT`] came with the cookie, and without it no
    /// event of a kernel that knows cookies receives a record.
    #[must_use]
    pub fn of(events: impl IntoIterator<Item = AttrFlags>) -> Self {
        let any = events.into_iter().any(|flags| flags.contains(AttrFlags::DEFER_OUTPUT));
        if any { Self::Cookie } else { Self::MarkerFirst }
    }
}

/// The user part of the call chains of one kernel entry.
///
/// `I` is an iterator over the addresses, innermost first. A host that encodes
/// gives its own, a decoded record has [`Words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallchainDeferred<I> {
    /// What ties the samples of the kernel entry to this record, or `None` in
    /// [`DeferredLayout::MarkerFirst`].
    pub cookie: Option<u64>,
    /// The addresses, without marks but those of a guest's parts.
    pub ips: I,
    /// Whose stack it is, and when and where the record was written, which
    /// need not be where the samples were taken.
    pub id: SampleId,
}

impl<'a> CallchainDeferred<Words<'a>> {
    /// Decodes a record that an event with `format` received.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::Truncated`], [`Error::BadCount`] or
    /// [`Error::Trailing`] if the record does not have this layout, and
    /// [`Error::NoUserMarker`] if its stack lacks the mark of
    /// [`DeferredLayout::MarkerFirst`].
    pub fn decode(
        record: &Record<'a>,
        format: EventFormat,
        layout: DeferredLayout,
    ) -> Result<Self, Error> {
        let c = record.body_of(RecordType::CALLCHAIN_DEFERRED)?;
        let (mut c, id) = split_trailer(c, format)?;
        let cookie = match layout {
            DeferredLayout::Cookie => Some(c.u64()?),
            DeferredLayout::MarkerFirst => None,
        };
        let mut ips = c.counted_words()?;
        c.finish()?;
        if layout == DeferredLayout::MarkerFirst {
            let first = ips.next().unwrap_or_default();
            if first != Context::User.word() {
                return Err(Error::NoUserMarker(first));
            }
        }
        Ok(Self { cookie, ips, id })
    }
}

impl<I: Iterator<Item = u64> + Clone> Encode for CallchainDeferred<I> {
    fn kind(&self) -> RecordType {
        RecordType::CALLCHAIN_DEFERRED
    }

    fn misc(&self) -> Misc {
        Misc::USER
    }

    /// Writes [`DeferredLayout::Cookie`] if there is a cookie, else
    /// [`DeferredLayout::MarkerFirst`].
    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        match self.cookie {
            Some(cookie) => {
                e.u64(cookie);
                e.counted_words(self.ips.clone());
            }
            None => {
                let mark = core::iter::once(Context::User.word());
                e.counted_words(mark.chain(self.ips.clone()));
            }
        }
        self.id.encode(format, e)
    }
}
