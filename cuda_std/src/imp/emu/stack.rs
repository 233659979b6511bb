//! A pool of coroutine stacks.

use corosensei::stack::{DefaultStack, Stack, StackPointer};
use std::io;
use std::sync::{Condvar, Mutex};

/// Room for a kernel's locals and for a panic's backtrace; only touched pages take memory.
const SIZE: usize = 256 << 10;

/// Each stack is two mappings of the process (its guard page too), of which Linux allows 65530; the rest of the process has two thousand.
pub(crate) const LIMIT: usize = 31 << 10;

/// A stack with a guard page, whose top lies at a place of its own within a page.
///
/// Hundreds of stacks that all start at a page's end would share the same few sets of the first-level cache.
pub(crate) struct ThreadStack {
    stack: DefaultStack,
    shift: usize,
}

// SAFETY: memory from `base` down to `limit` is the inner stack's, less at most a page at the top.
unsafe impl Stack for ThreadStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.stack.base().get() - self.shift)
            .expect("a stack lies above the first page")
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }

    #[cfg(windows)]
    fn teb_fields(&self) -> corosensei::stack::StackTebFields {
        self.stack.teb_fields()
    }

    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.stack
            .update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}

struct Pool {
    free: Vec<ThreadStack>,
    made: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: Vec::new(),
    made: 0,
});
static RETURNED: Condvar = Condvar::new();

/// Takes `count` stacks at once, so that waiting for them holds none.
pub(crate) fn take(count: usize, into: &mut Vec<ThreadStack>) -> io::Result<()> {
    let mut pool = POOL.lock().unwrap_or_else(|e| e.into_inner());
    while pool.free.len() < count && pool.made - pool.free.len() + count > LIMIT {
        pool = RETURNED.wait(pool).unwrap_or_else(|e| e.into_inner());
    }
    while pool.free.len() < count {
        let shift = pool.made % 60 * 64;
        let stack = DefaultStack::new(SIZE)?;
        pool.made += 1;
        pool.free.push(ThreadStack { stack, shift });
    }
    let rest = pool.free.len() - count;
    into.extend(pool.free.drain(rest..));
    Ok(())
}

/// Gives stacks back.
pub(crate) fn give_back(stacks: impl IntoIterator<Item = ThreadStack>) {
    POOL.lock()
        .unwrap_or_else(|e| e.into_inner())
        .free
        .extend(stacks);
    RETURNED.notify_all();
}
