//! The `specdraft` program.

fn main() {}
