//! Drafting from host tokens: a request gains tokens, ends, and the next one drafts from it.
//!
//! `cargo run --example 01_host_tokens`

use specdraft::suffix::{Source, SuffixConfig, SuffixDrafter, Verdict};

fn main() -> Result<(), specdraft::Error> {
    let config = SuffixConfig {
        max_num_reqs: 2,
        max_model_len: 1024,
        num_draft_tokens: 4,
        ..SuffixConfig::default()
    };
    let mut drafter = SuffixDrafter::cpu(config)?;

    // A request with nothing like it before: its own tokens are all there is to draft from.
    drafter.start(0, &[1, 2, 3, 4, 5, 1, 2])?;
    let draft = &drafter.draft(&[0])?[0];
    assert_eq!(draft.source, Source::Own);
    assert_eq!(draft.tokens, [3, 4, 5, 1]);
    println!("own history: {draft:?}");

    // The target model agreed with two of the four tokens and said 9 instead of the third.
    drafter.observe(&[Verdict {
        slot: 0,
        verified: 4,
        accepted: 2,
    }])?;
    drafter.push(0, &[3, 4, 9])?;
    let draft = &drafter.draft(&[0])?[0];
    assert_eq!(draft.source, Source::None, "9 was never seen before");

    // The request ends: what was generated goes to the corpus.
    drafter.push(0, &[20, 21, 22, 23])?;
    drafter.finish(&[0])?;

    // Another request comes to the same words.
    drafter.start(1, &[50, 51, 20, 21])?;
    let draft = &drafter.draft(&[1])?[0];
    assert_eq!(draft.source, Source::Corpus);
    assert_eq!(draft.tokens, [22, 23]);
    println!("corpus: {draft:?}");
    Ok(())
}
