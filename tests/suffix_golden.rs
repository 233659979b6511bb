//! The suffix drafter against the outputs of vLLM's Triton kernels.

use specdraft::cpu::CpuSuffix;
use test_support::suffix::{Factory, NaiveSuffix, check_golden};

#[test]
fn cpu_equals_the_golden_vectors() {
    check(&mut |config| Ok(Box::new(CpuSuffix::new(config.clone())?)));
}

#[test]
fn naive_drafter_equals_the_golden_vectors() {
    check(&mut |config| Ok(Box::new(NaiveSuffix::new(config.clone())?)));
}

fn check(factory: &mut Factory<'_>) {
    let report = check_golden(factory).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.ingests > 0 && report.proposes > 0, "{report:?}");
}
