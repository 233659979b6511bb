//! Types as registers hold them: bits of 8, 16, 32 or 64.

use half::bf16;

/// A type that a register holds.
pub trait Scalar: Copy {
    /// The unsigned integer of its size.
    type Bits: Bits;
    fn to_bits(self) -> Self::Bits;
    fn from_bits(bits: Self::Bits) -> Self;
}

/// Loads and stores of an unsigned integer. Addresses are global or shared as the name says.
///
/// # Safety
///
/// The contract of the views' accesses, for all functions.
pub trait Bits: Copy {
    unsafe fn ld_global(addr: u64) -> Self;
    unsafe fn ld_global_if(addr: u64, condition: bool, default: Self) -> Self;
    unsafe fn ld_global_nc(addr: u64) -> Self;
    unsafe fn ld_global_nc_if(addr: u64, condition: bool, default: Self) -> Self;
    unsafe fn st_global(addr: u64, bits: Self);
    unsafe fn ld_shared(addr: u32) -> Self;
    unsafe fn ld_shared_if(addr: u32, condition: bool, default: Self) -> Self;
    unsafe fn st_shared(addr: u32, bits: Self);
}

macro_rules! scalars {
    ($($t:ty, $bits:ty, $to:expr, $from:expr;)*) => { $(
        impl Scalar for $t {
            type Bits = $bits;
            #[inline(always)]
            fn to_bits(self) -> $bits {
                $to(self)
            }
            #[inline(always)]
            fn from_bits(bits: $bits) -> Self {
                $from(bits)
            }
        }
    )* };
}
scalars! {
    u8, u8, |x| x, |x| x;
    u16, u16, |x| x, |x| x;
    bf16, u16, bf16::to_bits, bf16::from_bits;
    u32, u32, |x| x, |x| x;
    i32, u32, |x: i32| x as u32, |x: u32| x as i32;
    f32, u32, f32::to_bits, f32::from_bits;
    u64, u64, |x| x, |x| x;
    i64, u64, |x: i64| x as u64, |x: u64| x as i64;
}

/// `load` reads through an address register of class `reg` when the predicate holds.
macro_rules! load {
    ($ty:ty, $class:ident, $instruction:expr, $address:ident, $addr:expr) => {{
        let bits: $ty;
        // SAFETY: the caller keeps the contract.
        unsafe {
            core::arch::asm!(concat!($instruction, " {0}, [{1}];"), out($class) bits, in($address) $addr, options(readonly, nostack));
        }
        bits
    }};
}
macro_rules! load_if {
    ($ty:ty, $class:ident, $instruction:expr, $address:ident, $addr:expr, $condition:expr, $default:expr) => {{
        let mut bits: $ty = $default;
        // SAFETY: the caller keeps the contract.
        unsafe {
            core::arch::asm!(
                "{{ .reg .pred q; setp.ne.u32 q, {2}, 0;",
                concat!("@q ", $instruction, " {0}, [{1}]; }}"),
                inout($class) bits, in($address) $addr, in(reg32) $condition as u32, options(readonly, nostack)
            );
        }
        bits
    }};
}
macro_rules! store {
    ($class:ident, $instruction:expr, $address:ident, $addr:expr, $bits:expr) => {
        // SAFETY: the caller keeps the contract.
        unsafe {
            core::arch::asm!(concat!($instruction, " [{0}], {1};"), in($address) $addr, in($class) $bits, options(nostack));
        }
    };
}

