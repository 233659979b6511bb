//! A step in a CUDA graph: captured once, replayed as tokens come in.
//!
//! `cargo run --features cuda --example 03_graph`

use specdraft::driver::{Context, DeviceBuffer, Driver, Graph, OwnedStream};
use specdraft::suffix::SuffixConfig;
use specdraft::suffix::cuda::{Batch, CudaSuffix, Drafts, History};

const LEN: usize = 64;
const K: usize = 3;

fn main() -> Result<(), specdraft::Error> {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) if error.is_no_driver() => {
            println!("SKIPPED, nothing was run: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let context = Context::primary(&driver.device(0)?)?;
    let owned_stream = OwnedStream::new(&context)?;
    let stream = owned_stream.borrow();

    // One request, with the arrays that an engine keeps for it.
    let words = |len| DeviceBuffer::<i32>::zeroed(&context, stream, len, "an array");
    let (mut token_ids, mut total_len) = (words(LEN)?, words(1)?);
    let (idx_mapping, mut num_sampled, mut num_valid) = (words(1)?, words(1)?, words(1)?);
    num_sampled.write(stream, 0, &[1])?;
    let last_sampled = DeviceBuffer::<i64>::zeroed(&context, stream, 1, "an array")?;
    let mut drafts = DeviceBuffer::<i64>::zeroed(&context, stream, K, "an array")?;
    let mut drafter = CudaSuffix::new(
        &context,
        SuffixConfig {
            max_num_reqs: 1,
            max_model_len: LEN,
            num_draft_tokens: K,
            corpus_tokens: 0,
            ..SuffixConfig::default()
        },
    )?;

    // Captured before there is a single token. Nothing runs yet.
    let graph = Graph::capture(&context, stream, || {
        drafter.propose(
            stream,
            &History {
                token_ids: token_ids.rows(LEN),
                total_len: total_len.slice(),
            },
            &Batch {
                idx_mapping: idx_mapping.slice(),
                num_sampled: num_sampled.slice(),
            },
            last_sampled.slice(),
            Drafts {
                drafts: drafts.slice_mut(),
                num_valid: num_valid.slice_mut(),
                confidence: None,
            },
        )
    })?;

    // Each replay drafts from the tokens that are there by then.
    let text = [10, 11, 12, 13, 10, 11, 12];
    let expected: [&[i64]; 7] = [
        &[],
        &[],
        &[],
        &[],
        &[11, 12, 13],
        &[12, 13, 10],
        &[13, 10, 11],
    ];
    for (index, (&token, expected)) in text.iter().zip(expected).enumerate() {
        token_ids.write(stream, index, &[token])?;
        total_len.write(stream, 0, &[index as i32 + 1])?;
        // SAFETY: the arrays and the drafter outlive the graph, and nothing else uses them.
        unsafe { graph.launch(stream) }?;
        let valid = num_valid.to_vec(stream)?[0] as usize;
        let drafted = drafts.read(stream, 0, valid)?;
        assert_eq!(drafted, expected, "after {} tokens", index + 1);
        println!("{:?} -> {drafted:?}", &text[..=index]);
    }
    Ok(())
}
