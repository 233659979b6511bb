//! Reading a head from a safetensors checkpoint.
//!
//! ```text
//! load(path):
//!     folder -> config.json, and model.safetensors.index.json or model.safetensors
//!     map each shard; collect the tensors' names
//!     form = the prefix and the names that the head has in this checkpoint
//!     refuse what lies under the form's prefix and is no weight of the head
//!     each weight: shape as configured, bf16 | f16 | f32 -> bf16 once
//!     mixer: bf16, then folded, once
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::head::Matrix;
use super::{HeadError, RawMixer, XpressConfig, XpressHead, XpressWeights};
use crate::error::Result;

impl XpressHead {
    /// Loads the head of a checkpoint, with the sizes of its `config.json`.
    ///
    /// `path` is the checkpoint's folder, its one safetensors file or its `*.safetensors.index.json`; `config.json`
    /// lies beside it. The files are mapped, only the head's own tensors are read, and each is converted to bf16 once
    /// (to nearest, ties to even; f16 by way of f32). The mixer is folded after that.
    ///
    /// The head's tensors are named `xpress_head.w1.weight` and so on, or the same without the prefix, or as training
    /// writes them (`refiner_head.token_embed.weight`, …). The drafter's own tensors, `mask_embedding` and the vocabulary
    /// maps `t2d` and `d2t` are passed over.
    ///
    /// # Errors
    /// [`HeadError`], naming the file, the key or the tensor.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // Of a path that is wrong, the folder above is no checkpoint either.
        let kind = path.metadata().map_err(|source| HeadError::Io {
            path: path.into(),
            source,
        })?;
        let folder = if kind.is_dir() {
            path
        } else {
            path.parent().unwrap_or(Path::new(""))
        };
        let config = XpressConfig::from_json(&read(&folder.join("config.json"))?)?;
        Self::load_with(path, config)
    }

    /// Loads the head of a checkpoint that has no `config.json`, or another one. See [`load`](Self::load).
    ///
    /// # Errors
    /// [`HeadError`], naming the file or the tensor, and [`Error::OutOfRange`](crate::Error::OutOfRange) for sizes that
    /// are not supported.
    pub fn load_with(path: impl AsRef<Path>, config: XpressConfig) -> Result<Self> {
        config.validate()?;
        let shards = Shards::open(path.as_ref())?;
        let tensors = shards.tensors()?;
        let form = Form::find(&tensors)?;
        form.refuse_unknown(&tensors)?;

        let matrix = |m: Matrix| tensors.read(&form.tensor(m), &m.shape(&config), shape_hint(m));
        let (r, b) = (config.rank, config.block_size);
        let mix_hint = "the mixer is for another block size or rank than config.json says";
        let mixer = tensors.read(&form.mixer(), &[r, b, b], mix_hint)?;
        let weights = XpressWeights {
            w1: matrix(Matrix::W1)?,
            down_h: matrix(Matrix::DownH)?,
            down_g: matrix(Matrix::DownG)?,
            in_proj: matrix(Matrix::InProj)?,
            mixer: RawMixer::new(r, b, mixer)?.fold(),
            gate: matrix(Matrix::Gate)?,
            up: matrix(Matrix::Up)?,
            down: matrix(Matrix::Down)?,
            w2: matrix(Matrix::W2)?,
        };
        XpressHead::from_parts(config, weights)
    }
}

fn shape_hint(matrix: Matrix) -> &'static str {
    match matrix {
        Matrix::W1 | Matrix::W2 => {
            "the head's vocabulary is the target's; use the head trained for this target"
        }
        _ => "the head has another size than config.json says",
    }
}

/// How a checkpoint names the head's tensors.
#[derive(Clone, Copy)]
struct Form {
    prefix: &'static str,
    training: bool,
}

impl Form {
    const SERVING_PREFIX: &'static str = "xpress_head.";
    const TRAINING_PREFIX: &'static str = "refiner_head.";

