//! Expansion of `#[kernel]`.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, FnArg, ItemFn, LitStr, Pat, Result, ReturnType, Token, Type};

/// One function of the user's, callable on both sides, and a constant that holds the entry point of this side.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let bounds: Bounds = syn::parse2(attribute)?;
    let function: ItemFn = syn::parse2(item)?;
    check_signature(&function)?;
    let (names, types) = parameters(&function)?;

    let name = &function.sig.ident;
    let visibility = &function.vis;
    let constant = format_ident!("{}", name.to_string().to_uppercase(), span = name.span());
    let export = name.to_string();
    let strings: Vec<String> = names.iter().map(Ident::to_string).collect();
    let count = names.len();
    let indices = 0..count;
    let documentation =
        format!("Kernel [`{name}`]: its name, parameters, launch bounds and entry.");
    let threads = option(bounds.threads.as_ref());
    let min_blocks = option(bounds.min_blocks.as_ref());
    let (arch, on_gpu) = match &bounds.arch {
        Some(arch) => (
            quote!(::core::option::Option::Some(#arch)),
            quote!(all(target_arch = "nvptx64", cuda_arch = #arch)),
        ),
        None => (
            quote!(::core::option::Option::None),
            quote!(target_arch = "nvptx64"),
        ),
    };
    let marker = bounds.threads.as_ref().map(|threads| {
        let min_blocks = bounds
            .min_blocks
            .clone()
            .unwrap_or_else(|| syn::parse_quote!(0));
        quote!(::cuda_std::__private::launch_bounds::<{ #threads }, { #min_blocks }>();)
    });

    Ok(quote! {
        #[inline(always)]
        #function

        #[doc = #documentation]
        #visibility const #constant: ::cuda_std::Kernel = {
            #[cfg(#on_gpu)]
            #[unsafe(export_name = #export)]
            unsafe extern "ptx-kernel" fn entry(#(#names: #types),*) {
                #marker
                // SAFETY: the launch keeps the kernel's contract.
                unsafe { #name(#(#names),*) }
            }
            #[cfg(not(target_arch = "nvptx64"))]
            unsafe fn entry(words: &[u64]) {
                // SAFETY: the launch keeps the kernel's contract.
                unsafe { #name(#(<#types as ::cuda_std::KernelParam>::from_word(words[#indices])),*) }
            }
            const PARAMS: [::cuda_std::Param; #count] = [
                #(::cuda_std::Param { name: #strings, ty: <#types as ::cuda_std::KernelParam>::TYPE }),*
            ];
            ::cuda_std::Kernel {
                name: #export,
                params: &PARAMS,
                threads: #threads,
                min_blocks: #min_blocks,
                arch: #arch,
                entry: ::cuda_std::__private::entry!(entry),
            }
        };
    })
}

fn check_signature(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    if signature.unsafety.is_none() {
        return Err(Error::new_spanned(
            signature.fn_token,
            "a kernel must be an `unsafe fn`: nothing checks its pointers",
        ));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &signature.generics,
            "a kernel cannot be generic: its name is its entry in the PTX",
        ));
    }
    if let Some(token) = &signature.constness {
        return Err(Error::new_spanned(token, "a kernel cannot be `const`"));
    }
    if let Some(token) = &signature.asyncness {
        return Err(Error::new_spanned(token, "a kernel cannot be `async`"));
    }
    if let Some(abi) = &signature.abi {
        return Err(Error::new_spanned(
            abi,
            "`#[kernel]` sets the ABI: remove `extern`",
        ));
    }
    if let ReturnType::Type(_, ty) = &signature.output {
        return Err(Error::new_spanned(
            ty,
            "a kernel returns nothing: write results through a pointer",
        ));
    }
    Ok(())
}

/// Names and types of the parameters. The types themselves are checked by the trait `KernelParam`.
fn parameters(function: &ItemFn) -> Result<(Vec<Ident>, Vec<Type>)> {
    let mut names = Vec::new();
    let mut types = Vec::new();
    for input in &function.sig.inputs {
        let FnArg::Typed(parameter) = input else {
            return Err(Error::new_spanned(input, "a kernel cannot take `self`"));
        };
        let Pat::Ident(pattern) = &*parameter.pat else {
            return Err(Error::new_spanned(
                &parameter.pat,
                "a kernel's parameter must be a plain name",
            ));
        };
        names.push(pattern.ident.clone());
        types.push((*parameter.ty).clone());
    }
    Ok((names, types))
}

fn option(value: Option<&Expr>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// What stands in the attribute's parentheses.
#[derive(Default)]
struct Bounds {
    threads: Option<Expr>,
    min_blocks: Option<Expr>,
    arch: Option<LitStr>,
}

impl Parse for Bounds {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut bounds = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let twice = match key.to_string().as_str() {
                "threads" => bounds.threads.replace(input.parse()?).is_some(),
                "min_blocks" => bounds.min_blocks.replace(input.parse()?).is_some(),
                "arch" => bounds.arch.replace(input.parse()?).is_some(),
                _ => {
                    return Err(Error::new(
                        key.span(),
                        "expected `threads = …`, `min_blocks = …` or `arch = …`",
                    ));
                }
            };
            if twice {
                return Err(Error::new(key.span(), format!("`{key}` is given twice")));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if let (None, Some(min_blocks)) = (&bounds.threads, &bounds.min_blocks) {
            return Err(Error::new_spanned(
                min_blocks,
                "`min_blocks` needs `threads`",
            ));
        }
        Ok(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(attribute: TokenStream, item: TokenStream) -> String {
        expand(attribute, item)
            .expect_err("a compile error")
            .to_string()
    }

    #[test]
    fn misuse_says_what_is_wrong() {
        let none = TokenStream::new;
        let ok = || {
            quote!(
                unsafe fn k(x: u32) {}
            )
        };
        let cases = [
            (
                none(),
                quote!(
                    fn k() {}
                ),
                "must be an `unsafe fn`",
            ),
            (
                none(),
                quote!(
                    unsafe fn k<T>() {}
                ),
                "cannot be generic",
            ),
            (
                none(),
                quote!(
                    unsafe fn k() -> u32 {
                        0
                    }
                ),
                "returns nothing",
            ),
            (
                none(),
                quote!(
                    const unsafe fn k() {}
                ),
                "cannot be `const`",
            ),
            (
                none(),
                quote!(
                    async unsafe fn k() {}
                ),
                "cannot be `async`",
            ),
            (
                none(),
                quote!(
                    unsafe extern "C" fn k() {}
                ),
                "sets the ABI",
            ),
            (
                none(),
                quote!(
                    unsafe fn k(self) {}
                ),
                "cannot take `self`",
            ),
            (
                none(),
                quote!(
                    unsafe fn k((a, b): (u32, u32)) {}
                ),
                "must be a plain name",
            ),
            (
                none(),
                quote!(
                    struct K;
                ),
                "expected",
            ),
            (
                quote!(thread = 3),
                ok(),
                "expected `threads = …`, `min_blocks = …` or `arch = …`",
            ),
            (quote!(threads = 3, threads = 3), ok(), "given twice"),
            (quote!(arch = 90), ok(), "expected string literal"),
            (quote!(min_blocks = 3), ok(), "needs `threads`"),
            (quote!(threads = 3 min_blocks = 3), ok(), "expected `,`"),
        ];
        for (attribute, item, expected) in cases {
            let source = format!("#[kernel({attribute})] {item}");
            let message = message(attribute, item);
            assert!(message.contains(expected), "{source}: {message}");
        }
        expand(quote!(threads = N * 2, min_blocks = 3, arch = "90a"), ok()).expect("a kernel");
    }
}
