//! The cookies of a thread, and which of them have ended.

use alloc::vec::Vec;

use super::policy::Policy;

/// What is known of a thread that has entries in the store.
#[derive(Clone, Debug, Default)]
pub(super) struct Thread {
    /// How many entries it has.
    pub(super) entries: usize,
    /// The cookies for which no stack under a newer cookie is known: mostly
    /// one.
    open: Vec<Open>,
    pub(super) thread_end: ThreadEnd,
}

/// When a thread last called exec, and when it ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadEnd {
    pub(super) exec: Option<u64>,
    pub(super) exit: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    cookie: u64,
    /// The oldest and the newest time seen.
    first: u64,
    last: u64,
    has_stack: bool,
}

/// The most cookies that a thread can have without one stack among the newer
/// of them: records come too seldom then to wait for.
const MAX_OPEN: usize = 64;

impl Thread {
    /// The cookies that no newer stack is known for.
    pub(super) fn open(&self) -> impl Iterator<Item = u64> {
        self.open.iter().map(|open| open.cookie)
    }

    /// Adds a cookie.
    pub(super) fn add(&mut self, cookie: u64, time: u64) {
        self.entries = self.entries.saturating_add(1);
        self.open.push(Open { cookie, first: time, last: time, has_stack: false });
    }

    /// Removes a cookie.
    pub(super) fn remove(&mut self, cookie: u64) {
        self.entries = self.entries.saturating_sub(1);
        self.open.retain(|open| open.cookie != cookie);
    }

    /// Learns from the sight of a sample or a stack which cookies are over,
    /// and from when on.
    pub(super) fn observe(
        &mut self,
        cookie: u64,
        time: u64,
        is_stack: bool,
        policy: Policy,
        mut over: impl FnMut(u64, u64),
    ) {
        let Some(me) = self.open.iter_mut().find(|open| open.cookie == cookie) else {
            return;
        };
        me.first = me.first.min(time);
        me.last = me.last.max(time);
        me.has_stack |= is_stack;
        let me = *me;
        let since = |newer: Open| {
            let wait = if newer.has_stack { policy.window } else { policy.sample_window };
            newer.first.saturating_add(wait)
        };
        let is_over = |older: Open, newer: Open| {
            if policy.ascending_cookies {
                older.cookie < newer.cookie
            } else {
                older.last <= newer.first
            }
        };
        let mut keeps_me = true;
        self.open.retain(|&other| {
            if other.cookie == cookie {
                true
            } else if is_over(other, me) {
                over(other.cookie, since(me));
                !me.has_stack
            } else {
                if is_over(me, other) {
                    over(cookie, since(other));
                    keeps_me &= !other.has_stack;
                }
                true
            }
        });
        if !keeps_me {
            self.open.retain(|open| open.cookie != cookie);
        }
        if self.open.len() > MAX_OPEN {
            over(self.open.remove(0).cookie, 0);
        }
    }
}
