//! What holds for the XPress refiner whatever the head.

use proptest::prelude::*;
use specdraft::cpu::CpuXpress;
use test_support::xpress::ExactCase;

test_support::xpress_property_tests!(|head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Sizes, strides, seeds, NaN and infinities, tokens that are none.
    #[test]
    fn any_exact_case_equals_the_reference(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let case = ExactCase::from_bytes(&bytes);
        let checked = case.check(&mut |head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));
        prop_assert!(checked.is_ok(), "{case:?}: {:#}", checked.unwrap_err());
    }
}
