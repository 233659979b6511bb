//! The innermost ring: the kernels, looked up and checked once, launched without further checks.

use specdraft_kernels::xpress::{
    ROW_BLOCKS, argmax, hidden, latent, latent_resident, maxima, prune, readout, score, start,
    tile, topc,
};

use crate::driver::{DriverError, KernelResources, LaunchShape, Module, PreparedKernel, Stream};
use crate::error::{Error, Result};
use crate::xpress::XpressConfig;
use crate::xpress::plan::{Call, Gpu, Launch, Size};

/// The XPress refiner's kernels, loaded in a context.
#[derive(Debug)]
pub struct XpressKernels {
    project: [PreparedKernel<{ hidden::XPRESS_PROJECT_64X32.params.len() }>; 3],
    combine: [PreparedKernel<{ hidden::XPRESS_COMBINE_32.params.len() }>; 2],
    resident_combine: [PreparedKernel<{ hidden::XPRESS_COMBINE_32.params.len() }>; 3],
    start: PreparedKernel<{ start::XPRESS_START.params.len() }>,
    mix: PreparedKernel<{ latent::XPRESS_MIX.params.len() }>,
    gate_up: [PreparedKernel<{ latent::XPRESS_GATE_UP_32.params.len() }>; 2],
    down: [PreparedKernel<{ latent::XPRESS_DOWN_32.params.len() }>; 2],
    resident_mix: [PreparedKernel<{ latent::XPRESS_MIX.params.len() }>; 3],
    resident_gate_up: [PreparedKernel<{ latent::XPRESS_GATE_UP_32.params.len() }>; 3],
    resident_down: [PreparedKernel<{ latent::XPRESS_DOWN_32.params.len() }>; 3],
    prune: PreparedKernel<{ prune::XPRESS_PRUNE.params.len() }>,
    readout: [PreparedKernel<{ readout::XPRESS_READOUT_16.params.len() }>; ROW_BLOCKS.len()],
    select: PreparedKernel<{ topc::XPRESS_SELECT.params.len() }>,
    select_few: PreparedKernel<{ topc::XPRESS_SELECT.params.len() }>,
    score: PreparedKernel<{ score::XPRESS_SCORE.params.len() }>,
    add_argmax: PreparedKernel<{ argmax::XPRESS_ADD_ARGMAX.params.len() }>,
    topc_argmax: PreparedKernel<{ argmax::XPRESS_TOPC_ARGMAX.params.len() }>,
    max_shared: u32,
    module: Module,
}

