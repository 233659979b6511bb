//! Bad input gives an error that names the argument, the key or the tensor, and leaves the refiner usable.

use safetensors::Dtype;
use serde_json::json;
use specdraft::cpu::CpuXpress;
use specdraft::xpress::{
    BlockView, Blocks, FoldedMixer, Generate, GeneratedStep, HeadError, XpressBackend,
    XpressConfig, XpressHead, XpressLimits, XpressRefiner, bf16,
};
use specdraft::{Error, Result};
use test_support::xpress::{Checkpoint, Tensor, check_bad_input};

#[test]
fn cpu_refuses_bad_input() {
    check_bad_input(&mut |head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));
}

#[test]
fn limits_without_candidates_say_how_to_refine() {
    let config = test_support::xpress::config([50, 16, 32, 48, 4]);
    let head = XpressHead::generate(&config, Generate::Exact, 1).unwrap();
    let limits = XpressLimits {
        max_num_reqs: 2,
        max_topc: 0,
    };
    let mut backend = CpuXpress::new(head, limits).unwrap();
    let step = config.generate_step(2, Generate::Exact, 2).unwrap();
    let error = backend
        .refine(&test_support::xpress::inputs(&step, 2, 5).unwrap())
        .unwrap_err()
        .to_string();
    for part in ["topc", "no candidates", "got 5", "topc 0"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_weight_that_does_not_fit_is_named_with_both_shapes() {
    let shapes = [
        ("w1.weight", vec![50, 32], vec![51, 32]),
        ("w1.weight", vec![50, 32], vec![32, 50]),
        ("down_h.weight", vec![32, 16], vec![16, 32]),
        ("down_g.weight", vec![32, 16], vec![32, 16, 1]),
        ("in_proj.weight", vec![32, 96], vec![96, 32]),
        ("mix.L", vec![32, 4, 4], vec![32, 5, 5]),
        ("mix.L", vec![32, 4, 4], vec![4, 4, 32]),
        ("mlp.gate_proj.weight", vec![48, 32], vec![32, 48]),
        ("mlp.up_proj.weight", vec![48, 32], vec![64, 32]),
        ("mlp.down_proj.weight", vec![32, 48], vec![48, 32]),
        ("w2.weight", vec![50, 32], vec![49, 32]),
    ];
    for (name, expected, got) in shapes {
        let text = refused(|c| c.tensors.insert(prefixed(name), Tensor::zeros(&got)));
        for part in [prefixed(name), format!("{expected:?}"), format!("{got:?}")] {
            assert!(text.contains(&part), "{text} does not say {part}");
        }
        let text = refused(|c| c.tensors.remove(&prefixed(name)));
        let expected = format!(
            "{}: expected shape {expected:?}, got no such tensor",
            prefixed(name)
        );
        assert!(text.contains(&expected), "{text} does not say {expected}");
    }
}

#[test]
fn biases_and_unknown_tensors_of_the_head_are_refused() {
    for name in [
        "w1.bias",
        "down_h.bias",
        "in_proj.bias",
        "mlp.down_proj.bias",
        "w2.bias",
        "norm.weight",
    ] {
        let text = refused(|c| c.tensors.insert(prefixed(name), Tensor::zeros(&[32])));
        assert!(
            text.contains(&prefixed(name)) && text.contains("[32]"),
            "{text}"
        );
    }
    let mut bare = Checkpoint::serving(&head(), "");
    bare.tensors.insert("w2.bias".into(), Tensor::zeros(&[50]));
    let text = XpressHead::load(bare.save().path())
        .unwrap_err()
        .to_string();
    assert!(text.contains("w2.bias"), "{text}");
    let mut training = Checkpoint::training(&head16(), "refiner_head.");
    training
        .tensors
        .insert("refiner_head.mlp_gate.bias".into(), Tensor::zeros(&[16]));
    let text = XpressHead::load(training.save().path())
        .unwrap_err()
        .to_string();
    assert!(text.contains("refiner_head.mlp_gate.bias"), "{text}");
}

#[test]
fn other_types_and_two_heads_are_refused() {
    for dtype in [Dtype::F64, Dtype::I8, Dtype::F8_E4M3] {
        let text = refused(|c| {
            let tensor = c.tensors[&prefixed("w2.weight")].cast(dtype);
            c.tensors.insert(prefixed("w2.weight"), tensor)
        });
        assert!(
            text.contains("w2.weight") && text.contains(&format!("{dtype:?}")),
            "{text}"
        );
    }
    let text = refused(|c| {
        let training = Checkpoint::training(&head(), "refiner_head.");
        c.tensors.extend(training.tensors);
    });
    assert!(
        text.contains("xpress_head.*") && text.contains("refiner_head.*"),
        "{text}"
    );
}

#[test]
fn a_bad_config_is_refused() {
    let keys = [
        ("sample_from_anchor", json!(true)),
        ("vocab_size", json!("many")),
        ("xpress_rank", json!(33)),
        ("xpress_block_size", json!(64)),
        ("xpress_num_passes", json!(-1)),
        ("draft_vocab_size", json!(10)),
    ];
    for (key, value) in keys {
        let text = refused(|c| c.config[key] = value);
        assert!(
            text.contains(key.strip_prefix("xpress_").unwrap_or(key)),
            "{text} does not name {key}"
        );
    }
    // A head of another vocabulary than the config's: the tensor is named.
    let text = refused(|c| c.config["vocab_size"] = json!(60));
    assert!(
        text.contains("w1.weight: expected shape [60, 32], got [50, 32]"),
        "{text}"
    );
}

#[test]
fn damaged_files_are_refused() {
    let good = Checkpoint::serving(&head(), "xpress_head.");
    let check = |path: &std::path::Path, part: &str| {
        let text = XpressHead::load(path).unwrap_err().to_string();
        assert!(text.contains(part), "{text} does not say {part}");
    };
    let folder = good.save();
    check(&folder.path().join("nowhere"), "nowhere");
    check(
        &folder.path().join("no/such/checkpoint"),
        "no/such/checkpoint",
    );
    let model = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&model).unwrap();
    for cut in [0, 1, 8, 100, bytes.len() - 1] {
        std::fs::write(&model, &bytes[..cut]).unwrap();
        check(folder.path(), "model.safetensors");
    }
    std::fs::remove_file(&model).unwrap();
    check(folder.path(), "found neither");
    check(&model, "model.safetensors");
    folder.write("config.json", "{");
    check(folder.path(), "config.json");

    let folder = good.save_sharded();
    let index = "model.safetensors.index.json";
    for text in [
        "",
        "[]",
        "{}",
        r#"{"weight_map": []}"#,
        r#"{"weight_map": {"xpress_head.mix.L": 3}}"#,
    ] {
        folder.write(index, text);
        check(folder.path(), index);
    }
    for file in [
        "../model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        "",
        ".",
    ] {
        let text = json!({ "weight_map": { "xpress_head.mix.L": file } }).to_string();
        folder.write(index, &text);
        check(folder.path(), "expected a file of this folder");
    }
    folder.write(
        index,
        r#"{"weight_map": {"xpress_head.mix.L": "missing.safetensors"}}"#,
    );
    check(folder.path(), "missing.safetensors");
    // An index that leaves a tensor out: it does not count, even though a shard holds it.
    let shard = "model-00001-of-00002.safetensors";
    folder.write(
        index,
        &json!({ "weight_map": { "xpress_head.mix.L": shard } }).to_string(),
    );
    check(folder.path(), "got no such tensor");
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let head = head();
    let with = |edit: &dyn Fn(&mut specdraft::xpress::XpressWeights)| {
        let mut weights = head.weights().clone();
        edit(&mut weights);
        XpressHead::from_parts(head.config().clone(), weights)
            .unwrap_err()
            .to_string()
    };
    let text = with(&|w| w.w2.truncate(5));
    assert!(
        text.contains("w2.weight: expected shape [50, 32], got [5]"),
        "{text}"
    );
    let text = with(&|w| w.gate.push(bf16::ONE));
    assert!(
        text.contains("mlp.gate_proj.weight: expected shape [48, 32], got [1537]"),
        "{text}"
    );
    let mixer = FoldedMixer::from_folded(32, 5, vec![bf16::ZERO; 5 * 5 * 32]).unwrap();
    let text = with(&|w| w.mixer = mixer.clone());
    assert!(
        text.contains("mixer: expected shape [4, 4, 32], got [5, 5, 32]"),
        "{text}"
    );
    let config = XpressConfig {
        rank: 520,
        ..head.config().clone()
    };
    let error = XpressHead::from_parts(config, head.weights().clone()).unwrap_err();
    assert_eq!(error.argument(), Some("XpressConfig.rank"));
    let raw = vec![bf16::ONE; 4 * 4 * 32];
    let error = FoldedMixer::from_folded(32, 4, raw).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Head(HeadError::NotCausal {
                slot: 0,
                reads: 1,
                ..
            })
        ),
        "{error:?}"
    );
}

