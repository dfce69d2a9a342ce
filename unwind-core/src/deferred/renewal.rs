//! Asking for a second stack in one kernel entry.

use super::word::TaskWord;
use super::{ClientId, CookieSource, DeferredUnwind, Host, RequestOutcome, UserReturn};

/// # Second stacks
impl<H: Host, C: CookieSource> DeferredUnwind<H, C> {
    /// Asks for the task's user stack as it is now, also if the client has been served in this
    /// kernel entry. Task context, by the task itself.
    ///
    /// A [request](Self::request) after the delivery is told that it was executed: user code has
    /// not run since, so the stack is known. That is not so where the kernel itself has changed
    /// the user stack or its registers meanwhile: it has laid a signal frame on it or taken one
    /// down, or a debugger has. Who knows of that calls this.
    ///
    /// The kernel entry is then two for all clients: from here on requests have another cookie,
    /// also those of others and those in NMIs, and one more walk serves them. A stack goes out
    /// under the cookie of the samples that were taken while the stack was so.
    ///
    /// It is as a request where there can be no second stack, and the outcome says so: the client
    /// has not been served ([`Queued`](RequestOutcome::Queued) or
    /// [`AlreadyPending`](RequestOutcome::AlreadyPending): that walk is still to come), or it has
    /// ([`AlreadyExecuted`](RequestOutcome::AlreadyExecuted)) and
    ///
    /// - a delivery of the task runs, so that a client whose own work leads to this does not keep
    ///   the delivery from ending;
    /// - another client's request is still to be delivered: it has the entry's cookie;
    /// - this is the second stack already: an entry has two at most, so that the way out of the
    ///   kernel ends, whatever is called on it.
    pub fn request_anew(&self, task: &H::Task, client: ClientId) -> RequestOutcome {
        let outcome = self.request(task, client);
        let state = self.host().state(task);
        let is_served = matches!(outcome, RequestOutcome::AlreadyExecuted(_));
        // What an NMI does in between is neither a delivery nor a renewal.
        if !is_served || state.delivery.runs() || state.word().is_renewed() {
            return outcome;
        }
        match self.end_entry(state, TaskWord::renewed) {
            UserReturn::Ready => self.request(task, client),
            UserReturn::Pending => outcome,
        }
    }
}