    fn find(tensors: &Tensors<'_>) -> Result<Self, HeadError> {
        let (serving, training) = (Self::SERVING_PREFIX, Self::TRAINING_PREFIX);
        match (tensors.any_under(serving), tensors.any_under(training)) {
            (true, true) => Err(HeadError::TwoHeads { serving, training }),
            (_, true) => Ok(Form {
                prefix: training,
                training: true,
            }),
            (true, _) => Ok(Form {
                prefix: serving,
                training: false,
            }),
            // Without a prefix only the names tell; where there is no head at all, its absence is reported as the
            // serving form's.
            (false, false) => {
                let bare = Form {
                    prefix: "",
                    training: true,
                };
                let training = tensors.has(&bare.tensor(Matrix::W1)) || tensors.has(&bare.mixer());
                Ok(Form {
                    prefix: if training || tensors.has("w1.weight") {
                        ""
                    } else {
                        serving
                    },
                    training,
                })
            }
        }
    }

    fn tensor(&self, matrix: Matrix) -> String {
        let name = if self.training {
            matrix.training_name()
        } else {
            matrix.name()
        };
        format!("{}{name}", self.prefix)
    }

    fn mixer(&self) -> String {
        format!(
            "{}{}",
            self.prefix,
            if self.training { "mix_l" } else { "mix.L" }
        )
    }

    /// Refuses a bias, and under a prefix of the head's own whatever else would take part in its computation.
    fn refuse_unknown(&self, tensors: &Tensors<'_>) -> Result<(), HeadError> {
        let weights: Vec<String> = Matrix::ALL.iter().map(|m| self.tensor(*m)).collect();
        let mixer = self.mixer();
        for (name, view) in &tensors.0 {
            let Some(rest) = name.strip_prefix(self.prefix) else {
                continue;
            };
            let known = weights.contains(name) || *name == mixer;
            let is_bias = name.strip_suffix(".bias").is_some_and(|layer| {
                weights
                    .iter()
                    .any(|w| w.strip_suffix(".weight") == Some(layer))
            });
            let passed_over = ["t2d", "d2t", "mask_embedding", "causal_tril"];
            let own = !self.prefix.is_empty()
                && !passed_over
                    .iter()
                    .any(|p| rest.split('.').next_back() == Some(p));
            if !known && (is_bias || own) {
                let got = view.shape().to_vec();
                return Err(HeadError::Unexpected {
                    tensor: name.clone(),
                    got,
                });
            }
        }
        Ok(())
    }
}

/// The mapped files of a checkpoint.
struct Shards {
    files: Vec<(PathBuf, Mmap)>,
    /// From an index: the shard of each tensor. A tensor elsewhere than the index says does not count.
    index: Option<BTreeMap<String, PathBuf>>,
}

impl Shards {
    const SINGLE: &'static str = "model.safetensors";
    const INDEX: &'static str = "model.safetensors.index.json";

    fn open(path: &Path) -> Result<Self, HeadError> {
        if !path.is_dir() {
            return Self::open_file(path);
        }
        for name in [Self::INDEX, Self::SINGLE] {
            if path.join(name).is_file() {
                return Self::open_file(&path.join(name));
            }
        }
        let message = format!(
            "expected {} or {} in this folder, found neither",
            Self::SINGLE,
            Self::INDEX
        );
        Err(HeadError::Layout {
            path: path.into(),
            message,
        })
    }

    fn open_file(path: &Path) -> Result<Self, HeadError> {
        if path.extension().is_none_or(|extension| extension != "json") {
            return Ok(Self {
                files: vec![(path.into(), map(path)?)],
                index: None,
            });
        }
        let index = read_index(path)?;
        let mut names: Vec<&PathBuf> = index.values().collect();
        names.sort();
        names.dedup();
        let files = names
            .into_iter()
            .map(|shard| Ok((shard.clone(), map(shard)?)));
        Ok(Self {
            files: files.collect::<Result<_, HeadError>>()?,
            index: Some(index),
        })
    }

