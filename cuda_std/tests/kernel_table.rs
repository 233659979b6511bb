//! What `#[kernel]` makes beside a function.

mod support;

use cuda_std::emu::{Buffer, LaunchConfig, Options};
use cuda_std::{Global, KernelParam, ParamType, kernel};

const THREADS: u32 = 32;

/// Kernel with every type of parameter.
///
/// # Safety
/// - `out` is valid for 6 elements.
#[kernel(threads = 2 * THREADS, min_blocks = 3)]
pub unsafe fn every_type(
    out: *mut i64,
    input: *const u16,
    a: i32,
    b: u32,
    mut c: i64,
    d: u64,
    e: f32,
) {
    let out = Global::new(out, 6);
    c -= 1;
    // SAFETY: inside; the same values from all threads, each in turn.
    unsafe {
        if cuda_std::thread::thread_idx_x() == 0 {
            out.st(0, i64::from(Global::new(input, 2).ld(1)));
            for (i, value) in [
                i64::from(a),
                i64::from(b),
                c,
                d as i64,
                i64::from(e.to_bits()),
            ]
            .into_iter()
            .enumerate()
            {
                out.st(i + 1, value);
            }
        }
    }
}

/// # Safety
/// - None.
#[kernel]
unsafe fn bare() {}

#[test]
fn the_table_has_names_types_and_bounds() {
    assert_eq!(EVERY_TYPE.name, "every_type");
    assert_eq!(
        (EVERY_TYPE.threads, EVERY_TYPE.min_blocks),
        (Some(64), Some(3))
    );
    let params: Vec<_> = EVERY_TYPE
        .params
        .iter()
        .map(|param| (param.name, param.ty))
        .collect();
    use ParamType::*;
    let expected = [
        ("out", Ptr),
        ("input", Ptr),
        ("a", I32),
        ("b", U32),
        ("c", I64),
        ("d", U64),
        ("e", F32),
    ];
    assert_eq!(params, expected);
    assert_eq!(expected.map(|(_, ty)| ty.size()), [8, 8, 4, 4, 8, 8, 4]);
    assert_eq!(
        (BARE.threads, BARE.min_blocks, BARE.params.len()),
        (None, None, 0)
    );
}

#[test]
fn arguments_arrive_as_they_were() {
    let out = Buffer::<i64>::uninit(6);
    let input = Buffer::from_slice(&[1u16, 65535]);
    let (a, b, c, d, e) = (-7, u32::MAX, i64::MIN + 1, u64::MAX - 1, -0.1f32);
    let arguments = [
        out.arg(),
        input.arg(),
        a.to_word(),
        b.to_word(),
        c.to_word(),
        d.to_word(),
        e.to_word(),
    ];
    support::run(
        &EVERY_TYPE,
        LaunchConfig::linear(1, 64),
        &arguments,
        &Options::default(),
    )
    .unwrap();
    assert_eq!(
        out.read(),
        [
            65535,
            -7,
            i64::from(u32::MAX),
            i64::MIN,
            -2,
            i64::from(e.to_bits())
        ]
    );
    let error = support::run(
        &EVERY_TYPE,
        LaunchConfig::linear(1, 32),
        &arguments,
        &Options::default(),
    )
    .unwrap_err();
    assert!(error.message.contains("[64, 1, 1]"), "{error}");
}

#[test]
fn device_functions_outside_a_launch_say_so() {
    let payload = std::panic::catch_unwind(cuda_std::thread::thread_idx_x).unwrap_err();
    assert!(
        payload
            .downcast_ref::<&str>()
            .unwrap()
            .contains("cuda_std::emu::launch")
    );
}
