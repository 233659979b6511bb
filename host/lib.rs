//! Speculative-decoding drafters with GPU kernels written in Rust.
