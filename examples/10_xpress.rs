//! Refines a block drafter's blocks, on the CPU and on the GPU where there is one, and checks the answer against decoding slot by slot.
//!
//! ```text
//! cargo run --release --example 10_xpress                       # with a small head made up from a seed
//! cargo run --release --example 10_xpress -- path/to/checkpoint # with a trained head
//! cargo run --release --features cuda --example 10_xpress       # on the GPU too
//! ```
//!
//! The drafter's logits and hidden states are made up in either case: an engine passes its own.

use std::sync::Arc;

use specdraft::Result;
use specdraft::xpress::{
    Blocks, Generate, GeneratedStep, Mlp, XpressConfig, XpressHead, XpressLimits, XpressRefiner,
};

const REQUESTS: usize = 4;

fn main() -> Result<()> {
    // The made-up head and its step are such that no sum is ever rounded: then every backend gives the same tokens. Elsewhere two
    // may differ where logits lie within a rounding step.
    let (head, made_up) = match std::env::args().nth(1) {
        Some(checkpoint) => (XpressHead::load(checkpoint)?, Generate::Normal),
        None => (small_head()?, Generate::Exact),
    };
    let head = Arc::new(head);
    let config = head.config().clone();
    let limits = XpressLimits::new(REQUESTS, &config);
    // One draft step: the last verified token of each request, and what the drafter computed for its block.
    let step = config.generate_step(REQUESTS, made_up, 7)?;
    println!("{config:?}");

    let on_cpu = refine(XpressRefiner::cpu(head.clone(), limits)?, &step)?;
    let Some(gpu) = gpu(head, limits)? else {
        return Ok(());
    };
    let on_gpu = refine(gpu, &step)?;
    let pairs = on_cpu.iter().flatten().zip(on_gpu.iter().flatten());
    let equal = pairs.filter(|(cpu, gpu)| cpu == gpu).count();
    let all = REQUESTS * config.num_draft_tokens();
    println!("{equal} of {all} tokens are the same on the GPU");
    assert!(equal == all || made_up == Generate::Normal);
    Ok(())
}

/// Watches passes converge, then drafts as in use.
fn refine(mut refiner: XpressRefiner, step: &GeneratedStep) -> Result<Vec<Vec<u32>>> {
    let name = refiner.backend().name();
    println!("{name}: {} bytes of weights", refiner.memory().weights);
    let anchors: Vec<u32> = step.anchors.iter().map(|token| *token as u32).collect();
    let blocks = Blocks::new(step.base()?, step.hidden()?, &anchors);

    let target = decode_slot_by_slot(&mut refiner, step)?;
    let all_tokens = blocks.topc(0);
    let enough = refiner.config().num_draft_tokens();
    for passes in 0..=enough {
        let drafts = refiner.refine(&all_tokens.passes(passes))?;
        let pairs = drafts.iter().zip(&target);
        let agreeing: Vec<usize> = pairs.map(|(a, b)| common_prefix(a, b)).collect();
        println!("{passes:2} passes: of {enough} tokens the first {agreeing:?} are final");
        // Every pass settles at least one more slot.
        assert!(agreeing.iter().all(|settled| *settled >= passes));
    }
    assert_eq!(refiner.refine(&all_tokens.passes(enough))?, target);

    // In use: the head's own number of passes, and only the likeliest tokens of each slot.
    let drafts = refiner.refine(&blocks)?;
    println!("drafts of request 0: {:?}", drafts[0]);
    let vocab_size = refiner.config().vocab_size;
    let mut tokens = drafts.iter().flatten();
    assert!(tokens.all(|token| (*token as usize) < vocab_size));
    Ok(drafts)
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

/// A refiner on the GPU; none, and why, where there is no GPU that this build's kernels run on. Other errors, as too little memory on
/// it, are errors.
#[cfg(feature = "cuda")]
fn gpu(head: Arc<XpressHead>, limits: XpressLimits) -> Result<Option<XpressRefiner>> {
    use specdraft::Error;

    match XpressRefiner::cuda(head, limits, 0) {
        Err(Error::Driver(error))
            if error.is_no_driver() || error.is_old_driver() || error.is_unsupported_ptx() =>
        {
            println!("no GPU to refine on: {error}");
            Ok(None)
        }
        refiner => refiner.map(Some),
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: Arc<XpressHead>, _: XpressLimits) -> Result<Option<XpressRefiner>> {
    println!("no GPU was looked for: built without the feature `cuda`");
    Ok(None)
}

/// Of the rank, MLP and block size that trained heads have.
fn small_head() -> Result<XpressHead> {
    let config = XpressConfig {
        vocab_size: 4000,
        hidden_size: 256,
        rank: 256,
        mlp_hidden: 512,
        block_size: 16,
        num_passes: XpressConfig::DEFAULT_NUM_PASSES,
        topc: 64,
    };
    XpressHead::generate(&config, Generate::Exact, 1)
}
