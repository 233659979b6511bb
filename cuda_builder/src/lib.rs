//! Builds a device crate into PTX.
