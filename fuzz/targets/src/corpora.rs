//! The committed inputs of a target: seeds with a name, one file each, and what fuzzers
//! found, in one archive a target.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

/// Inputs by their names.
pub type Inputs = BTreeMap<String, Vec<u8>>;

/// The folder `fuzz` of this tree.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where the archive of a target is.
#[must_use]
pub fn archive(target: &str) -> PathBuf {
    folder().join(format!("corpora/{target}.tar.gz"))
}

/// The files of a folder; none if there is no such folder.
///
/// # Errors
///
/// The first file that cannot be read.
pub fn read_folder(folder: &Path) -> io::Result<Inputs> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Inputs::new()),
        Err(error) => return Err(error),
    };
    let read = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        let name = entry.file_name().into_string();
        let name = name.map_err(|name| io::Error::other(format!("{name:?} is no UTF-8")))?;
        Ok((name, fs::read(entry.path())?))
    };
    entries.map(read).collect()
}

/// The seeds of a target.
///
/// # Errors
///
/// The first file that cannot be read.
pub fn seeds(target: &str) -> io::Result<Inputs> {
    read_folder(&folder().join("seeds").join(target))
}

/// What is in the archive of a target, if it has one.
///
/// # Errors
///
/// An archive that cannot be read or is damaged.
pub fn archived(target: &str) -> io::Result<Inputs> {
    match fs::read(archive(target)) {
        Ok(bytes) => unpack(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Inputs::new()),
        Err(error) => Err(error),
    }
}

/// All committed inputs of a target.
///
/// # Errors
///
/// The first that cannot be read.
pub fn committed(target: &str) -> io::Result<Inputs> {
    let mut inputs = archived(target)?;
    inputs.extend(seeds(target)?);
    Ok(inputs)
}

/// The files of a compressed archive.
///
/// # Errors
///
/// The archive is damaged.
pub fn unpack(archive: &[u8]) -> io::Result<Inputs> {
    let mut inputs = Inputs::new();
    for entry in tar::Archive::new(GzDecoder::new(archive)).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        inputs.insert(name, bytes);
    }
    Ok(inputs)
}

/// The same files always make the same archive: in the order of their names, at time
/// zero, of no owner.
///
/// # Errors
///
/// A name that an archive cannot hold.
pub fn pack(inputs: &Inputs) -> io::Result<Vec<u8>> {
    let compressed = GzEncoder::new(Vec::new(), Compression::best());
    let mut archive = tar::Builder::new(compressed);
    for (name, bytes) in inputs {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(u64::try_from(bytes.len()).unwrap());
        archive.append_data(&mut header, name, bytes.as_slice())?;
    }
    let mut compressed = archive.into_inner()?;
    compressed.flush()?;
    compressed.finish()
}
