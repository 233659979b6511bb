//! The refiner's sizes, and where a checkpoint's config.json says them.

use serde_json::{Map, Value};

use super::HeadError;
use crate::error::{Error, Result};

/// The sizes of an XPress head and how it is run.
///
/// The letters are those of the rest of the documentation: a block has B slots, a head rank R.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XpressConfig {
    /// V, tokens in the vocabulary of the target and of the head: 1 to 2^20, a multiple of nothing in particular.
    pub vocab_size: usize,
    /// D, width of the block drafter's hidden states: a multiple of 8 up to 65536.
    pub hidden_size: usize,
    /// R, width of the latents: a multiple of 16 up to 512.
    pub rank: usize,
    /// H, hidden width of the SwiGLU: a multiple of 16 up to 2048.
    pub mlp_hidden: usize,
    /// B, slots in a block: the anchor and B - 1 drafted tokens; 2 to 32.
    pub block_size: usize,
    /// K, Jacobi passes unless a call says otherwise. 0 is the bare drafter; passes after the first B - 1 change
    /// nothing.
    pub num_passes: usize,
    /// C, candidates of a slot unless a call says otherwise: the largest base logits, and the only ones that are
    /// refined. More than V is V; 0 is the full vocabulary.
    pub topc: usize,
}

impl XpressConfig {
    /// Largest vocabulary V.
    pub const MAX_VOCAB_SIZE: usize = 1 << 20;
    /// Largest width D of the hidden states.
    pub const MAX_HIDDEN_SIZE: usize = 65536;
    /// Largest rank R.
    pub const MAX_RANK: usize = 512;
    /// Largest hidden width H of the SwiGLU.
    pub const MAX_MLP_HIDDEN: usize = 2048;
    /// Most slots B of a block.
    pub const MAX_BLOCK_SIZE: usize = 32;
    /// Jacobi passes where a checkpoint does not say (vLLM's default).
    pub const DEFAULT_NUM_PASSES: usize = 6;
    /// Candidates where a checkpoint does not say (vLLM's default).
    pub const DEFAULT_TOPC: usize = 512;

    /// Tokens that a block drafts: B - 1.
    pub fn num_draft_tokens(&self) -> usize {
        self.block_size.saturating_sub(1)
    }

    /// Bytes of a head's weights.
    #[cfg(feature = "cuda")]
    pub(crate) fn weight_bytes(&self) -> u64 {
        let [v, d, r] = [self.vocab_size, self.hidden_size, self.rank].map(|size| size as u64);
        let [h, b] = [self.mlp_hidden, self.block_size].map(|size| size as u64);
        2 * r * (2 * v + 2 * d + 3 * r + 3 * h + b * b)
    }

