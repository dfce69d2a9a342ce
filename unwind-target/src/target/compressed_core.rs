//! A core file that is compressed by zstd, as systemd keeps them.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// Why a compressed core file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CompressedError {
    /// It cannot be read, or there is no room for what it stands for.
    #[error("cannot decompress it: {0}")]
    Io(#[from] io::Error),
    /// It is cut off, or damaged.
    #[error("it is compressed by zstd, and cut off or damaged")]
    Damaged,
    /// It stands for more bytes than any core file has that is known.
    #[error("it is compressed by zstd, and stands for more than {} GiB", LIMIT >> 30)]
    TooLarge,
}

/// How many bytes a core file may have.
const LIMIT: u64 = 64 << 30;

/// How far back bytes may refer: what `zstd --long` asks for.
const WINDOW: u64 = 128 << 20;

/// How a frame of zstd begins.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// How what is no frame of data begins, in which some programs have places: the lowest four bits are any.
const SKIPPED: u32 = 0x184d_2a50;

/// Whether a file is compressed by zstd.
pub(crate) fn is_compressed(file: &File) -> bool {
    let mut start = [0; 4];
    file.read_exact_at(&mut start, 0).is_ok() && (start == MAGIC || is_skipped(start))
}

fn is_skipped(start: [u8; 4]) -> bool {
    u32::from_le_bytes(start) & !0xf == SKIPPED
}

/// How long what is no frame of data is that begins at a place, its head of 8 bytes included.
fn skipped_len(file: &File, at: u64) -> Option<u64> {
    let mut head = [0; 8];
    file.read_exact_at(&mut head, at).ok()?;
    let [a, b, c, d, len @ ..] = head;
    is_skipped([a, b, c, d]).then(|| u64::from(u32::from_le_bytes(len)).saturating_add(8))
}

/// How many bytes a compressed core file stands for, if it is one.
#[must_use]
pub fn decompressed_len(bytes: &[u8]) -> Option<u64> {
    let mut file = tempfile::tempfile().ok()?;
    file.write_all(bytes).ok()?;
    let is_compressed = is_compressed(&file);
    let copy = decompress(&file).ok().filter(|_| is_compressed)?;
    copy.metadata().ok().map(|metadata| metadata.len())
}

/// Copies what a file stands for into one without a name, which is gone with the command.
/// Blocks of zeroes take no room on the disk.
///
/// # Errors
///
/// [`CompressedError`] if the file is damaged, or stands for too much.
pub(crate) fn decompress(file: &File) -> Result<File, CompressedError> {
    let mut source = io::BufReader::new(file);
    source.seek(SeekFrom::Start(0))?;
    let len = file.metadata()?.len();
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW);
    let mut copy = tempfile::tempfile()?;
    let mut at = 0_u64;
    let mut block = vec![0; 64 << 10];
    // Compressors that use several CPUs write several frames.
    loop {
        let from = source.stream_position()?;
        if from >= len {
            break;
        }
        if let Some(skipped) = skipped_len(file, from) {
            source.seek(SeekFrom::Start(from.saturating_add(skipped)))?;
            continue;
        }
        let frame = StreamingDecoder::new_with_decoder(&mut source, &mut decoder);
        let mut frame = frame.map_err(|_| CompressedError::Damaged)?;
        loop {
            let count = frame.read(&mut block).map_err(|_| CompressedError::Damaged)?;
            let Some(bytes) = block.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
            at = at.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            if at > LIMIT {
                return Err(CompressedError::TooLarge);
            }
            if bytes.iter().all(|&byte| byte == 0) {
                copy.seek(SeekFrom::Start(at))?;
            } else {
                copy.write_all(bytes)?;
            }
        }
    }
    // Zeroes at the end are no hole until the length says so.
    copy.set_len(at)?;
    Ok(copy)
}