/// `$reg`: what holds it in a register (a byte lies in a 16-bit one).
macro_rules! bits {
    ($($t:ty, $reg:ty, $class:ident, $suffix:literal;)*) => { $(
        impl Bits for $t {
            #[inline(always)]
            unsafe fn ld_global(addr: u64) -> Self {
                load!($reg, $class, concat!("ld.global.", $suffix), reg64, addr) as Self
            }
            #[inline(always)]
            unsafe fn ld_global_if(addr: u64, condition: bool, default: Self) -> Self {
                load_if!($reg, $class, concat!("ld.global.", $suffix), reg64, addr, condition, default as $reg) as Self
            }
            #[inline(always)]
            unsafe fn ld_global_nc(addr: u64) -> Self {
                load!($reg, $class, concat!("ld.global.nc.", $suffix), reg64, addr) as Self
            }
            #[inline(always)]
            unsafe fn ld_global_nc_if(addr: u64, condition: bool, default: Self) -> Self {
                load_if!($reg, $class, concat!("ld.global.nc.", $suffix), reg64, addr, condition, default as $reg) as Self
            }
            #[inline(always)]
            unsafe fn st_global(addr: u64, bits: Self) {
                store!($class, concat!("st.global.", $suffix), reg64, addr, bits as $reg);
            }
            #[inline(always)]
            unsafe fn ld_shared(addr: u32) -> Self {
                load!($reg, $class, concat!("ld.shared.", $suffix), reg32, addr) as Self
            }
            #[inline(always)]
            unsafe fn ld_shared_if(addr: u32, condition: bool, default: Self) -> Self {
                load_if!($reg, $class, concat!("ld.shared.", $suffix), reg32, addr, condition, default as $reg) as Self
            }
            #[inline(always)]
            unsafe fn st_shared(addr: u32, bits: Self) {
                store!($class, concat!("st.shared.", $suffix), reg32, addr, bits as $reg);
            }
        }
    )* };
}
bits! {
    u8, u16, reg16, "u8";
    u16, u16, reg16, "b16";
    u32, u32, reg32, "b32";
    u64, u64, reg64, "b64";
}

/// Four 32-bit registers of a 16-byte access.
pub trait WordScalar: Scalar<Bits = u32> {}
impl WordScalar for i32 {}
impl WordScalar for u32 {}
impl WordScalar for f32 {}

/// Values that shuffles move, 32 bits at a time.
pub trait ShuffleScalar: Copy {
    fn shuffle(self, word: impl FnMut(u32) -> u32) -> Self;
}

macro_rules! shuffle {
    ($($t:ty, |$x:ident, $word:ident| $body:expr;)*) => { $(
        impl ShuffleScalar for $t {
            #[inline(always)]
            fn shuffle(self, mut $word: impl FnMut(u32) -> u32) -> Self {
                let $x = self;
                $body
            }
        }
    )* };
}
shuffle! {
    u32, |x, word| word(x);
    i32, |x, word| word(x as u32) as i32;
    f32, |x, word| f32::from_bits(word(x.to_bits()));
    u64, |x, word| u64::from(word(x as u32)) | u64::from(word((x >> 32) as u32)) << 32;
    i64, |x, word| (u64::from(word(x as u32)) | u64::from(word((x >> 32) as u32)) << 32) as i64;
}

/// Values that matches compare.
pub trait MatchScalar: Copy {
    fn match_any(mask: u32, value: Self) -> u32;
}

/// Values that minimum and maximum order.
pub trait ReduceScalar: Copy {
    fn min(mask: u32, value: Self) -> Self;
    fn max(mask: u32, value: Self) -> Self;
}