    /// Reads the `config.json` of a checkpoint.
    ///
    /// | field | keys, the first one found counts | if absent |
    /// |---|---|---|
    /// | `vocab_size` | `vocab_size` | error |
    /// | `hidden_size` | `hidden_size` | error |
    /// | `rank` | `xpress_rank` | 256 |
    /// | `mlp_hidden` | `xpress_mlp_hidden`; rank * `xpress_mlp_ratio` (training) | 2 * rank |
    /// | `block_size` | `xpress_block_size`, `block_size` | error |
    /// | `num_passes` | `xpress_num_passes`, `num_jacobi_passes` (training) | 6 |
    /// | `topc` | `xpress_topc`, `xpress_candidate_topc` (old) | 512 |
    ///
    /// A key is looked for at the top level, then in the nested `dflash_config` (the block drafter's) and
    /// `transformer_layer_config` (training checkpoints keep the drafter's sizes there). `null` is absent.
    ///
    /// # Errors
    /// [`HeadError::Json`] for text that is no JSON object; [`HeadError::Config`] for a missing key, one that is no
    /// whole number, `sample_from_anchor: true` (this refiner is trained for blocks whose slot 0 is the anchor) and a
    /// `draft_vocab_size` other than the vocabulary; [`Error::OutOfRange`] for sizes that are not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let json_error = |message: String| HeadError::Json {
            file: "config.json".into(),
            message,
        };
        let root: Map<String, Value> =
            serde_json::from_str(text).map_err(|e| json_error(e.to_string()))?;
        let keys = Keys(&root);

        if keys.flag("sample_from_anchor")? {
            return Err(HeadError::Config {
                key: "sample_from_anchor".into(),
                expected: "false: slot 0 of a block is the anchor and slots 1.. are drafted".into(),
                got: "true".into(),
            }
            .into());
        }
        let vocab_size = keys.required(&["vocab_size"])?;
        let rank = keys.number(&["xpress_rank"])?.unwrap_or(256);
        let mlp_hidden = match keys.number(&["xpress_mlp_hidden"])? {
            Some(hidden) => hidden,
            None => rank.saturating_mul(keys.number(&["xpress_mlp_ratio"])?.unwrap_or(2)),
        };
        if let Some(draft_vocab) = keys.number(&["draft_vocab_size"])?
            && draft_vocab != vocab_size
        {
            return Err(HeadError::Config {
                key: "draft_vocab_size".into(),
                expected: format!("{vocab_size}, the target's vocabulary"),
                got: draft_vocab.to_string(),
            }
            .into());
        }
        let config = XpressConfig {
            vocab_size,
            hidden_size: keys.required(&["hidden_size"])?,
            rank,
            mlp_hidden,
            block_size: keys.required(&["xpress_block_size", "block_size"])?,
            num_passes: keys
                .number(&["xpress_num_passes", "num_jacobi_passes"])?
                .unwrap_or(Self::DEFAULT_NUM_PASSES),
            topc: keys
                .number(&["xpress_topc", "xpress_candidate_topc"])?
                .unwrap_or(Self::DEFAULT_TOPC),
        };
        config.validate()?;
        Ok(config)
    }

    /// Checks every size against its range.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<()> {
        let range = |field: &str, value: usize, step: usize, min: usize, max: usize| {
            if value.is_multiple_of(step) && (min..=max).contains(&value) {
                return Ok(());
            }
            let expected = match step {
                1 => format!("{min} to {max}"),
                _ => format!("a multiple of {step} from {min} to {max}"),
            };
            let hint = "a head of this size is not supported";
            Err(Error::out_of_range(
                format!("XpressConfig.{field}"),
                expected,
                value,
                hint,
            ))
        };
        range("vocab_size", self.vocab_size, 1, 1, Self::MAX_VOCAB_SIZE)?;
        range("hidden_size", self.hidden_size, 8, 8, Self::MAX_HIDDEN_SIZE)?;
        range("rank", self.rank, 16, 16, Self::MAX_RANK)?;
        range("mlp_hidden", self.mlp_hidden, 16, 16, Self::MAX_MLP_HIDDEN)?;
        range("block_size", self.block_size, 1, 2, Self::MAX_BLOCK_SIZE)
    }
}

/// The places of a config.json where a key may stand.
struct Keys<'a>(&'a Map<String, Value>);

