//! Checkpoints on disk, for tests of the loader.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use specdraft::xpress::{XpressConfig, XpressHead, bf16};

/// A checkpoint: tensors and a config.json, to be changed and then written.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// By name.
    pub tensors: BTreeMap<String, Tensor>,
    /// config.json.
    pub config: Value,
}

/// A tensor's type, shape and bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// A folder of its own that goes when this does.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Checkpoint {
    /// A head as vLLM serves it, bf16, every name with `prefix`.
    pub fn serving(head: &XpressHead, prefix: &str) -> Self {
        let c = head.config();
        let config = json!({
            "architectures": ["Qwen3XPressModel"], "vocab_size": c.vocab_size, "hidden_size": c.hidden_size,
            "xpress_rank": c.rank, "xpress_mlp_hidden": c.mlp_hidden, "xpress_block_size": c.block_size,
            "xpress_num_passes": c.num_passes, "xpress_topc": c.topc, "sample_from_anchor": false,
        });
        let names = [
            "w1.weight",
            "down_h.weight",
            "down_g.weight",
            "in_proj.weight",
            "mix.L",
            "mlp.gate_proj.weight",
            "mlp.up_proj.weight",
            "mlp.down_proj.weight",
            "w2.weight",
        ];
        Self::new(head, &names.map(|name| format!("{prefix}{name}")), config)
    }

    /// A head as its training writes it, bf16.
    pub fn training(head: &XpressHead, prefix: &str) -> Self {
        let c = head.config();
        let config = json!({
            "speculators_model_type": "xpress", "block_size": c.block_size, "xpress_rank": c.rank,
            "xpress_mlp_ratio": c.mlp_hidden / c.rank, "num_jacobi_passes": c.num_passes,
            "xpress_topc": c.topc, "draft_vocab_size": c.vocab_size, "sample_from_anchor": false,
            "transformer_layer_config": { "vocab_size": c.vocab_size, "hidden_size": c.hidden_size },
        });
        let names = [
            "token_embed.weight",
            "down_h.weight",
            "down_g.weight",
            "in_proj.weight",
            "mix_l",
            "mlp_gate.weight",
            "mlp_up.weight",
            "mlp_down.weight",
            "readout.weight",
        ];
        Self::new(head, &names.map(|name| format!("{prefix}{name}")), config)
    }

    fn new(head: &XpressHead, names: &[String; 9], config: Value) -> Self {
        let &XpressConfig {
            vocab_size: v,
            hidden_size: d,
            rank: r,
            mlp_hidden: h,
            block_size: b,
            ..
        } = head.config();
        let w = head.weights();
        let raw: Vec<bf16> = super::reference::unfold(&w.mixer)
            .into_iter()
            .map(bf16::from_f64)
            .collect();
        let matrices: [(&[bf16], &[usize]); 9] = [
            (&w.w1, &[v, r]),
            (&w.down_h, &[r, d]),
            (&w.down_g, &[r, d]),
            (&w.in_proj, &[r, 3 * r]),
            (&raw, &[r, b, b]),
            (&w.gate, &[h, r]),
            (&w.up, &[h, r]),
            (&w.down, &[r, h]),
            (&w.w2, &[v, r]),
        ];
        let tensors = names
            .iter()
            .cloned()
            .zip(matrices.map(|(values, shape)| Tensor::bf16(values, shape)));
        Self {
            tensors: tensors.collect(),
            config,
        }
    }

    /// Writes config.json and model.safetensors.
    pub fn save(&self) -> Folder {
        let folder = self.save_config();
        self.write(&folder.path().join("model.safetensors"), |_| true);
        folder
    }

    /// Writes config.json, two shards and their index: every other tensor in the second one.
    pub fn save_sharded(&self) -> Folder {
        let folder = self.save_config();
        let shard = |i: usize| format!("model-{:05}-of-00002.safetensors", i % 2 + 1);
        for odd in [0, 1] {
            self.write(&folder.path().join(shard(odd)), |i| i % 2 == odd);
        }
        let map: BTreeMap<&String, String> = self
            .tensors
            .keys()
            .enumerate()
            .map(|(i, name)| (name, shard(i)))
            .collect();
        folder.write(
            "model.safetensors.index.json",
            &json!({ "weight_map": map }).to_string(),
        );
        folder
    }

    /// Makes every tensor another type.
    pub fn cast(&mut self, dtype: Dtype) {
        for tensor in self.tensors.values_mut() {
            *tensor = tensor.cast(dtype);
        }
    }

    fn save_config(&self) -> Folder {
        let folder = Folder::new();
        folder.write("config.json", &self.config.to_string());
        folder
    }

    fn write(&self, path: &Path, wanted: impl Fn(usize) -> bool) {
        let tensors = self.tensors.iter().enumerate().filter(|(i, _)| wanted(*i));
        let views = tensors.map(|(_, (name, t))| {
            (
                name,
                TensorView::new(t.dtype, t.shape.clone(), &t.bytes).expect("bytes for the shape"),
            )
        });
        let bytes = serialize(views, None).expect("tensors that fit");
        fs::write(path, bytes).expect("a writable folder for temporary files");
    }
}

impl Tensor {
    /// A bf16 tensor.
    pub fn bf16(values: &[bf16], shape: &[usize]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self {
            dtype: Dtype::BF16,
            shape: shape.to_vec(),
            bytes,
        }
    }

    /// A bf16 tensor of zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Self::bf16(&vec![bf16::ZERO; shape.iter().product()], shape)
    }

    /// An f32 tensor.
    pub fn f32(values: &[f32], shape: &[usize]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes,
        }
    }

    /// The same values as f32, f16 (in which they must fit), bf16 or, for a type that is none of these, zero bytes.
    pub fn cast(&self, dtype: Dtype) -> Self {
        let values = self
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| bf16::from_le_bytes(*b).to_f32());
        let bytes = match dtype {
            Dtype::BF16 => self.bytes.clone(),
            Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
            Dtype::F16 => values
                .flat_map(|v| half::f16::from_f32(v).to_le_bytes())
                .collect(),
            other => vec![0; self.bytes.len() / 2 * other.bitsize() / 8],
        };
        Self {
            dtype,
            shape: self.shape.clone(),
            bytes,
        }
    }

    /// The same bytes in another shape.
    pub fn reshape(&self, shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            ..self.clone()
        }
    }
}

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("specdraft-checkpoint-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a writable folder for temporary files");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a text file into it.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("a writable folder for temporary files");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder left behind harms nobody, and a panic here would hide the test's own.
        let _ = fs::remove_dir_all(&self.0);
    }
}
