//! Unique addresses for storages, in one reserved range that nothing can read or write: a stray host access faults
//! instead of lying. Power-of-two classes with free lists: constant time, and an address is never shared by two live storages.

use rustc_hash::FxHashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

const SMALLEST: u32 = 8; // 256 bytes: torch expects generous alignment

/// A live storage, as a number: only handed back, never followed here.
type Cell = usize;

struct Range {
    live: FxHashMap<usize, Cell>,
    base: usize,
    end: usize,
    next: usize,
    free: [Vec<usize>; 48],
}

fn range() -> Option<&'static Mutex<Range>> {
    static RANGE: OnceLock<Option<Mutex<Range>>> = OnceLock::new();
    RANGE
        .get_or_init(|| {
            // as much as the system gives: 32 TiB down to 64 GiB
            (36..=45).rev().find_map(|bits| {
                let size = 1usize << bits;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                // SAFETY: a fresh private mapping without permissions; nothing else is touched.
                let p = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
                (p != libc::MAP_FAILED).then(|| {
                    let base = p as usize;
                    Mutex::new(Range {
                        live: FxHashMap::default(),
                        base,
                        end: base + size,
                        next: base,
                        free: std::array::from_fn(|_| vec![]),
                    })
                })
            })
        })
        .as_ref()
}

fn class(nbytes: u64) -> u32 {
    // one byte more than asked, so that a view at the very end still lies inside
    (nbytes + 1).next_power_of_two().trailing_zeros().max(SMALLEST)
}

/// An address for `nbytes` bytes; `None` when the address space is used up.
pub fn take(nbytes: u64) -> Option<usize> {
    if nbytes > 1 << 44 {
        return None;
    }
    let class = class(nbytes);
    let mut r = range()?.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(a) = r.free.get_mut(class as usize)?.pop() {
        return Some(a);
    }
    let a = r.next;
    let end = a.checked_add(1 << class)?;
    if end > r.end {
        return None;
    }
    r.next = end;
    Some(a)
}

/// Gives an address back.
pub fn give(address: usize, nbytes: u64) {
    if let Some(r) = range() {
        let mut r = r.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(address >= r.base && address < r.end);
        r.live.remove(&address);
        r.free[class(nbytes) as usize].push(address);
    }
}

/// Says whose address it is.
pub fn own(address: usize, cell: Cell) {
    if let Some(r) = range() {
        r.lock().unwrap_or_else(PoisonError::into_inner).live.insert(address, cell);
    }
}

/// Whose address it is.
pub fn owner(address: usize) -> Option<Cell> {
    range()?.lock().unwrap_or_else(PoisonError::into_inner).live.get(&address).copied()
}
