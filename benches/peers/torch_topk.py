"""Times torch.topk on the rows that select takes its candidates from: [requests * 15, 151936] of bf16, the 512 largest.

    python3 benches/peers/torch_topk.py > topk.jsonl

Prints one JSON object a line, with the names of `select`'s peer in the XPress benchmark: median microseconds of a call in a replayed
CUDA graph, its results unsorted, as select needs no order by value.
"""

import json
import statistics

import torch

SLOTS, VOCABULARY, CANDIDATES = 15, 151936, 512
INNER, REPLAYS = 20, 30


def graph_us(call):
    """Microseconds of one call, as the median over replays of a graph of INNER calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(INNER):
            call()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / INNER)
    return statistics.median(times)


def main():
    print(json.dumps({"case": "env", "peer": "torch.topk", "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}))
    for requests in (1, 2, 4, 8, 16, 32, 64, 128):
        torch.manual_seed(0)
        logits = torch.randn(requests * SLOTS, VOCABULARY, dtype=torch.bfloat16, device="cuda")
        us = graph_us(lambda: torch.topk(logits, CANDIDATES, dim=-1, sorted=False))
        case = f"topk n={requests} B={SLOTS + 1} R=256 H=512 V={VOCABULARY} C={CANDIDATES}"
        print(json.dumps({"case": case, "us": round(us, 3)}), flush=True)


if __name__ == "__main__":
    main()