    fn tensors(&self) -> Result<Tensors<'_>, HeadError> {
        let mut tensors = BTreeMap::new();
        for (path, mapping) in &self.files {
            let damaged = |e: safetensors::SafeTensorError| HeadError::Safetensors {
                path: path.clone(),
                message: e.to_string(),
            };
            for (name, view) in SafeTensors::deserialize(mapping)
                .map_err(damaged)?
                .tensors()
            {
                if self
                    .index
                    .as_ref()
                    .is_none_or(|index| index.get(&name) == Some(path))
                {
                    tensors.insert(name, view);
                }
            }
        }
        Ok(Tensors(tensors))
    }
}

/// The tensors of all shards, by name.
struct Tensors<'a>(BTreeMap<String, TensorView<'a>>);

impl Tensors<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn any_under(&self, prefix: &str) -> bool {
        self.0
            .range(prefix.to_string()..)
            .next()
            .is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// One tensor, as bf16.
    fn read(
        &self,
        name: &str,
        shape: &[usize],
        hint: &'static str,
    ) -> Result<Vec<bf16>, HeadError> {
        let Some(view) = self.0.get(name) else {
            return Err(HeadError::Missing {
                tensor: name.into(),
                expected: shape.to_vec(),
            });
        };
        if view.shape() != shape {
            let (expected, got) = (shape.to_vec(), view.shape().to_vec());
            return Err(HeadError::Shape {
                tensor: name.into(),
                expected,
                got,
                hint,
            });
        }
        let bytes = view.data();
        let pairs = bytes.as_chunks::<2>().0.iter();
        match view.dtype() {
            Dtype::BF16 => Ok(pairs.map(|b| bf16::from_le_bytes(*b)).collect()),
            Dtype::F16 => Ok(pairs
                .map(|b| bf16::from_f32(f16::from_le_bytes(*b).to_f32()))
                .collect()),
            Dtype::F32 => {
                let words = bytes.as_chunks::<4>().0.iter();
                Ok(words
                    .map(|b| bf16::from_f32(f32::from_le_bytes(*b)))
                    .collect())
            }
            other => Err(HeadError::Dtype {
                tensor: name.into(),
                got: format!("{other:?}"),
            }),
        }
    }
}

/// Reads a shard index: tensor name -> file, all files in the index's own folder.
fn read_index(path: &Path) -> Result<BTreeMap<String, PathBuf>, HeadError> {
    let json_error = |message: String| HeadError::Json {
        file: path.into(),
        message,
    };
    let root: Value = serde_json::from_str(&read(path)?).map_err(|e| json_error(e.to_string()))?;
    let map = root.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| json_error("expected an object `weight_map`".into()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    map.iter()
        .map(|(tensor, file)| {
            let file = file.as_str().ok_or_else(|| {
                json_error(format!(
                    "weight_map.{tensor}: expected a file name, got {file}"
                ))
            })?;
            // A downloaded index must not make us open files elsewhere on the machine.
            let mut parts = Path::new(file).components();
            if !matches!(
                (parts.next(), parts.next()),
                (Some(Component::Normal(_)), None)
            ) {
                let message =
                    format!("weight_map.{tensor}: expected a file of this folder, got {file}");
                return Err(HeadError::Layout {
                    path: path.into(),
                    message,
                });
            }
            Ok((tensor.clone(), folder.join(file)))
        })
        .collect()
}

fn read(path: &Path) -> Result<String, HeadError> {
    std::fs::read_to_string(path).map_err(|source| HeadError::Io {
        path: path.into(),
        source,
    })
}

fn map(path: &Path) -> Result<Mmap, HeadError> {
    let io = |source| HeadError::Io {
        path: path.into(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the mapping is read-only and private to this load. It is undefined behaviour only if another process
    // changes the file meanwhile, which no loader of mapped checkpoints can rule out; every value is copied out
    // before the load returns, and any bit pattern is a valid weight.
    unsafe { Mmap::map(&file) }.map_err(io)
}
