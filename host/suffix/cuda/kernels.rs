//! The innermost ring: the kernels, looked up and checked once, launched without further checks.

use specdraft_kernels::suffix::{index, ingest, observe, propose, reset};

use crate::driver::{DriverError, KernelResources, LaunchShape, Module, PreparedKernel, Stream};
use crate::suffix::SuffixConfig;

/// The suffix drafter's kernels, loaded in a context.
///
/// The arguments are the kernels' own ([`specdraft_kernels::suffix`]), which also says what each kernel reads and
/// writes. Every `dependent` asks for programmatic dependent launch, see [`LaunchShape::dependent`].
#[derive(Debug)]
pub struct SuffixKernels {
    propose_k8: PreparedKernel<{ propose::SUFFIX_PROPOSE_K8.params.len() }>,
    propose: PreparedKernel<{ propose::SUFFIX_PROPOSE.params.len() }>,
    propose_indexed_k8: PreparedKernel<{ propose::SUFFIX_PROPOSE_INDEXED_K8.params.len() }>,
    propose_indexed: PreparedKernel<{ propose::SUFFIX_PROPOSE_INDEXED.params.len() }>,
    clear_index: PreparedKernel<{ index::SUFFIX_CLEAR_INDEX.params.len() }>,
    ingest_place: PreparedKernel<{ ingest::SUFFIX_INGEST_PLACE.params.len() }>,
    ingest_copy: PreparedKernel<{ ingest::SUFFIX_INGEST_COPY.params.len() }>,
    observe: PreparedKernel<{ observe::SUFFIX_OBSERVE.params.len() }>,
    add_request: PreparedKernel<{ reset::SUFFIX_ADD_REQUEST.params.len() }>,
    reset: PreparedKernel<{ reset::SUFFIX_RESET.params.len() }>,
    module: Module,
}

impl SuffixKernels {
    /// Looks all kernels up in a module and checks them against the ABI table. [`compile_for`](Self::compile_for) has them compiled.
    ///
    /// # Errors
    /// [`DriverError::KernelAbi`] where the module is of another version; the driver's.
    pub fn load(module: &Module) -> Result<Self, DriverError> {
        Ok(Self {
            propose_k8: PreparedKernel::deferred(module, &propose::SUFFIX_PROPOSE_K8)?,
            propose: PreparedKernel::deferred(module, &propose::SUFFIX_PROPOSE)?,
            propose_indexed_k8: PreparedKernel::deferred(
                module,
                &propose::SUFFIX_PROPOSE_INDEXED_K8,
            )?,
            propose_indexed: PreparedKernel::deferred(module, &propose::SUFFIX_PROPOSE_INDEXED)?,
            clear_index: PreparedKernel::deferred(module, &index::SUFFIX_CLEAR_INDEX)?,
            ingest_place: PreparedKernel::deferred(module, &ingest::SUFFIX_INGEST_PLACE)?,
            ingest_copy: PreparedKernel::deferred(module, &ingest::SUFFIX_INGEST_COPY)?,
            observe: PreparedKernel::deferred(module, &observe::SUFFIX_OBSERVE)?,
            add_request: PreparedKernel::deferred(module, &reset::SUFFIX_ADD_REQUEST)?,
            reset: PreparedKernel::deferred(module, &reset::SUFFIX_RESET)?,
            module: module.clone(),
        })
    }

    /// Has the driver compile the kernels that a drafter uses, unless it has done so before.
    ///
    /// # Errors
    /// Those of [`PreparedKernel::compile`].
    pub fn compile_for(&self, config: &SuffixConfig) -> Result<(), DriverError> {
        let (k, depth) = (config.num_draft_tokens as u32, config.max_depth as u32);
        self.kernel_of(k, depth, config.history_index).compile()?;
        if config.history_index {
            self.clear_index.compile()?;
        }
        self.add_request.compile()?;
        self.reset.compile()?;
        if config.effective_corpus_tokens() > 0 {
            self.ingest_place.compile()?;
            self.ingest_copy.compile()?;
        }
        match config.adaptive {
            true => self.observe.compile(),
            false => Ok(()),
        }
    }

    /// The kernel that proposes with this K and this depth, with a history index or without.
    fn kernel_of(
        &self,
        num_draft_tokens: u32,
        max_depth: u32,
        indexed: bool,
    ) -> &PreparedKernel<{ propose::SUFFIX_PROPOSE.params.len() }> {
        match (propose::takes_k8(num_draft_tokens, max_depth), indexed) {
            (true, false) => &self.propose_k8,
            (false, false) => &self.propose,
            (true, true) => &self.propose_indexed_k8,
            (false, true) => &self.propose_indexed,
        }
    }