/// Atomic operations on global (`GPU` scope) and shared (block scope) memory.
///
/// # Safety
///
/// The contract of the views' accesses, for all functions.
pub trait AtomicScalar: Scalar {
    unsafe fn ld_relaxed(addr: u64) -> Self;
    unsafe fn ld_relaxed_block(addr: u64) -> Self;
    unsafe fn ld_acquire(addr: u64) -> Self;
    unsafe fn st_relaxed(addr: u64, value: Self);
    unsafe fn st_release(addr: u64, value: Self);
    unsafe fn atomic_add(addr: u64, value: Self) -> Self;
    unsafe fn atomic_max(addr: u64, value: Self) -> Self;
    unsafe fn atomic_min(addr: u64, value: Self) -> Self;
    unsafe fn atomic_and(addr: u64, value: Self) -> Self;
    unsafe fn atomic_or(addr: u64, value: Self) -> Self;
    unsafe fn atomic_xor(addr: u64, value: Self) -> Self;
    unsafe fn atomic_exchange(addr: u64, value: Self) -> Self;
    unsafe fn atomic_cas(addr: u64, expected: Self, value: Self) -> Self;
    unsafe fn atomic_add_acq_rel(addr: u64, value: Self) -> Self;
    unsafe fn atomic_max_acq_rel(addr: u64, value: Self) -> Self;
    unsafe fn atomic_exchange_acq_rel(addr: u64, value: Self) -> Self;
    unsafe fn atomic_cas_acq_rel(addr: u64, expected: Self, value: Self) -> Self;
    unsafe fn red_add(addr: u64, value: Self);
    unsafe fn red_max(addr: u64, value: Self);
    unsafe fn red_min(addr: u64, value: Self);
    unsafe fn red_or(addr: u64, value: Self);
    unsafe fn shared_add(addr: u32, value: Self) -> Self;
    unsafe fn shared_max(addr: u32, value: Self) -> Self;
    unsafe fn shared_min(addr: u32, value: Self) -> Self;
    unsafe fn shared_and(addr: u32, value: Self) -> Self;
    unsafe fn shared_or(addr: u32, value: Self) -> Self;
    unsafe fn shared_xor(addr: u32, value: Self) -> Self;
    unsafe fn shared_exchange(addr: u32, value: Self) -> Self;
    unsafe fn shared_cas(addr: u32, expected: Self, value: Self) -> Self;
}

