//! The return addresses of a task as calls have left them, where user code cannot change
//! them.

use arrayvec::ArrayVec;

/// The outermost first.
pub(crate) struct ShadowStack(ArrayVec<u64, 128>);

impl ShadowStack {
    /// Of a task that has not run yet.
    pub(crate) const fn new() -> Self {
        Self(ArrayVec::new_const())
    }

    /// A call has left this address.
    pub(crate) fn push(&mut self, address: u64) {
        assert!(self.0.try_push(address).is_ok(), "the shadow stack is full");
    }

    /// Takes the address that the last call has left.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        self.0.pop()
    }

    /// The addresses, the innermost first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.iter().rev().copied()
    }
}
