//! Adapters from other crates' types to the borrowed ones of [`driver`](crate::driver).
//!
//! An engine on any binding can hand in raw handles; these spare it the `unsafe` where its types say enough. No type
//! of another crate appears in the rest of the public API.

pub mod cust;