impl XpressKernels {
    /// Looks all kernels up in a module and checks them against the ABI table.
    ///
    /// # Errors
    /// [`DriverError::KernelAbi`] where the module is of another version; the driver's.
    pub fn load(module: &Module) -> Result<Self, DriverError> {
        let max_shared = module.context().device().max_shared_memory()?;
        let kernels = Self {
            project: [
                PreparedKernel::new(module, &hidden::XPRESS_PROJECT_64X32)?,
                PreparedKernel::deferred(module, &hidden::XPRESS_PROJECT_64X64)?,
                PreparedKernel::deferred(module, &hidden::XPRESS_PROJECT_128X128)?,
            ],
            combine: [
                PreparedKernel::new(module, &hidden::XPRESS_COMBINE_32)?,
                PreparedKernel::new(module, &hidden::XPRESS_COMBINE_64)?,
            ],
            resident_combine: [
                PreparedKernel::deferred(module, &hidden::XPRESS_COMBINE_RESIDENT_32X32)?,
                PreparedKernel::deferred(module, &hidden::XPRESS_COMBINE_RESIDENT_64X32)?,
                PreparedKernel::deferred(module, &hidden::XPRESS_COMBINE_RESIDENT_64X64)?,
            ],
            start: PreparedKernel::new(module, &start::XPRESS_START)?,
            mix: PreparedKernel::new(module, &latent::XPRESS_MIX)?,
            gate_up: [
                PreparedKernel::new(module, &latent::XPRESS_GATE_UP_32)?,
                PreparedKernel::new(module, &latent::XPRESS_GATE_UP_64)?,
            ],
            down: [
                PreparedKernel::new(module, &latent::XPRESS_DOWN_32)?,
                PreparedKernel::new(module, &latent::XPRESS_DOWN_64)?,
            ],
            resident_mix: [
                PreparedKernel::deferred(module, &latent::XPRESS_MIX_RESIDENT_32X32)?,
                PreparedKernel::deferred(module, &latent::XPRESS_MIX_RESIDENT_64X32)?,
                PreparedKernel::deferred(module, &latent::XPRESS_MIX_RESIDENT_64X64)?,
            ],
            resident_gate_up: [
                PreparedKernel::deferred(module, &latent::XPRESS_GATE_UP_RESIDENT_32)?,
                PreparedKernel::deferred(module, &latent::XPRESS_GATE_UP_RESIDENT_64)?,
                PreparedKernel::deferred(module, &latent::XPRESS_GATE_UP_RESIDENT_128)?,
            ],
            resident_down: [
                PreparedKernel::deferred(module, &latent::XPRESS_DOWN_RESIDENT_32X32)?,
                PreparedKernel::deferred(module, &latent::XPRESS_DOWN_RESIDENT_64X32)?,
                PreparedKernel::deferred(module, &latent::XPRESS_DOWN_RESIDENT_64X64)?,
            ],
            prune: PreparedKernel::new(module, &prune::XPRESS_PRUNE)?,
            readout: [
                PreparedKernel::new(module, &readout::XPRESS_READOUT_16)?,
                PreparedKernel::new(module, &readout::XPRESS_READOUT_32)?,
                PreparedKernel::new(module, &readout::XPRESS_READOUT_64)?,
                PreparedKernel::new(module, &readout::XPRESS_READOUT_128)?,
            ],
            select: PreparedKernel::new(module, &topc::XPRESS_SELECT)?,
            select_few: PreparedKernel::deferred(module, &topc::XPRESS_SELECT_FEW)?,
            score: PreparedKernel::new(module, &score::XPRESS_SCORE)?,
            add_argmax: PreparedKernel::new(module, &argmax::XPRESS_ADD_ARGMAX)?,
            topc_argmax: PreparedKernel::new(module, &argmax::XPRESS_TOPC_ARGMAX)?,
            max_shared,
            module: module.clone(),
        };
        // More than 48 KB a block is a kernel's to be allowed.
        kernels.combine[1].allow_shared_bytes(tile::ring_bytes(2))?;
        kernels.gate_up[1].allow_shared_bytes(tile::ring_bytes(2))?;
        kernels.down[1].allow_shared_bytes(tile::ring_bytes(2))?;
        let most_slots = XpressConfig::MAX_BLOCK_SIZE as u32;
        kernels
            .mix
            .allow_shared_bytes(latent::mix_bytes(most_slots))?;
        let most_logits = XpressConfig::MAX_VOCAB_SIZE as u32;
        kernels
            .select
            .allow_shared_bytes(topc::select_bytes(most_logits, maxima::GROUP))?;
        kernels.select_few.allow_shared_bytes(topc::MOST_BYTES)?;
        for i in 0..3 {
            let bytes = hidden::project_bytes(i).min(max_shared);
            kernels.project[i].allow_shared_bytes(bytes)?;
            kernels.resident_combine[i].allow_shared_bytes(max_shared)?;
            kernels.resident_mix[i].allow_shared_bytes(max_shared)?;
            kernels.resident_gate_up[i].allow_shared_bytes(max_shared)?;
            kernels.resident_down[i].allow_shared_bytes(max_shared)?;
            // Each waits beside the one before. The projection for the fewest rows is compiled by now; it was measured without.
            if i > 0 {
                kernels.project[i].share_multiprocessors();
            }
            kernels.resident_combine[i].share_multiprocessors();
            kernels.resident_mix[i].share_multiprocessors();
            kernels.resident_gate_up[i].share_multiprocessors();
            kernels.resident_down[i].share_multiprocessors();
        }
        for kernel in &kernels.readout {
            kernel.allow_shared_bytes(max_shared)?;
        }
        Ok(kernels)
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
        fn of<const N: usize>(
            kernel: &PreparedKernel<N>,
        ) -> Result<(&'static str, KernelResources), DriverError> {
            Ok((kernel.name(), kernel.resources()?))
        }
        let mut all = vec![];
        for kernel in &self.project {
            all.push(of(kernel)?);
        }
        for kernel in self.combine.iter().chain(&self.resident_combine) {
            all.push(of(kernel)?);
        }
        all.extend([of(&self.start)?, of(&self.mix)?]);
        for kernel in &self.gate_up {
            all.push(of(kernel)?);
        }
        for kernel in &self.down {
            all.push(of(kernel)?);
        }
        for kernel in &self.resident_mix {
            all.push(of(kernel)?);
        }
        for kernel in &self.resident_gate_up {
            all.push(of(kernel)?);
        }
        for kernel in &self.resident_down {
            all.push(of(kernel)?);
        }
        all.push(of(&self.prune)?);
        for kernel in &self.readout {
            all.push(of(kernel)?);
        }
        all.extend([of(&self.select)?, of(&self.select_few)?, of(&self.score)?]);
        all.extend([of(&self.add_argmax)?, of(&self.topc_argmax)?]);
        Ok(all)
    }

