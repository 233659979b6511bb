//! The numbers of the sample traces on a GPU, through the program.

mod support;

use support::numbers::{assert_numbers, expected, replay_as};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn agent_sessions_give_the_expected_numbers() {
    for expected in expected("agent_sessions.expected.jsonl") {
        let got = replay_as(&expected, "agent_sessions.jsonl.xz", "cuda");
        assert_numbers(&got, &expected);
    }
}
