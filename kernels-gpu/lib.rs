//! The GPU kernels of specdraft.
