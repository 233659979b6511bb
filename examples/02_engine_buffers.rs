//! Drafting on an engine's own context, stream and device arrays: nothing is copied to the host, nothing waits.
//!
//! `cargo run --features cuda --example 02_engine_buffers`

use specdraft::driver::{
    Context, DeviceBuffer, DeviceRows, DeviceSlice, DeviceSliceMut, Driver, OwnedStream, Stream,
};
use specdraft::suffix::SuffixConfig;
use specdraft::suffix::cuda::{Batch, CudaSuffix, Drafts, History};

const SLOTS: usize = 4;
const LEN: usize = 256;
const K: usize = 4;

fn main() -> Result<(), specdraft::Error> {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) if error.is_no_driver() => {
            println!("SKIPPED, nothing was run: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };

    // What an engine has already. It could be of any CUDA binding: all that counts are the raw handles and addresses.
    let engine = Engine::new(&driver)?;
    let (raw_context, raw_stream) = (engine.context.as_raw(), engine.stream.borrow().as_raw());

    // SAFETY: the engine's handles are live until the end of `main`, longer than everything made from them.
    let (context, stream) = unsafe {
        (
            Context::borrow_raw(&driver, raw_context)?,
            Stream::from_raw(raw_stream),
        )
    };
    let config = SuffixConfig {
        max_num_reqs: SLOTS,
        max_model_len: LEN,
        num_draft_tokens: K,
        corpus_tokens: 4096,
        ..SuffixConfig::default()
    };
    let mut drafter = CudaSuffix::new(&context, config)?;
    println!(
        "{} with {} PTX, {} bytes of GPU memory",
        context.device().name(),
        drafter.kernels().module().target(),
        drafter.memory_bytes()
    );

    // SAFETY: the arrays have the sizes said, and the engine keeps them until the stream has been waited for.
    let (history, batch, last_sampled, docs, out) = unsafe {
        (
            History {
                token_ids: DeviceRows::from_raw(engine.token_ids.ptr(), SLOTS, LEN),
                total_len: DeviceSlice::from_raw(engine.total_len.ptr(), SLOTS),
            },
            Batch {
                idx_mapping: DeviceSlice::from_raw(engine.idx_mapping.ptr(), 2),
                num_sampled: DeviceSlice::from_raw(engine.num_sampled.ptr(), 2),
            },
            DeviceSlice::from_raw(engine.last_sampled.ptr(), SLOTS),
            DeviceSlice::from_raw(engine.docs.ptr(), 1),
            Drafts {
                drafts: DeviceSliceMut::from_raw(engine.drafts.ptr(), 2 * K),
                num_valid: DeviceSliceMut::from_raw(engine.num_valid.ptr(), 2),
                confidence: None,
            },
        )
    };
    // Slot 3's request is finished; slots 2 and 0 are drafted for. All three calls only enqueue.
    drafter.add_request(stream, 3)?;
    drafter.ingest(stream, &history, docs)?;
    drafter.propose(stream, &history, &batch, last_sampled, out)?;

    // Only this example looks at the drafts on the host; an engine's verifier would read them on the device.
    let drafts = engine.drafts.to_vec(stream)?;
    let num_valid = engine.num_valid.to_vec(stream)?;
    // Slot 2 repeats itself; slot 0 says what slot 3's request said. What is left of K is filler.
    assert_eq!(num_valid, [3, 2]);
    assert_eq!(drafts, [7, 8, 9, 9, 33, 34, 32, 32]);
    println!("drafts {drafts:?}, of which {num_valid:?} are valid");
    Ok(())
}

/// The arrays of an engine with three requests.
struct Engine {
    token_ids: DeviceBuffer<i32>,
    total_len: DeviceBuffer<i32>,
    idx_mapping: DeviceBuffer<i32>,
    num_sampled: DeviceBuffer<i32>,
    last_sampled: DeviceBuffer<i64>,
    docs: DeviceBuffer<[i32; 2]>,
    drafts: DeviceBuffer<i64>,
    num_valid: DeviceBuffer<i32>,
    stream: OwnedStream,
    context: Context,
}

impl Engine {
    fn new(driver: &Driver) -> Result<Self, specdraft::Error> {
        let context = Context::primary(&driver.device(0)?)?;
        let stream = OwnedStream::new(&context)?;
        let on = stream.borrow();
        let rows: [&[i32]; SLOTS] = [
            &[5, 30, 31, 32],
            &[],
            &[7, 8, 9, 7, 8, 9],
            &[1, 2, 30, 31, 32, 33, 34],
        ];
        let mut tokens = vec![0; SLOTS * LEN];
        for (slot, row) in rows.iter().enumerate() {
            tokens[slot * LEN..][..row.len()].copy_from_slice(row);
        }
        let words = |data: &[i32]| DeviceBuffer::from_slice(&context, on, data, "an array");
        Ok(Self {
            token_ids: words(&tokens)?,
            total_len: words(&rows.map(|row| row.len() as i32))?,
            idx_mapping: words(&[2, 0])?,
            num_sampled: words(&[1, 1])?,
            last_sampled: DeviceBuffer::from_slice(&context, on, &[32, 0, 9, 34], "an array")?,
            // Slot 3, from its third token on.
            docs: DeviceBuffer::from_slice(&context, on, &[[3, 2]], "an array")?,
            drafts: DeviceBuffer::zeroed(&context, on, 2 * K, "an array")?,
            num_valid: DeviceBuffer::zeroed(&context, on, 2, "an array")?,
            stream,
            context,
        })
    }
}
