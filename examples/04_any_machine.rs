//! The best backend that a machine has: one binary for machines with and without a GPU.
//!
//! `cargo run --features cuda --example 04_any_machine`

use specdraft::Error;
use specdraft::suffix::{SuffixConfig, SuffixDrafter};

fn main() -> Result<(), Error> {
    let mut drafter = best(SuffixConfig::default())?;
    println!("drafting on {}", drafter.backend_name());

    // Whichever it is, the answer is the same to the bit.
    drafter.start(0, &[3, 1, 4, 1, 5, 9, 2, 6, 3, 1])?;
    let draft = &drafter.draft(&[0])?[0];
    assert_eq!(draft.tokens, [4, 1, 5, 9, 2, 6, 3, 1]);
    println!("{draft:?}");
    Ok(())
}

/// On the GPU where there is one that this build's kernels run on, else on the CPU. Other errors (a configuration out
/// of range, a GPU without enough memory) are the caller's to know.
fn best(config: SuffixConfig) -> Result<SuffixDrafter, Error> {
    match SuffixDrafter::cuda(config.clone(), 0) {
        Err(Error::Driver(error))
            if error.is_no_driver() || error.is_old_driver() || error.is_unsupported_ptx() =>
        {
            println!("no GPU to draft on: {error}");
            SuffixDrafter::cpu(config)
        }
        result => result,
    }
}
