//! Loading an XPress head: every form in which a checkpoint may hold it gives the same weights.

use safetensors::Dtype;
use specdraft::xpress::{Generate, XpressConfig, XpressHead, bf16};
use test_support::xpress::{Checkpoint, Tensor};

#[test]
fn serving_and_training_names_load_alike() {
    let head = head();
    let forms = [
        Checkpoint::serving(&head, "xpress_head."),
        Checkpoint::serving(&head, ""),
        Checkpoint::training(&head, "refiner_head."),
        Checkpoint::training(&head, ""),
    ];
    for form in forms {
        let folder = form.save();
        assert_eq!(XpressHead::load(folder.path()).unwrap(), head);
    }
}

#[test]
fn a_folder_its_file_and_its_index_load_alike() {
    let head = head();
    let checkpoint = Checkpoint::serving(&head, "xpress_head.");
    let single = checkpoint.save();
    assert_eq!(
        XpressHead::load(single.path().join("model.safetensors")).unwrap(),
        head
    );
    let sharded = checkpoint.save_sharded();
    assert_eq!(XpressHead::load(sharded.path()).unwrap(), head);
    let index = sharded.path().join("model.safetensors.index.json");
    assert_eq!(XpressHead::load(&index).unwrap(), head);
    assert_eq!(
        XpressHead::load_with(&index, head.config().clone()).unwrap(),
        head
    );
}

#[test]
fn f16_and_f32_are_converted_once() {
    // Small dyadic numbers are the same in every type.
    let head = head();
    for dtype in [Dtype::F16, Dtype::F32] {
        let mut checkpoint = Checkpoint::serving(&head, "xpress_head.");
        checkpoint.cast(dtype);
        assert_eq!(
            XpressHead::load(checkpoint.save().path()).unwrap(),
            head,
            "{dtype:?}"
        );
    }
}

#[test]
fn f32_is_rounded_to_nearest_even_before_the_mixer_is_folded() {
    let head = head();
    let &XpressConfig {
        vocab_size: v,
        rank: r,
        block_size: b,
        ..
    } = head.config();
    let step = 1.0 / 128.0;
    let mut checkpoint = Checkpoint::serving(&head, "xpress_head.");
    let mut w2 = vec![0.0; v * r];
    w2[..5].copy_from_slice(&[
        1.0 + step / 2.0,
        1.0 + step * 1.5,
        1.0 + step * 0.51,
        f32::NAN,
        3.4e38,
    ]);
    checkpoint
        .tensors
        .insert("xpress_head.w2.weight".into(), Tensor::f32(&w2, &[v, r]));
    // Half a step and a little that bf16 drops: folded first it would be just above a tie, as bf16 it is the tie.
    let mut mixer = vec![0.0; r * b * b];
    mixer[0] = step / 2.0 + step / 4096.0;
    checkpoint
        .tensors
        .insert("xpress_head.mix.L".into(), Tensor::f32(&mixer, &[r, b, b]));
    let loaded = XpressHead::load(checkpoint.save().path()).unwrap();
    let got: Vec<f32> = loaded.weights().w2[..5]
        .iter()
        .map(|w| w.to_f32())
        .collect();
    assert_eq!(got[..3], [1.0, 1.0 + 2.0 * step, 1.0 + step]);
    assert!(got[3].is_nan() && got[4] == f32::INFINITY, "{got:?}");
    assert_eq!(loaded.weights().mixer.row(0, 0)[0], bf16::ONE);
}

#[test]
fn what_lies_above_the_diagonal_is_dropped() {
    let head = head();
    let &XpressConfig {
        rank: r,
        block_size: b,
        ..
    } = head.config();
    let mut checkpoint = Checkpoint::serving(&head, "xpress_head.");
    let mixer = [bf16::NAN].repeat(r * b * b);
    checkpoint
        .tensors
        .insert("xpress_head.mix.L".into(), Tensor::bf16(&mixer, &[r, b, b]));
    let loaded = XpressHead::load(checkpoint.save().path()).unwrap();
    for slot in 0..b {
        for reads in 0..b {
            let row = loaded.weights().mixer.row(slot, reads);
            assert!(
                row.iter().all(|l| l.is_nan() == (reads <= slot)),
                "{slot} reads {reads}"
            );
        }
    }
}

#[test]
fn the_drafters_own_tensors_are_passed_over() {
    let head = head();
    let mut checkpoint = Checkpoint::serving(&head, "xpress_head.");
    let others = [
        "layers.0.mlp.gate_proj.weight",
        "layers.0.self_attn.q_proj.bias",
        "fc.weight",
        "fc.bias",
        "norm.weight",
        "t2d",
        "d2t",
        "mask_embedding",
        "w1.bias",
        "xpress_head.mask_embedding",
        "xpress_head.mix.causal_tril",
    ];
    for name in others {
        checkpoint
            .tensors
            .insert(name.into(), Tensor::zeros(&[3, 5]).cast(Dtype::I64));
    }
    assert_eq!(XpressHead::load(checkpoint.save().path()).unwrap(), head);
    assert_eq!(
        XpressHead::load(checkpoint.save_sharded().path()).unwrap(),
        head
    );
}

#[test]
fn a_loaded_head_knows_its_target() {
    let head = head();
    head.expect_target(90, 4).unwrap();
    let text = head.expect_target(91, 4).unwrap_err().to_string();
    assert!(
        text.contains("w2.weight: expected shape [91, 32], got [90, 32]"),
        "{text}"
    );
    let text = head.expect_target(90, 5).unwrap_err().to_string();
    assert!(
        text.contains("mix.L: expected shape [32, 6, 6], got [32, 5, 5]"),
        "{text}"
    );
    assert!(head.expect_target(90, usize::MAX).is_err());
}

/// A head of small dyadic numbers.
fn head() -> XpressHead {
    let config = XpressConfig {
        vocab_size: 90,
        hidden_size: 24,
        rank: 32,
        mlp_hidden: 64,
        block_size: 5,
        num_passes: 3,
        topc: 16,
    };
    XpressHead::generate(&config, Generate::Exact, 11).unwrap()
}
