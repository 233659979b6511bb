//! The XPress refiner's kernels in the emulator: every access checked, every schedule the same answer.

use specdraft::emulator::EmulatorXpress;
use test_support::xpress::check_golden;

test_support::xpress_property_tests!(|head, limits| Ok(Box::new(EmulatorXpress::new(
    head, limits
)?)));

#[test]
fn the_emulator_equals_the_golden_vectors() {
    let report = check_golden(&mut |head, limits| Ok(Box::new(EmulatorXpress::new(head, limits)?)))
        .unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.latents > 0 && report.argmaxes > 0, "{report:?}");
    assert!(report.topcs > 0 && report.refinements > 0, "{report:?}");
    assert!(100 * report.ties < report.tokens, "{report:?}");
}
