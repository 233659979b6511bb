//! Matrix products of a warpgroup.
//!
//! Not `pure`: LLVM does not know that these are collectives, but what has side effects it neither drops nor moves into a
//! branch.

use super::shared::SharedView;
use core::arch::asm;

/// Which bytes B is made of: rows of 128 bytes in groups of 8, 1024 bytes from group to group (64 units of 16), 128-byte swizzle.
const ROWS_OF_128_BYTES: u64 = 1 << 62 | 64 << 32 | 1 << 16;

/// Waits for a chunk. The fence keeps ptxas from putting the products one after another.
macro_rules! chunk {
    ($c:literal, $byte:literal) => {
        concat!(
            "W",
            $c,
            ":\n",
            "mbarrier.try_wait.parity.shared::cta.b64 p, [{full}+",
            $byte,
            "], {parity};\n",
            "@!p bra W",
            $c,
            ";\n",
            "wgmma.fence.sync.aligned;\n",
        )
    };
}

/// Adds the product of 16 columns: B starts `$at` units of 16 bytes after the first chunk, A is registers `$a` to `$d`.
macro_rules! columns {
    ($at:literal, $a:literal $b:literal $c:literal $d:literal, $adds:literal) => {
        concat!(
            "add.s64 t, {b}, ", $at, ";\n",
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, ",
            "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, ",
            "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, ",
            "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}}}, ",
            "{{{", $a, "}, {", $b, "}, {", $c, "}, {", $d, "}}}, t, ", $adds, ", 1, 1, 0;\n",
        )
    };
}

macro_rules! release {
    ($byte:literal) => {
        concat!(
            "@q mbarrier.arrive.shared::cta.b64 _, [{empty}+",
            $byte,
            "];\n"
        )
    };
}

/// The products of the four chunks in order. A chunk is released once the group after it is under way and its own has ended.
macro_rules! template {
    () => {
        concat!(
            "{{ .reg .b64 t;\n",
            ".reg .pred p, q, r;\n",
            "setp.ne.u32 q, {release}, 0;\n",
            "setp.ne.u32 r, {arrives}, 0;\n",
            chunk!(0, 0),
            columns!(0, 64 65 66 67, 0),
            columns!(2, 68 69 70 71, 1),
            columns!(4, 72 73 74 75, 1),
            columns!(6, 76 77 78 79, 1),
            "wgmma.commit_group.sync.aligned;\n",
            chunk!(1, 8),
            columns!(1024, 80 81 82 83, 1),
            columns!(1026, 84 85 86 87, 1),
            columns!(1028, 88 89 90 91, 1),
            columns!(1030, 92 93 94 95, 1),
            "wgmma.commit_group.sync.aligned;\n",
            "wgmma.wait_group.sync.aligned 1;\n",
            release!(0),
            chunk!(2, 16),
            columns!(2048, 96 97 98 99, 1),
            columns!(2050, 100 101 102 103, 1),
            columns!(2052, 104 105 106 107, 1),
            columns!(2054, 108 109 110 111, 1),
            "wgmma.commit_group.sync.aligned;\n",
            "wgmma.wait_group.sync.aligned 1;\n",
            release!(8),
            chunk!(3, 24),
            columns!(3072, 112 113 114 115, 1),
            columns!(3074, 116 117 118 119, 1),
            columns!(3076, 120 121 122 123, 1),
            columns!(3078, 124 125 126 127, 1),
            "wgmma.commit_group.sync.aligned;\n",
            "@r mbarrier.arrive.shared::cta.b64 _, [{issued}];\n",
            "wgmma.wait_group.sync.aligned 1;\n",
            release!(16),
            "wgmma.wait_group.sync.aligned 0;\n",
            release!(24),
            // Not at the start of a line: that is the end of a kernel.
            "\t}}",
        )
    };
}

/// # Safety
///
/// - The contract of the public function.
#[inline(always)]
#[allow(named_asm_labels, reason = "they are in a scope of their own")]
pub(crate) unsafe fn product_64x128x256(
    a: &[u32; 64],
    b: SharedView,
    (full, parity): (SharedView, u32),
    (empty, release): (SharedView, bool),
    (issued, arrives): (SharedView, bool),
) -> [f32; 64] {
    let b = ROWS_OF_128_BYTES | u64::from(b.addr() >> 4);
    let mut d = [0.0; 64];
    macro_rules! product {
        ($($i:literal)*) => {
            // SAFETY: the caller keeps the contract.
            unsafe {
                asm!(
                    template!(),
                    $(out(reg32) d[$i],)*
                    $(in(reg32) a[$i],)*
                    b = in(reg64) b,
                    full = in(reg32) full.addr(),
                    parity = in(reg32) parity,
                    empty = in(reg32) empty.addr(),
                    release = in(reg32) u32::from(release),
                    issued = in(reg32) issued.addr(),
                    arrives = in(reg32) u32::from(arrives),
                    options(nostack)
                );
            }
        };
    }
    product!(
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    );
    d
}

/// # Safety
///
/// - The contract of the public function.
#[inline(always)]
pub(crate) unsafe fn increase_registers<const COUNT: u32>() {
    // SAFETY: the caller keeps the contract.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {0};", const COUNT, options(nostack)) }
}

/// # Safety
///
/// - The contract of the public function.
#[inline(always)]
pub(crate) unsafe fn decrease_registers<const COUNT: u32>() {
    // SAFETY: the caller keeps the contract.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {0};", const COUNT, options(nostack)) }
}
