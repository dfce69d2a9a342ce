//! A twin of task data with a counter, a mark and an exit flag in separate
//! words, as in Linux. Object 0 means no object.

use super::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::SeqCst};

#[derive(Debug)]
pub(crate) struct Object {
    count: AtomicU32,
    marked: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Task {
    object: AtomicU32,
    exiting: AtomicU32,
    next: AtomicU32,
    objects: [Object; 4],
    /// Whether an attach looks at the exit flag again when it has
    /// installed its object.
    looks_again: bool,
    /// Whether an attach that finds an object sets its mark together with
    /// the reference.
    marks_found: bool,
}

impl Task {
    pub(crate) fn new(looks_again: bool, marks_found: bool) -> Arc<Self> {
        let object = || Object { count: AtomicU32::new(0), marked: AtomicU32::new(0) };
        Arc::new(Self {
            object: AtomicU32::new(0),
            exiting: AtomicU32::new(0),
            next: AtomicU32::new(1),
            objects: [object(), object(), object(), object()],
            looks_again,
            marks_found,
        })
    }

    fn object(&self, index: u32) -> &Object {
        &self.objects[usize::try_from(index).unwrap()]
    }

    /// The number of references that are held on the installed object.
    pub(crate) fn count(&self) -> u32 {
        self.object(self.object.load(SeqCst)).count.load(SeqCst)
    }

    pub(crate) fn attach(&self, mark: bool) {
        if self.exiting.load(SeqCst) != 0 {
            return;
        }
        let new = self.next.fetch_add(1, SeqCst);
        self.object(new).count.store(1, SeqCst);
        self.object(new).marked.store(u32::from(mark), SeqCst);
        let mut old = 0;
        loop {
            match self.object.compare_exchange(old, new, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(0) => old = 0,
                Err(found) => {
                    if self.reference(found, mark && self.marks_found) {
                        return;
                    }
                    old = found;
                }
            }
        }
        if self.looks_again && self.exiting.load(SeqCst) != 0 {
            let _ = self.object.compare_exchange(new, 0, SeqCst, SeqCst);
        }
    }

    /// Takes a reference to an object unless it is dying, and with `mark`
    /// only if the mark is not there yet.
    fn reference(&self, index: u32, mark: bool) -> bool {
        let object = self.object(index);
        if mark && object.marked.swap(1, SeqCst) != 0 {
            return true;
        }
        let mut count = object.count.load(SeqCst);
        while count != 0 {
            match object.count.compare_exchange(count, count + 1, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(found) => count = found,
            }
        }
        false
    }

    /// The walk of the first system-wide event, which starts anew after
    /// each task for which it had to allocate.
    pub(crate) fn attach_all(&self) {
        loop {
            let found = self.object.load(SeqCst);
            if found == 0 {
                self.attach(true);
                continue;
            }
            if self.object(found).marked.swap(1, SeqCst) != 0 || self.reference(found, false) {
                return;
            }
        }
    }

    pub(crate) fn detach_all(&self) {
        let found = self.object.load(SeqCst);
        if found != 0 && self.object(found).marked.swap(0, SeqCst) != 0 {
            self.detach();
        }
    }

    pub(crate) fn detach(&self) {
        // A read-modify-write even if there is nothing: it orders an exit
        // against the compare-exchange of an attach.
        let found = self.object.fetch_or(0, SeqCst);
        if found != 0 && self.object(found).count.fetch_sub(1, SeqCst) == 1 {
            let _ = self.object.compare_exchange(found, 0, SeqCst, SeqCst);
        }
    }

    pub(crate) fn exit(&self) {
        self.exiting.store(1, SeqCst);
        self.detach();
    }

    /// Whether the task holds an object that no one will free.
    pub(crate) fn leaks(&self) -> bool {
        self.object.load(SeqCst) != 0
    }
}
