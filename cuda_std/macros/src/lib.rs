//! The attribute and macros of `cuda_std`.
