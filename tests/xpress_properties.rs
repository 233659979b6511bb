//! What holds for the XPress refiner whatever the head.

use proptest::prelude::*;
use specdraft::cpu::CpuXpress;
use test_support::xpress::ExactCase;

test_support::xpress_property_tests!(|head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Sizes from all over their ranges; the reference is slow, so the vocabulary stays small.
    #[test]
    fn any_exact_case_equals_the_reference(case in exact_case()) {
        let checked = case.check(&mut |head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));
        prop_assert!(checked.is_ok(), "{:#}", checked.unwrap_err());
    }
}

fn exact_case() -> impl Strategy<Value = ExactCase> {
    let sizes = (1usize..200, 1usize..8, 1usize..5, 1usize..7, 2usize..=32);
    (sizes, 0usize..4, 0usize..4, 0usize..40, any::<u64>()).prop_map(
        |((v, d, r, h, b), n, passes, topc, seed)| {
            let sizes = [v, 8 * d, 16 * r, 16 * h, b];
            ExactCase::new(sizes, n, passes, topc, seed)
        },
    )
}
