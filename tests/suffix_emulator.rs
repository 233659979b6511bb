//! The suffix drafter's kernels in the emulator, against the golden vectors and the CPU drafter.

use specdraft::emulator::{EmulatorOptions, EmulatorSuffix, Schedule};
use specdraft::suffix::SuffixConfig;
use test_support::suffix::{Factory, check_golden};

#[test]
fn emulator_equals_the_golden_vectors() {
    check(EmulatorOptions::default());
}

fn check(options: EmulatorOptions) {
    let factory: &mut Factory<'_> = &mut |config: &SuffixConfig| {
        Ok(Box::new(EmulatorSuffix::with_options(
            config.clone(),
            options,
        )?))
    };
    let report = check_golden(factory).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.ingests > 0 && report.proposes > 0, "{report:?}");
}