#[test]
fn the_refiner_refuses_what_does_not_fit_and_stays_usable() {
    let head = head();
    let step = head.config().generate_step(2, Generate::Exact, 5).unwrap();
    let limits = XpressLimits {
        max_num_reqs: 2,
        max_topc: 8,
    };
    let mut refiner = XpressRefiner::cpu(head, limits).unwrap();
    let anchors = [3, 49];
    let before = refiner.refine(&blocks(&step, &anchors)).unwrap();
    let mut refused =
        |argument: &str, result: fn(&mut XpressRefiner, Blocks<'_>) -> Result<Vec<Vec<u32>>>| {
            let error = result(&mut refiner, blocks(&step, &anchors)).unwrap_err();
            assert_eq!(error.argument(), Some(argument), "{error}");
            assert_eq!(
                refiner.refine(&blocks(&step, &anchors)).unwrap(),
                before,
                "after a bad {argument}"
            );
        };
    refused("previous[1]", |r, b| r.refine(&b.previous(&[0, 50])));
    refused("previous", |r, b| r.refine(&b.previous(&[0])));
    refused("seeds[5]", |r, b| {
        r.refine(&b.seeds(&[0, 1, 2, 3, 4, u32::MAX]))
    });
    refused("seeds", |r, b| r.refine(&b.seeds(&[0, 1])));
    refused("topc", |r, b| r.refine(&b.topc(9)));
    let error = refiner.refine(&blocks(&step, &[3, 50])).unwrap_err();
    assert_eq!(error.argument(), Some("anchors[1]"));
    let error = refiner.refine(&blocks(&step, &[3])).unwrap_err();
    assert_eq!(error.argument(), Some("anchors"));
    let three = refiner
        .config()
        .generate_step(3, Generate::Exact, 6)
        .unwrap();
    let error = refiner.refine(&blocks(&three, &[1, 2, 3])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("hidden: expected a length of at most 2 requests, got 3"),
        "{error}"
    );
    assert_eq!(refiner.refine(&blocks(&step, &anchors)).unwrap(), before);
}