    /// What grids are made for: this GPU, and a head of these sizes, for which the kernels that not every head needs are compiled.
    pub(super) fn gpu(&self, config: &XpressConfig) -> Result<Gpu, DriverError> {
        let [rank, units] = [config.rank as u32, config.mlp_hidden as u32];
        for size in Size::ALL {
            let i = size.index();
            if hidden::project_bytes(i) <= self.max_shared {
                self.project[i].compile()?;
            }
            if size.split_bytes(2 * rank) <= self.max_shared {
                self.resident_combine[i].compile()?;
            }
            if size.split_bytes(rank) <= self.max_shared
                && config.block_size == latent_resident::SLOTS as usize
            {
                self.resident_mix[i].compile()?;
            }
            if size.gate_up_bytes(rank) <= self.max_shared {
                self.resident_gate_up[i].compile()?;
            }
            if size.split_bytes(units) <= self.max_shared {
                self.resident_down[i].compile()?;
            }
        }
        let vocabulary = config.vocab_size as u32;
        if topc::smallest_group(vocabulary, vocabulary) == maxima::SMALL_GROUP {
            self.select_few.compile()?;
        }
        let mut readout_blocks = [0; ROW_BLOCKS.len()];
        for (i, kernel) in self.readout.iter().enumerate() {
            let bytes = readout::bytes(ROW_BLOCKS[i], rank);
            if bytes <= self.max_shared {
                readout_blocks[i] = kernel.blocks_per_multiprocessor(readout::THREADS, bytes)?;
            }
        }
        Ok(Gpu {
            multiprocessors: self.module.context().device().multiprocessors(),
            shared_bytes: self.max_shared,
            readout_blocks,
        })
    }

    /// Whether a block of this GPU has room to select candidates from the head's rows.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] says what to do if it has not; the driver's.
    pub(super) fn check_selection(&self, config: &XpressConfig, max_topc: usize) -> Result<()> {
        let own = self.select.resources()?.shared_bytes;
        let needed = own + topc::select_bytes(config.vocab_size as u32, maxima::GROUP);
        if needed <= self.max_shared {
            return Ok(());
        }
        Err(Error::out_of_range(
            "max_topc",
            format!(
                "0 for a vocabulary of {}: a block of this GPU has {} bytes of shared memory, and selecting candidates takes {needed}",
                config.vocab_size, self.max_shared
            ),
            max_topc,
            "refine over the whole vocabulary there",
        ))
    }

    /// The call's kernel, if it is the first of those that make latents.
    pub(super) fn first_of_latents(&self, call: &Call) -> Option<&'static str> {
        match call {
            Call::Mix(_) => Some(self.mix.name()),
            Call::ResidentMix(size, _) => Some(self.resident_mix[size.index()].name()),
            _ => None,
        }
    }

    /// Enqueues a launch of the plan.
    ///
    /// # Safety
    /// - The contract of the kernel, as its arguments have it.
    /// - As [`PreparedKernel::launch`]: the stream and the current context are the module's.
    pub(super) unsafe fn launch(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        launch: &Launch,
    ) -> Result<(), DriverError> {
        let shape = LaunchShape {
            grid: launch.grid,
            threads: launch.threads,
            shared_bytes: launch.shared_bytes,
            dependent,
        };
        // SAFETY: the caller's contract.
        unsafe {
            match &launch.call {
                Call::Project(size, args) => {
                    self.project[size.index()].launch(stream, shape, args.words())
                }
                Call::Combine(tile, args) => {
                    self.combine[tile.index()].launch(stream, shape, args.words())
                }
                Call::ResidentCombine(size, args) => {
                    self.resident_combine[size.index()].launch(stream, shape, args.words())
                }
                Call::Start(args) => self.start.launch(stream, shape, args.words()),
                Call::Prune(args) => self.prune.launch(stream, shape, args.words()),
                Call::Mix(args) => self.mix.launch(stream, shape, args.words()),
                Call::GateUp(tile, args) => {
                    self.gate_up[tile.index()].launch(stream, shape, args.words())
                }
                Call::Down(tile, args) => {
                    self.down[tile.index()].launch(stream, shape, args.words())
                }
                Call::ResidentMix(size, args) => {
                    self.resident_mix[size.index()].launch(stream, shape, args.words())
                }
                Call::ResidentGateUp(size, args) => {
                    self.resident_gate_up[size.index()].launch(stream, shape, args.words())
                }
                Call::ResidentDown(size, args) => {
                    self.resident_down[size.index()].launch(stream, shape, args.words())
                }
                Call::Readout(i, args) => self.readout[*i].launch(stream, shape, args.words()),
                Call::Select(maxima::SMALL_GROUP, args) => {
                    self.select_few.launch(stream, shape, args.words())
                }
                Call::Select(_, args) => self.select.launch(stream, shape, args.words()),
                Call::Score(args) => self.score.launch(stream, shape, args.words()),
                Call::AddArgmax(args) => self.add_argmax.launch(stream, shape, args.words()),
                Call::TopcArgmax(args) => self.topc_argmax.launch(stream, shape, args.words()),
            }
        }
    }
}
