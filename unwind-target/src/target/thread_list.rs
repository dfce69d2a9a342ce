//! The threads of a process, as `/proc` lists them.

use std::io;

use rustix::fs::{Dir, Mode, OFlags, open};
use rustix::io::Errno;

use crate::input_error::InputError;
use crate::untrusted::plain;

/// The list, which can be read again and again.
#[derive(Debug)]
pub(super) struct ThreadList {
    path: String,
    /// None once the process has ended.
    dir: Option<Dir>,
}

impl ThreadList {
    /// Of a process, which may have ended.
    ///
    /// # Errors
    ///
    /// [`InputError`] if `/proc` does not list them.
    pub(super) fn open(process: i32) -> Result<Self, InputError> {
        let path = format!("/proc/{process}/task");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(&path, flags, Mode::empty()).and_then(Dir::new);
        match dir {
            Ok(dir) => Ok(Self { path, dir: Some(dir) }),
            Err(Errno::NOENT) => Ok(Self { path, dir: None }),
            Err(error) => Err(failed(&path, error)),
        }
    }

    /// The ids of the threads that there are now; none if the process has ended.
    ///
    /// # Errors
    ///
    /// [`InputError`] if `/proc` does not list them.
    pub(super) fn ids(&mut self) -> Result<Vec<i32>, InputError> {
        let Some(dir) = &mut self.dir else { return Ok(Vec::new()) };
        dir.rewind();
        let mut ids = Vec::new();
        while let Some(entry) = dir.read() {
            match entry {
                // The directory itself, and the one that it is in, are no numbers.
                Ok(entry) => {
                    let id = plain(entry.file_name().to_bytes());
                    ids.extend(id.and_then(|id| id.parse::<i32>().ok()));
                }
                // The process has ended, with all that was listed.
                Err(Errno::NOENT | Errno::SRCH) => return Ok(Vec::new()),
                Err(error) => return Err(failed(&self.path, error)),
            }
        }
        Ok(ids)
    }
}

fn failed(path: &str, error: Errno) -> InputError {
    InputError::Read { path: path.into(), error: io::Error::from(error) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn a_list_that_is_read_again_has_the_threads_of_that_time() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut list = ThreadList::open(own).unwrap();
        assert!(list.ids().unwrap().contains(&own));
        let (end, ended) = channel::<()>();
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            ended.recv().unwrap_err();
        });
        let id = told.recv().unwrap();
        assert!(list.ids().unwrap().contains(&id));
        drop(end);
        thread.join().unwrap();
        // The kernel takes it off the list soon after.
        while list.ids().unwrap().contains(&id) {
            thread::yield_now();
        }
    }

    #[test]
    fn a_process_that_has_ended_has_no_threads() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let id = i32::try_from(child.id()).unwrap();
        let mut list = ThreadList::open(id).unwrap();
        assert_eq!(list.ids().unwrap(), [id]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(list.ids().unwrap(), [0_i32; 0]);
        assert_eq!(ThreadList::open(i32::MAX).unwrap().ids().unwrap(), [0_i32; 0]);
    }
}