#[test]
fn a_view_over_too_little_memory_is_refused() {
    let values = [bf16::ZERO; 11];
    assert!(BlockView::contiguous(&values, 1, 3, 4).is_err());
    assert!(BlockView::contiguous(&values, 1, 2, 4).is_err());
    assert!(BlockView::contiguous(&values, usize::MAX, usize::MAX, usize::MAX).is_err());
}

fn blocks<'a>(step: &'a GeneratedStep, anchors: &'a [u32]) -> Blocks<'a> {
    Blocks::new(step.base().unwrap(), step.hidden().unwrap(), anchors)
}

/// What loading says of a good checkpoint after one edit.
fn refused<T>(edit: impl FnOnce(&mut Checkpoint) -> T) -> String {
    let mut checkpoint = Checkpoint::serving(&head(), "xpress_head.");
    XpressHead::load(checkpoint.save().path()).expect("a good checkpoint");
    edit(&mut checkpoint);
    let single = XpressHead::load(checkpoint.save().path())
        .unwrap_err()
        .to_string();
    let sharded = XpressHead::load(checkpoint.save_sharded().path())
        .unwrap_err()
        .to_string();
    assert_eq!(single, sharded);
    single
}

fn prefixed(name: &str) -> String {
    format!("xpress_head.{name}")
}

fn head() -> XpressHead {
    generated(32, 48)
}

/// A head whose MLP has a whole multiple of the rank, as training has it.
fn head16() -> XpressHead {
    generated(16, 32)
}

fn generated(rank: usize, mlp_hidden: usize) -> XpressHead {
    let config = XpressConfig {
        vocab_size: 50,
        hidden_size: 16,
        rank,
        mlp_hidden,
        block_size: 4,
        num_passes: 3,
        topc: 0,
    };
    XpressHead::generate(&config, Generate::Exact, 7).unwrap()
}
