#!/usr/bin/env bash
# Times the drafters beside their peers and writes one record: `cargo xtask bench` without a Rust toolchain. For example:
#   ./bench.sh --peer "python3 DIR/bench_seed.py" --peer "python3 benches/peers/torch_topk.py"
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")"
exec bin/xtask bench --programs bin --parts bench "$@"
