//! The maps of a call's arrays, written on the device.
//!
//! ```text
//! thread 0: the maps' words from the arguments -> memory; fence
//! all threads: keys, counters = 0
//! ```
//!
//! 1. Where an engine's logits lie changes from call to call. The host makes the maps; as arguments of a launch they need no
//!    copy of host memory, and a graph that captured the launch keeps them.
//! 2. Keys and counters are zero after each readout that ends. One that did not end, because its launch failed, leaves no trace in the next call.

use cuda_std::thread::thread_idx_x;
use cuda_std::{Global, pdl, tma};

/// Threads of the only block.
pub const THREADS: u32 = 256;

/// `kernels!`, with a number of fields for the maps' words.
macro_rules! with_words {
    ($($word:ident)*) => {
        kernels! {
            /// The arguments of [`xpress_tensor_maps`].
            struct TensorMapsArgs {
                /// The base logits' map, then the latents'.
                maps: *mut u64,
                /// `[num_keys]`, cleared.
                keys: *mut u64,
                /// `[num_counters]`, cleared.
                counters: *mut u32,
                /// Length of `keys`.
                num_keys: u32,
                /// Length of `counters`.
                num_counters: u32,
                $(
                    /// A word of the maps.
                    $word: u64,
                )*
            }

            /// Writes the maps of a call for `xpress_readout_sm90_*`, and clears what its launches work with.
            ///
            /// # Safety
            ///
            /// - The grid is one block.
            /// - All pointers are valid for the lengths that [`TensorMapsArgs`] gives, and nothing else writes there during the launch.
            kernel xpress_tensor_maps(threads = THREADS, arch = "90a") = write;
        }

        impl TensorMapsArgs {
            /// The maps' words, in order.
            #[inline(always)]
            fn maps(&self) -> [u64; 32] {
                [$(self.$word),*]
            }

            /// Of the maps of base logits and latents, and of what is cleared with its lengths.
            pub fn new(
                maps: *mut u64,
                (keys, num_keys): (*mut u64, u32),
                (counters, num_counters): (*mut u32, u32),
                [base, latents]: [[u64; 16]; 2],
            ) -> Self {
                let mut words = base.into_iter().chain(latents);
                Self {
                    maps,
                    keys,
                    counters,
                    num_keys,
                    num_counters,
                    $($word: words.next().unwrap_or(0),)*
                }
            }
        }
    };
}
with_words!(
    w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15
    w16 w17 w18 w19 w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31
);

/// # Safety
///
/// - As the kernel.
#[inline(always)]
unsafe fn write(args: TensorMapsArgs) {
    let thread = thread_idx_x();
    pdl::launch_dependents();
    pdl::wait();
    // SAFETY: the kernel's contract.
    unsafe {
        if thread == 0 {
            let (maps, words) = (Global::new(args.maps, 32u32), args.maps());
            each!(I in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 {
                maps.st(I, words[I]);
            });
            tma::release();
        }
        let keys = Global::new(args.keys, args.num_keys);
        let mut i = thread;
        while i < args.num_keys {
            keys.st(i, 0);
            i += THREADS;
        }
        let counters = Global::new(args.counters, args.num_counters);
        let mut i = thread;
        while i < args.num_counters {
            counters.st(i, 0);
            i += THREADS;
        }
    }
}
