//! The `#[kernel]` attribute of `cuda_std`.

mod kernel;

use proc_macro::TokenStream;

/// Makes a function a kernel: an entry of the PTX on the GPU, a launchable [`Kernel`] in the emulator.
///
/// ```ignore
/// /// Adds one to `n` numbers.
/// ///
/// /// # Safety
/// /// - `x` is valid for `n` elements.
/// #[kernel(threads = 256, min_blocks = 2)]
/// pub unsafe fn add_one(x: *mut u32, n: u32) { /* … */ }
/// ```
///
/// gives, beside the function, `pub const ADD_ONE: cuda_std::Kernel`: the name, the parameters' types, the launch
/// bounds and, on the host, what runs it.
///
/// - `threads = N`: every launch has blocks of exactly N threads (`.maxntid N, 1, 1`). Any constant expression.
/// - `min_blocks = M`: at least M blocks fit a multiprocessor (`.minnctapersm M`); needs `threads`.
///
/// # Errors
///
/// Compile errors for a function that is not `unsafe`, is generic, `const`, `async` or `extern`, returns something,
/// or has a parameter that is not an i32, u32, i64, u64, f32 or thin raw pointer.
///
/// [`Kernel`]: ../cuda_std/struct.Kernel.html
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attribute.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
