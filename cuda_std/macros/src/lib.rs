//! The `#[kernel]` attribute of `cuda_std`.

mod kernel;

use proc_macro::TokenStream;

/// Makes a function a kernel: an entry of the PTX on the GPU, a launchable `cuda_std::Kernel` in the emulator.
///
/// ```
/// use cuda_std::{Global, kernel, thread};
///
/// /// Adds one to `n` numbers.
/// ///
/// /// # Safety
/// /// - `x` is valid for `n` elements.
/// #[kernel(threads = 256, min_blocks = 2)]
/// pub unsafe fn add_one(x: *mut u32, n: u32) {
///     let (x, i) = (Global::new(x, n), thread::index_1d());
///     if i < n {
///         // SAFETY: inside, and each thread its own.
///         unsafe { x.st(i, x.ld(i) + 1) }
///     }
/// }
///
/// assert_eq!((ADD_ONE.name, ADD_ONE.params.len()), ("add_one", 2));
/// ```
///
/// Beside the function there is `ADD_ONE`: the name, the parameters' types, the launch bounds and, on the host, what runs
/// it.
///
/// - `threads = N`: every launch has blocks of exactly N threads (`.maxntid N, 1, 1`). Any constant expression.
/// - `min_blocks = M`: at least M blocks fit a multiprocessor (`.minnctapersm M`); needs `threads`.
/// - `arch = "90a"`: an entry of the PTX for this architecture alone. The emulator runs it up to the first instruction that it lacks.
///
/// # Errors
///
/// Compile errors for a function that is not `unsafe`, is generic, `const`, `async` or `extern`, returns something,
/// or has a parameter that is not an i32, u32, i64, u64, f32 or thin raw pointer:
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy)]
/// struct Sizes {
///     rows: u32,
/// }
/// #[cuda_std::kernel]
/// unsafe fn by_value(sizes: Sizes) {}
/// ```
/// ```compile_fail,E0277
/// #[cuda_std::kernel]
/// unsafe fn fat(x: *const [u32]) {}
/// ```
/// ```compile_fail,E0277
/// #[cuda_std::kernel]
/// unsafe fn checked(x: &u32) {}
/// ```
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attribute.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
