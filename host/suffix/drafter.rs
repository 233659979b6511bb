//! The drafter that takes host tokens: one call for each thing that happens to a request.

use super::backend::{Document, SuffixBackend, SuffixState};
use super::batch::NamedSlots;
use super::config::{NUM_LEN_BUCKETS, PROMPT_CONTEXT, SuffixConfig};
use crate::cpu::CpuSuffix;
use crate::error::{Error, Result};

/// A suffix drafter that owns its memory, for engines that draft on the host.
///
/// A request lives in a slot, `0..max_num_reqs`, that the caller picks: [`start`](Self::start) it with its prompt,
/// [`push`](Self::push) every token it gains, [`draft`](Self::draft) in between, and [`finish`](Self::finish) it, which
/// adds its response to the corpus that all later requests draft from.
///
/// ```
/// use specdraft::suffix::{Source, SuffixConfig, SuffixDrafter, Verdict};
///
/// let mut drafter = SuffixDrafter::cpu(SuffixConfig { num_draft_tokens: 4, ..SuffixConfig::default() })?;
///
/// // The first request has an answer; its tokens go to the corpus.
/// drafter.start(0, &[1, 2, 3])?;
/// drafter.push(0, &[70, 71, 72, 73, 74])?;
/// drafter.finish(&[0])?;
///
/// // Another request begins to say the same.
/// drafter.start(0, &[8, 9])?;
/// drafter.push(0, &[70, 71])?;
/// let draft = &drafter.draft(&[0])?[0];
/// assert_eq!(draft.tokens, [72, 73, 74]);
/// assert_eq!(draft.source, Source::Corpus);
///
/// // The target model agreed with the first two tokens, refused the third and said 5.
/// drafter.observe(&[Verdict { slot: 0, verified: 3, accepted: 2 }])?;
/// drafter.push(0, &[72, 73, 5])?;
/// # Ok::<(), specdraft::Error>(())
/// ```
///
/// An error leaves the drafter as it was.
pub struct SuffixDrafter {
    backend: Box<dyn SuffixBackend>,
    requests: Vec<Option<Request>>,
    /// `[max_num_reqs]`: the filler that a backend is given; drafts to the host leave filler out.
    last_sampled: Vec<i64>,
    idx_mapping: Vec<i32>,
    num_sampled: Vec<i32>,
    num_rejected: Vec<i32>,
    docs: Vec<Document>,
    words: Vec<i32>,
    named: NamedSlots,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    prompt_len: usize,
    len: usize,
}

/// What is drafted for one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The tokens, at most K; empty where nothing was found.
    pub tokens: Vec<u32>,
    /// For each token, the share of earlier drafts of this kind that were accepted at this position.
    pub confidence: Vec<f32>,
    /// Where the tokens come from.
    pub source: Source,
}

/// Where a draft comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nothing was found.
    None,
    /// The request's own tokens.
    Own,
    /// The corpus of finished responses.
    Corpus,
}

/// What the target model said of a request's last draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The request's slot.
    pub slot: usize,
    /// Drafted tokens that the target looked at, at most K.
    pub verified: usize,
    /// How many of them, from the first on, it agreed with.
    pub accepted: usize,
}

impl SuffixDrafter {
    /// A drafter on the CPU. [`SuffixConfig::adaptive`] is turned on, see [`new`](Self::new).
    ///
    /// # Errors
    /// As [`CpuSuffix::new`].
    pub fn cpu(config: SuffixConfig) -> Result<Self> {
        let config = SuffixConfig {
            adaptive: true,
            ..config
        };
        Self::new(Box::new(CpuSuffix::new(config)?))
    }

    /// A drafter in the emulator. [`SuffixConfig::adaptive`] is turned on, see [`new`](Self::new).
    ///
    /// # Errors
    /// As [`EmulatorSuffix::new`](crate::emulator::EmulatorSuffix::new).
    #[cfg(feature = "emulator")]
    pub fn emulator(config: SuffixConfig) -> Result<Self> {
        let config = SuffixConfig {
            adaptive: true,
            ..config
        };
        Self::new(Box::new(crate::emulator::EmulatorSuffix::new(config)?))
    }

    /// A drafter on GPU `ordinal` (after `CUDA_VISIBLE_DEVICES`). [`SuffixConfig::adaptive`] is turned on, see [`new`](Self::new).
    ///
    /// # Errors
    /// As [`OwnedCudaSuffix::new`](super::cuda::OwnedCudaSuffix::new).
    #[cfg(feature = "cuda")]
    pub fn cuda(config: SuffixConfig, ordinal: usize) -> Result<Self> {
        let config = SuffixConfig {
            adaptive: true,
            ..config
        };
        Self::new(Box::new(super::cuda::OwnedCudaSuffix::new(
            config, ordinal,
        )?))
    }