    /// The module they are in, which knows its context and the PTX it was made of.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Each kernel's name, and what it takes of the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn resources(&self) -> Result<Vec<(&'static str, KernelResources)>, DriverError> {
        Ok(vec![
            (self.propose_k8.name(), self.propose_k8.resources()?),
            (self.propose.name(), self.propose.resources()?),
            (
                self.propose_indexed_k8.name(),
                self.propose_indexed_k8.resources()?,
            ),
            (
                self.propose_indexed.name(),
                self.propose_indexed.resources()?,
            ),
            (self.clear_index.name(), self.clear_index.resources()?),
            (self.ingest_place.name(), self.ingest_place.resources()?),
            (self.ingest_copy.name(), self.ingest_copy.resources()?),
            (self.observe.name(), self.observe.resources()?),
            (self.add_request.name(), self.add_request.resources()?),
            (self.reset.name(), self.reset.resources()?),
        ])
    }

    /// The grid that [`propose`](Self::propose) is best launched with on this GPU; its fields go into the arguments.
    pub fn propose_grid(&self, batch: u32, max_model_len: u32) -> propose::Grid {
        propose::Grid::new(self.multiprocessors(), batch, max_model_len)
    }

    /// Enqueues drafting for `batch` requests: the special kernel for short drafts where it takes this shape, else
    /// the general one; with a history index if the arguments have one.
    ///
    /// # Safety
    /// - As [`propose::suffix_propose`] or [`propose::suffix_propose_indexed`]; `args` has the grid's fields.
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn propose(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        grid: propose::Grid,
        batch: u32,
        args: &propose::Args,
    ) -> Result<(), DriverError> {
        debug_assert_eq!(args.log2_blocks, grid.log2_blocks);
        debug_assert_eq!(args.log2_min_units, grid.log2_min_units);
        let shape = shape(grid.dimensions(batch), propose::THREADS, dependent);
        let indexed = !args.history_index.is_null();
        let kernel = self.kernel_of(args.num_draft_tokens, args.max_depth, indexed);
        // SAFETY: the caller's.
        unsafe { kernel.launch(stream, shape, args.words()) }
    }

    /// Enqueues appending documents to the corpus: two launches.
    ///
    /// # Safety
    /// - As [`ingest::suffix_ingest_place`] and [`ingest::suffix_ingest_copy`]; both are given the same `plan`.
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn ingest(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        place: &ingest::PlaceArgs,
        copy: &ingest::CopyArgs,
    ) -> Result<(), DriverError> {
        debug_assert_eq!(place.plan.cast_const(), copy.plan);
        let shape_of_place = shape(
            [ingest::PLACE_BLOCKS, 1, 1],
            ingest::PLACE_THREADS,
            dependent,
        );
        let grid = ingest::copy_grid(self.multiprocessors(), place.num_docs, place.max_model_len);
        // SAFETY: the caller's.
        unsafe {
            self.ingest_place
                .launch(stream, shape_of_place, place.words())?;
            self.ingest_copy.launch(
                stream,
                shape(grid, ingest::COPY_THREADS, dependent),
                copy.words(),
            )
        }
    }

    /// Enqueues taking the target's verdict on the last drafts.
    ///
    /// # Safety
    /// - As [`observe::suffix_observe`].
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn observe(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        args: &observe::Args,
    ) -> Result<(), DriverError> {
        let shape = shape([1, 1, 1], observe::THREADS, dependent);
        // SAFETY: the caller's.
        unsafe { self.observe.launch(stream, shape, args.words()) }
    }

    /// Enqueues forgetting the last drafts of some slots.
    ///
    /// # Safety
    /// - As [`reset::suffix_add_request`].
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn add_request(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        args: &reset::AddRequestArgs,
    ) -> Result<(), DriverError> {
        let grid = reset::add_request_grid(args.num_slots);
        // SAFETY: the caller's.
        unsafe {
            self.add_request
                .launch(stream, shape(grid, reset::THREADS, dependent), args.words())
        }
    }

    /// Enqueues starting the history index of some slots anew.
    ///
    /// # Safety
    /// - As [`index::suffix_clear_index`].
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn clear_index(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        args: &index::ClearArgs,
    ) -> Result<(), DriverError> {
        let grid = index::clear_grid(args.num_slots);
        // SAFETY: the caller's.
        unsafe {
            self.clear_index.launch(
                stream,
                shape(grid, index::CLEAR_THREADS, dependent),
                args.words(),
            )
        }
    }

    /// Enqueues forgetting everything.
    ///
    /// # Safety
    /// - As [`reset::suffix_reset`].
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn reset(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        args: &reset::ResetArgs,
    ) -> Result<(), DriverError> {
        let grid = reset::reset_grid(self.multiprocessors());
        // SAFETY: the caller's.
        unsafe {
            self.reset
                .launch(stream, shape(grid, reset::THREADS, dependent), args.words())
        }
    }

    fn multiprocessors(&self) -> u32 {
        self.module.context().device().multiprocessors()
    }
}

fn shape(grid: [u32; 3], threads: u32, dependent: bool) -> LaunchShape {
    LaunchShape {
        grid,
        threads,
        shared_bytes: 0,
        dependent,
    }
}