impl Keys<'_> {
    const NESTED: [&'static str; 2] = ["dflash_config", "transformer_layer_config"];

    fn find(&self, key: &str) -> Option<&Value> {
        let nested = Self::NESTED
            .iter()
            .filter_map(|name| self.0.get(*name)?.as_object());
        std::iter::once(self.0)
            .chain(nested)
            .filter_map(|map| map.get(key))
            .find(|v| !v.is_null())
    }

    fn number(&self, keys: &[&str]) -> Result<Option<usize>, HeadError> {
        let Some((key, value)) = keys.iter().find_map(|key| Some((*key, self.find(key)?))) else {
            return Ok(None);
        };
        match value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
        {
            Some(number) => Ok(Some(number)),
            None => Err(HeadError::Config {
                key: key.into(),
                expected: "a whole number of 0 or more".into(),
                got: value.to_string(),
            }),
        }
    }

    fn required(&self, keys: &[&str]) -> Result<usize, HeadError> {
        self.number(keys)?.ok_or_else(|| HeadError::Config {
            key: keys[0].into(),
            expected: "a whole number".into(),
            got: "no such key".into(),
        })
    }

    /// True if the key is true at any level.
    fn flag(&self, key: &str) -> Result<bool, HeadError> {
        let nested = Self::NESTED
            .iter()
            .filter_map(|name| self.0.get(*name)?.as_object());
        for map in std::iter::once(self.0).chain(nested) {
            match map.get(key) {
                None | Some(Value::Null | Value::Bool(false)) => {}
                Some(Value::Bool(true)) => return Ok(true),
                Some(other) => {
                    return Err(HeadError::Config {
                        key: key.into(),
                        expected: "true or false".into(),
                        got: other.to_string(),
                    });
                }
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVING: &str = r#"{"architectures": ["Qwen3XPressModel"], "vocab_size": 151936, "hidden_size": 4096,
        "xpress_rank": 256, "xpress_mlp_hidden": 512, "xpress_block_size": 16, "xpress_num_passes": 4,
        "xpress_topc": 0, "sample_from_anchor": false}"#;

    fn with(key: &str, value: Value) -> Result<XpressConfig> {
        let mut root: Map<String, Value> = serde_json::from_str(SERVING).unwrap();
        root.insert(key.into(), value);
        XpressConfig::from_json(&Value::Object(root).to_string())
    }

    fn without(key: &str) -> Result<XpressConfig> {
        with(key, Value::Null)
    }

    #[test]
    fn a_serving_config_is_read() {
        let expected = XpressConfig {
            vocab_size: 151936,
            hidden_size: 4096,
            rank: 256,
            mlp_hidden: 512,
            block_size: 16,
            num_passes: 4,
            topc: 0,
        };
        assert_eq!(XpressConfig::from_json(SERVING).unwrap(), expected);
    }

    #[test]
    fn a_training_config_keeps_the_drafters_sizes_nested() {
        let text = r#"{"speculators_model_type": "xpress", "block_size": 8, "xpress_rank": 128,
            "xpress_mlp_ratio": 4, "num_jacobi_passes": 3, "draft_vocab_size": 1000, "sample_from_anchor": false,
            "transformer_layer_config": {"vocab_size": 1000, "hidden_size": 64, "block_size": 99}}"#;
        let config = XpressConfig::from_json(text).unwrap();
        assert_eq!(
            (config.vocab_size, config.hidden_size, config.block_size),
            (1000, 64, 8)
        );
        assert_eq!(
            (config.rank, config.mlp_hidden, config.num_passes),
            (128, 512, 3)
        );
    }

    #[test]
    fn absent_keys_take_the_defaults_and_old_keys_count() {
        let config = without("xpress_topc").unwrap();
        assert_eq!(config.topc, 512);
        assert_eq!(without("xpress_num_passes").unwrap().num_passes, 6);
        assert_eq!(without("xpress_mlp_hidden").unwrap().mlp_hidden, 512);
        assert_eq!(
            with("xpress_candidate_topc", 7.into()).unwrap().topc,
            0,
            "the new key wins"
        );
        let text = SERVING
            .replace("xpress_topc", "xpress_candidate_topc")
            .replace(": 0,", ": 64,");
        assert_eq!(XpressConfig::from_json(&text).unwrap().topc, 64);
        let text = SERVING.replace(
            "\"xpress_block_size\": 16",
            "\"dflash_config\": {\"block_size\": 12}",
        );
        assert_eq!(XpressConfig::from_json(&text).unwrap().block_size, 12);
    }

    #[test]
    fn each_bad_key_is_named() {
        let cases = [
            (
                with("sample_from_anchor", true.into()),
                "sample_from_anchor",
            ),
            (
                with(
                    "dflash_config",
                    serde_json::json!({"sample_from_anchor": true}),
                ),
                "sample_from_anchor",
            ),
            (
                with("sample_from_anchor", "no".into()),
                "sample_from_anchor",
            ),
            (with("draft_vocab_size", 32000.into()), "draft_vocab_size"),
            (without("vocab_size"), "vocab_size"),
            (without("hidden_size"), "hidden_size"),
            (without("xpress_block_size"), "xpress_block_size"),
            (with("xpress_rank", (-16).into()), "xpress_rank"),
            (with("xpress_rank", 1.5.into()), "xpress_rank"),
            (with("xpress_rank", 24.into()), "rank"),
            (with("xpress_rank", 528.into()), "rank"),
            (with("xpress_mlp_hidden", 2064.into()), "mlp_hidden"),
            (with("xpress_block_size", 1.into()), "block_size"),
            (with("xpress_block_size", 33.into()), "block_size"),
            (with("hidden_size", 12.into()), "hidden_size"),
            (with("vocab_size", 0.into()), "vocab_size"),
            (with("vocab_size", ((1 << 20) + 1).into()), "vocab_size"),
        ];
        for (result, key) in cases {
            let text = result.expect_err(key).to_string();
            assert!(text.contains(key), "{text} does not name {key}");
        }
        assert!(XpressConfig::from_json("[]").is_err());
    }
}