    /// A drafter on any backend. The backend must be adaptive: a draft's source and confidence come from its
    /// statistics, which change no draft. What it has learned stays; its rows are overwritten as requests start.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a backend that is not adaptive.
    pub fn new(backend: Box<dyn SuffixBackend>) -> Result<Self> {
        let config = backend.config();
        if !config.adaptive {
            return Err(Error::out_of_range(
                "backend.config().adaptive",
                true,
                false,
                "build the backend with adaptive: true",
            ));
        }
        let slots = config.max_num_reqs;
        Ok(Self {
            backend,
            requests: vec![None; slots],
            last_sampled: vec![0; slots],
            idx_mapping: Vec::with_capacity(slots),
            num_sampled: Vec::with_capacity(slots),
            num_rejected: Vec::with_capacity(slots),
            docs: Vec::with_capacity(slots),
            words: Vec::new(),
            named: NamedSlots::new(slots),
        })
    }

    /// The configuration in use.
    pub fn config(&self) -> &SuffixConfig {
        self.backend.config()
    }

    /// `"cpu"`, `"emulator"` or `"cuda"`.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// Starts a request in a free slot.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs` or a token over `i32::MAX`; [`Error::SlotState`] for
    /// a slot that has a request; [`Error::Length`] for a prompt longer than `max_model_len`.
    pub fn start(&mut self, slot: usize, prompt: &[u32]) -> Result<()> {
        if self.slot("slot", slot)?.is_some() {
            return Err(Error::SlotState {
                argument: "slot".into(),
                expected: "a free slot",
                got: format!("slot {slot}, which has a request"),
                hint: "finish or cancel that request first",
            });
        }
        self.write("prompt", slot, 0, prompt)?;
        self.backend.add_request(slot)?;
        self.requests[slot] = Some(Request {
            prompt_len: prompt.len(),
            len: prompt.len(),
        });
        Ok(())
    }

    /// Appends tokens that a request gained: the accepted drafts and the target's own.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs` or a token over `i32::MAX`; [`Error::SlotState`] for
    /// a slot without a request; [`Error::Length`] where the row would pass `max_model_len`.
    pub fn push(&mut self, slot: usize, tokens: &[u32]) -> Result<()> {
        let request = self.running("slot", slot)?;
        self.write("tokens", slot, request.len, tokens)?;
        self.requests[slot] = Some(Request {
            len: request.len + tokens.len(),
            ..request
        });
        Ok(())
    }

    /// Tokens in a request's row, prompt and response.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`; [`Error::SlotState`] for a slot without a request.
    pub fn len(&self, slot: usize) -> Result<usize> {
        Ok(self.running("slot", slot)?.len)
    }

    /// Drafts for a batch of requests, one draft for each slot in `slots`, in their order.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`; [`Error::SlotState`] for one without a request;
    /// [`Error::DuplicateSlot`] for one named twice.
    pub fn draft(&mut self, slots: &[usize]) -> Result<Vec<Draft>> {
        self.distinct_running(slots.iter().copied(), |index| format!("slots[{index}]"))?;
        self.idx_mapping.clear();
        self.idx_mapping
            .extend(slots.iter().map(|&slot| slot as i32));
        self.num_sampled.clear();
        self.num_sampled.resize(slots.len(), 1);
        let proposal =
            self.backend
                .propose(&self.idx_mapping, &self.num_sampled, &self.last_sampled)?;
        let buckets = self.backend.last_buckets()?;

        let k = self.config().num_draft_tokens;
        let drafts = slots.iter().enumerate().map(|(b, &slot)| {
            let valid = proposal.num_valid[b] as usize;
            let row = b * k..b * k + valid;
            Draft {
                // Rows hold tokens of `u32` that fit an i32, so every draft does.
                tokens: proposal.drafts[row.clone()]
                    .iter()
                    .map(|&t| t as u32)
                    .collect(),
                confidence: proposal.confidence[row].to_vec(),
                source: match buckets[slot] {
                    ..0 => Source::None,
                    bucket if (bucket as usize) < NUM_LEN_BUCKETS => Source::Own,
                    _ => Source::Corpus,
                },
            }
        });
        Ok(drafts.collect())
    }

    /// Tells what the target said of the last drafts; at most once a step, before the next [`draft`](Self::draft).
    /// Optional: confidences are learned from it, drafts are not.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`, more verified tokens than K, or more accepted than
    /// verified; [`Error::SlotState`] for a slot without a request; [`Error::DuplicateSlot`] for one named twice.
    pub fn observe(&mut self, verdicts: &[Verdict]) -> Result<()> {
        let k = self.config().num_draft_tokens;
        for (index, verdict) in verdicts.iter().enumerate() {
            let Verdict {
                verified, accepted, ..
            } = *verdict;
            if verified > k {
                return Err(Error::out_of_range(
                    format!("verdicts[{index}].verified"),
                    format_args!("0..={k} (num_draft_tokens)"),
                    verified,
                    "count the drafted tokens only",
                ));
            }
            if accepted > verified {
                return Err(Error::out_of_range(
                    format!("verdicts[{index}].accepted"),
                    format_args!("0..={verified} (verified)"),
                    accepted,
                    "do not count the target's own token",
                ));
            }
        }
        self.distinct_running(verdicts.iter().map(|v| v.slot), |index| {
            format!("verdicts[{index}].slot")
        })?;
        self.idx_mapping.clear();
        self.num_sampled.clear();
        self.num_rejected.clear();
        for verdict in verdicts {
            self.idx_mapping.push(verdict.slot as i32);
            self.num_sampled.push(verdict.accepted as i32 + 1);
            self.num_rejected
                .push((verdict.verified - verdict.accepted) as i32);
        }
        self.backend
            .observe(&self.idx_mapping, &self.num_sampled, &self.num_rejected)
    }