/// One function an instruction: `name: space "instruction" (registers)`.
macro_rules! atomics {
    (@load $t:ty, $class:ident, $name:ident, $instruction:expr) => {
        #[inline(always)]
        unsafe fn $name(addr: u64) -> Self {
            let value: $t;
            // SAFETY: the caller keeps the contract.
            unsafe { core::arch::asm!(concat!($instruction, " {0}, [{1}];"), out($class) value, in(reg64) addr, options(nostack)) }
            value
        }
    };
    (@store $t:ty, $class:ident, $name:ident, $instruction:expr) => {
        #[inline(always)]
        unsafe fn $name(addr: u64, value: Self) {
            // SAFETY: the caller keeps the contract.
            unsafe { core::arch::asm!(concat!($instruction, " [{0}], {1};"), in(reg64) addr, in($class) value, options(nostack)) }
        }
    };
    (@update $t:ty, $class:ident, $name:ident, $at:ty, $address:ident, $instruction:expr) => {
        #[inline(always)]
        unsafe fn $name(addr: $at, value: Self) -> Self {
            let old: $t;
            // SAFETY: the caller keeps the contract.
            unsafe { core::arch::asm!(concat!($instruction, " {0}, [{1}], {2};"), out($class) old, in($address) addr, in($class) value, options(nostack)) }
            old
        }
    };
    (@cas $t:ty, $class:ident, $name:ident, $at:ty, $address:ident, $instruction:expr) => {
        #[inline(always)]
        unsafe fn $name(addr: $at, expected: Self, value: Self) -> Self {
            let old: $t;
            // SAFETY: the caller keeps the contract.
            unsafe { core::arch::asm!(concat!($instruction, " {0}, [{1}], {2}, {3};"), out($class) old, in($address) addr, in($class) expected, in($class) value, options(nostack)) }
            old
        }
    };
    ($($t:ty, $class:ident, $bits:literal, $unsigned:literal, $ordered:literal;)*) => { $(
        impl AtomicScalar for $t {
            atomics!(@load $t, $class, ld_relaxed, concat!("ld.relaxed.gpu.global.", $bits));
            atomics!(@load $t, $class, ld_relaxed_block, concat!("ld.relaxed.cta.global.", $bits));
            atomics!(@load $t, $class, ld_acquire, concat!("ld.acquire.gpu.global.", $bits));
            atomics!(@store $t, $class, st_relaxed, concat!("st.relaxed.gpu.global.", $bits));
            atomics!(@store $t, $class, st_release, concat!("st.release.gpu.global.", $bits));
            atomics!(@update $t, $class, atomic_add, u64, reg64, concat!("atom.relaxed.gpu.global.add.", $unsigned));
            atomics!(@update $t, $class, atomic_max, u64, reg64, concat!("atom.relaxed.gpu.global.max.", $ordered));
            atomics!(@update $t, $class, atomic_min, u64, reg64, concat!("atom.relaxed.gpu.global.min.", $ordered));
            atomics!(@update $t, $class, atomic_and, u64, reg64, concat!("atom.relaxed.gpu.global.and.", $bits));
            atomics!(@update $t, $class, atomic_or, u64, reg64, concat!("atom.relaxed.gpu.global.or.", $bits));
            atomics!(@update $t, $class, atomic_xor, u64, reg64, concat!("atom.relaxed.gpu.global.xor.", $bits));
            atomics!(@update $t, $class, atomic_exchange, u64, reg64, concat!("atom.relaxed.gpu.global.exch.", $bits));
            atomics!(@cas $t, $class, atomic_cas, u64, reg64, concat!("atom.relaxed.gpu.global.cas.", $bits));
            atomics!(@update $t, $class, atomic_add_acq_rel, u64, reg64, concat!("atom.acq_rel.gpu.global.add.", $unsigned));
            atomics!(@update $t, $class, atomic_max_acq_rel, u64, reg64, concat!("atom.acq_rel.gpu.global.max.", $ordered));
            atomics!(@update $t, $class, atomic_exchange_acq_rel, u64, reg64, concat!("atom.acq_rel.gpu.global.exch.", $bits));
            atomics!(@cas $t, $class, atomic_cas_acq_rel, u64, reg64, concat!("atom.acq_rel.gpu.global.cas.", $bits));
            atomics!(@store $t, $class, red_add, concat!("red.relaxed.gpu.global.add.", $unsigned));
            atomics!(@store $t, $class, red_max, concat!("red.relaxed.gpu.global.max.", $ordered));
            atomics!(@store $t, $class, red_min, concat!("red.relaxed.gpu.global.min.", $ordered));
            atomics!(@store $t, $class, red_or, concat!("red.relaxed.gpu.global.or.", $bits));
            atomics!(@update $t, $class, shared_add, u32, reg32, concat!("atom.relaxed.cta.shared.add.", $unsigned));
            atomics!(@update $t, $class, shared_max, u32, reg32, concat!("atom.relaxed.cta.shared.max.", $ordered));
            atomics!(@update $t, $class, shared_min, u32, reg32, concat!("atom.relaxed.cta.shared.min.", $ordered));
            atomics!(@update $t, $class, shared_and, u32, reg32, concat!("atom.relaxed.cta.shared.and.", $bits));
            atomics!(@update $t, $class, shared_or, u32, reg32, concat!("atom.relaxed.cta.shared.or.", $bits));
            atomics!(@update $t, $class, shared_xor, u32, reg32, concat!("atom.relaxed.cta.shared.xor.", $bits));
            atomics!(@update $t, $class, shared_exchange, u32, reg32, concat!("atom.relaxed.cta.shared.exch.", $bits));
            atomics!(@cas $t, $class, shared_cas, u32, reg32, concat!("atom.relaxed.cta.shared.cas.", $bits));
        }
    )* };
}
atomics! {
    i32, reg32, "b32", "u32", "s32";
    u32, reg32, "b32", "u32", "u32";
    i64, reg64, "b64", "u64", "s64";
    u64, reg64, "b64", "u64", "u64";
}
