//! Refines a block drafter's blocks on the CPU, and checks the answer against decoding slot by slot.
//!
//! ```text
//! cargo run --release --example 10_xpress                       # with a small head made up from a seed
//! cargo run --release --example 10_xpress -- path/to/checkpoint # with a trained head
//! ```
//!
//! The drafter's logits and hidden states are made up in either case: an engine passes its own.

use specdraft::Result;
use specdraft::xpress::{
    Blocks, Generate, GeneratedStep, Mlp, XpressConfig, XpressHead, XpressLimits, XpressRefiner,
};

const REQUESTS: usize = 4;

fn main() -> Result<()> {
    let head = match std::env::args().nth(1) {
        Some(checkpoint) => XpressHead::load(checkpoint)?,
        None => small_head()?,
    };
    let config = head.config().clone();
    let limits = XpressLimits::new(REQUESTS, &config);
    let mut refiner = XpressRefiner::cpu(head, limits)?;
    println!("{config:?}\n{} bytes of weights", refiner.memory().weights);

    // One draft step: the last verified token of each request, and what the drafter computed for its block.
    let step = config.generate_step(REQUESTS, Generate::Normal, 7)?;
    let anchors: Vec<u32> = step.anchors.iter().map(|token| *token as u32).collect();
    let blocks = Blocks::new(step.base()?, step.hidden()?, &anchors).topc(0);

    let target = decode_slot_by_slot(&mut refiner, &step)?;
    let enough = config.num_draft_tokens();
    for passes in 0..=enough {
        let drafts = refiner.refine(&blocks.passes(passes))?;
        let agreeing = drafts
            .iter()
            .zip(&target)
            .map(|(draft, target)| common_prefix(draft, target));
        let agreeing: Vec<usize> = agreeing.collect();
        println!("{passes:2} passes: of {enough} tokens the first {agreeing:?} are final");
        // Every pass settles at least one more slot.
        assert!(agreeing.iter().all(|settled| *settled >= passes));
    }
    assert_eq!(refiner.refine(&blocks.passes(enough))?, target);

    // In use: the head's own number of passes, and only the likeliest tokens of each slot.
    let drafts = refiner.refine(&Blocks::new(step.base()?, step.hidden()?, &anchors))?;
    println!("drafts of request 0: {:?}", drafts[0]);
    assert!(
        drafts
            .iter()
            .flatten()
            .all(|token| (*token as usize) < config.vocab_size)
    );
    Ok(())
}

/// What the passes converge to: each slot decided once, knowing the final tokens before it. Here with the refiner's own
/// stages, a whole pass for each slot.
fn decode_slot_by_slot(refiner: &mut XpressRefiner, step: &GeneratedStep) -> Result<Vec<Vec<u32>>> {
    let block_size = refiner.config().block_size;
    let backend = refiner.backend();
    let xh = backend.hidden_cache(step.hidden()?)?;
    let mut blocks: Vec<i64> = vec![0; step.anchors.len() * block_size];
    for (block, anchor) in blocks.chunks_exact_mut(block_size).zip(&step.anchors) {
        block[0] = *anchor;
    }
    for slot in 1..block_size {
        let latents = backend.latent_pass(&blocks, &step.anchors, &xh, Mlp::Run)?;
        let mut decided = blocks.clone();
        backend.readout_argmax(&latents, step.base()?, &mut decided)?;
        for (block, decided) in blocks
            .chunks_exact_mut(block_size)
            .zip(decided.chunks_exact(block_size))
        {
            block[slot] = decided[slot];
        }
    }
    let drafts = blocks.chunks_exact(block_size).map(|block| &block[1..]);
    Ok(drafts
        .map(|block| block.iter().map(|token| *token as u32).collect())
        .collect())
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn small_head() -> Result<XpressHead> {
    let config = XpressConfig {
        vocab_size: 4000,
        hidden_size: 256,
        rank: 64,
        mlp_hidden: 128,
        block_size: 16,
        num_passes: XpressConfig::DEFAULT_NUM_PASSES,
        topc: 64,
    };
    XpressHead::generate(&config, Generate::Normal, 1)
}