    /// Ends requests and adds their responses to the corpus, in the order given; their slots are free again.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`; [`Error::SlotState`] for one without a request;
    /// [`Error::DuplicateSlot`] for one named twice.
    pub fn finish(&mut self, slots: &[usize]) -> Result<()> {
        self.distinct_running(slots.iter().copied(), |index| format!("slots[{index}]"))?;
        self.docs.clear();
        for &slot in slots {
            let prompt_len = self.requests[slot].map_or(0, |request| request.prompt_len);
            self.docs.push(Document {
                slot: slot as i32,
                start: prompt_len.saturating_sub(PROMPT_CONTEXT) as i32,
            });
        }
        self.backend.ingest(&self.docs)?;
        for &slot in slots {
            self.requests[slot] = None;
        }
        Ok(())
    }

    /// Ends a request and forgets it; its slot is free again.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a slot outside `0..max_num_reqs`; [`Error::SlotState`] for one without a request.
    pub fn cancel(&mut self, slot: usize) -> Result<()> {
        self.running("slot", slot)?;
        self.requests[slot] = None;
        Ok(())
    }

    /// Forgets the corpus and the statistics. Running requests go on.
    ///
    /// # Errors
    /// As [`SuffixBackend::reset`].
    pub fn reset(&mut self) -> Result<()> {
        self.backend.reset()
    }

    /// Everything that the drafter has learned, to be saved and given to [`set_state`](Self::set_state) later.
    ///
    /// # Errors
    /// As [`SuffixBackend::state`].
    pub fn state(&mut self) -> Result<SuffixState> {
        self.backend.state()
    }

    /// Restores what a drafter of the same configuration had learned.
    ///
    /// # Errors
    /// As [`SuffixBackend::set_state`].
    pub fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        self.backend.set_state(state)
    }

    fn slot(&self, argument: &str, slot: usize) -> Result<Option<Request>> {
        self.requests.get(slot).copied().ok_or_else(|| {
            Error::out_of_range(
                argument,
                format_args!("0..{} (max_num_reqs)", self.requests.len()),
                slot,
                "use a smaller slot or build the drafter with more",
            )
        })
    }

    fn running(&self, argument: &str, slot: usize) -> Result<Request> {
        self.slot(argument, slot)?.ok_or_else(|| Error::SlotState {
            argument: argument.into(),
            expected: "a slot with a request",
            got: format!("slot {slot}, which has none"),
            hint: "start a request in it first",
        })
    }

    /// Checks that every slot has a request and none is named twice.
    fn distinct_running(
        &mut self,
        slots: impl Iterator<Item = usize>,
        argument: impl Fn(usize) -> String,
    ) -> Result<()> {
        self.named.start_batch();
        for (index, slot) in slots.enumerate() {
            if self.requests.get(slot).is_none_or(Option::is_none) {
                self.running(&argument(index), slot)?;
            }
            self.named.add(slot, index, || argument(index))?;
        }
        Ok(())
    }

    /// Writes tokens to a row and makes them count.
    fn write(
        &mut self,
        argument: &'static str,
        slot: usize,
        offset: usize,
        tokens: &[u32],
    ) -> Result<()> {
        let max_model_len = self.config().max_model_len;
        if tokens.len() > max_model_len - offset {
            return Err(Error::length(
                argument,
                format_args!(
                    "at most {} ({offset} of {max_model_len} tokens are taken)",
                    max_model_len - offset
                ),
                tokens.len(),
                "finish the request or build the drafter with a larger max_model_len",
            ));
        }
        self.words.clear();
        for (index, &token) in tokens.iter().enumerate() {
            let word = i32::try_from(token).map_err(|_| {
                Error::out_of_range(
                    format!("{argument}[{index}]"),
                    format_args!("0..={}", i32::MAX),
                    token,
                    "token ids are indexes into a vocabulary",
                )
            })?;
            self.words.push(word);
        }
        self.backend.write_tokens(slot, offset, &self.words)?;
        self.backend
            .set_total_len(slot, (offset + tokens.len()) as i32)
    }
}

impl std::fmt::Debug for SuffixDrafter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SuffixDrafter")
            .field("backend", &self.backend.name())
            .field("config", self.backend.config())
            .field("running", &self.requests.iter().flatten().count())
            .finish_non_exhaustive()
    }
}
