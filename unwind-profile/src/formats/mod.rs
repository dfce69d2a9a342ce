//! What a profile is written as.

pub mod difference;
#[cfg(feature = "firefox")]
pub mod firefox;
#[cfg(feature = "svg")]
pub mod flame_graph;
pub mod folded;
pub mod format;
#[cfg(feature = "html")]
pub mod html;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(feature = "pprof")]
pub mod pprof;
pub mod speedscope;
pub mod table;

use std::io::{self, Write};

use crate::collected::view::View;
use crate::formats::format::Format;

/// Writes one format, the text of functions at most `top`. Formats that need whole stacks in memory have
/// about `room` bytes for them.
pub fn write(
    format: Format,
    view: &View<'_>,
    top: usize,
    room: usize,
    mut out: &mut dyn Write,
) -> io::Result<()> {
    let View { title, profile, ledger, .. } = *view;
    match format {
        Format::Text => {
            table::write(&mut out, view, top)?;
            write!(out, "\n{}", view.notes())?;
        }
        Format::Folded => folded::write(&mut out, profile)?,
        #[cfg(feature = "html")]
        Format::Html => html::write(&mut out, view)?,
        #[cfg(feature = "svg")]
        Format::Svg => flame_graph::write(&mut out, profile, title, ledger.summary(), room)?,
        Format::Speedscope => speedscope::write(&mut out, profile, title, ledger)?,
        #[cfg(feature = "firefox")]
        Format::Firefox => firefox::write(&mut out, view)?,
        #[cfg(feature = "pprof")]
        Format::Pprof => pprof::write(&mut out, profile, view.notes().lines())?,
        #[cfg(feature = "otlp")]
        Format::Otlp => otlp::write(&mut out, view, room)?,
        #[cfg(feature = "parquet")]
        Format::Parquet => parquet::write_all(&mut out, view)?,
    }
    out.flush()
}
