"""Times ArcticInference's suffix tree and specdraft's CPU drafter on the same conversations, both on one thread, in one run.

    python3 benches/peers/arctic_suffix.py CONVERSATIONS.jsonl[.xz] VOCABULARY.tiktoken target/release/specdraft

The protocol is the one of `specdraft replay` (docs/replay.md). Needs Python's `tiktoken` and ArcticInference's module
`arctic_inference.suffix_decoding` (of its source distribution, only `csrc/suffix_decoding` has to be built, with cmake and
nanobind; no CUDA), both on PYTHONPATH. VOCABULARY is o200k_base's, as the crate tiktoken-rs carries it in `assets/`.

Prints one JSON object: microseconds a propose, on average, with what each drafter got accepted. The peer is called as
vLLM calls it, through its Python class; its own figure `native_us` leaves the class's bookkeeping out: the two searches (the request's
tree and the global tree) timed alone.
"""

import json
import lzma
import subprocess
import sys
import time

import numpy as np
import tiktoken
import tiktoken.load
from arctic_inference.suffix_decoding.cache import SuffixDecodingCache

K, DEPTH, MAX_LEN = 8, 24, 32768
# o200k_base's rule for cutting text into words, as tiktoken publishes it with the vocabulary.
LETTER_UPPER, LETTER_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = "|".join([
    r"[^\r\n\p{L}\p{N}]?" + LETTER_UPPER + "*" + LETTER_LOWER + "+" + SUFFIX,
    r"[^\r\n\p{L}\p{N}]?" + LETTER_UPPER + "+" + LETTER_LOWER + "*" + SUFFIX,
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])


def turns(path, encode):
    """(prompt, response) of every assistant turn, cut as the replay cuts them."""
    opened = lzma.open if path.endswith(".xz") else open
    end, newline = encode("<|im_end|>"), encode("\n")
    for line in opened(path, "rt", encoding="utf-8"):
        tokens = []
        for message in json.loads(line)["messages"]:
            tokens += encode(f"<|im_start|>{message['role']}\n")
            content = encode(message["content"])
            if message["role"] == "assistant" and content:
                response = (content + end)[: MAX_LEN - 1]
                yield tokens[-(MAX_LEN - len(response)):], response
            tokens += content + end + newline


def replay(conversations):
    cache = SuffixDecodingCache(max_tree_depth=DEPTH)
    calls = accepted = drafted = 0
    spent = native = 0.0
    for request, (prompt, response) in enumerate(conversations):
        prompt, whole = np.array(prompt, np.int32), np.array(prompt + response, np.int32)
        cache.start_request(request, prompt)
        at = len(prompt) + 1
        cache.add_active_response(request, whole[at - 1:at])
        while at < len(whole):
            context = whole[max(0, at - DEPTH):at]
            start = time.perf_counter()
            draft = cache.speculate(request, context, max_spec_tokens=K, max_spec_factor=1.0, min_token_prob=0.1)
            middle = time.perf_counter()
            for tree in (cache._local_trees[request], cache._global_tree):
                tree.speculate_ndarray(context, K, 1.0, 0.0, 0.1, False)
            native += time.perf_counter() - middle
            spent += middle - start
            taken = 0
            while taken < len(draft.token_ids) and at + taken < len(whole) and draft.token_ids[taken] == whole[at + taken]:
                taken += 1
            calls, accepted, drafted = calls + 1, accepted + taken, drafted + len(draft.token_ids)
            step = min(taken + 1, len(whole) - at)
            cache.add_active_response(request, whole[at:at + step])
            at += step
        cache.stop_request(request)
    return {"calls": calls, "accepted": accepted, "drafted": drafted,
            "us": round(spent * 1e6 / calls, 3), "native_us": round(native * 1e6 / calls, 3)}


def main():
    path, vocabulary, program = sys.argv[1:4]
    encoding = tiktoken.Encoding("o200k_base", pat_str=WORDS, special_tokens={},
                                 mergeable_ranks=tiktoken.load.load_tiktoken_bpe(vocabulary))
    peer = replay(list(turns(path, encoding.encode_ordinary)))
    output = subprocess.run([program, "replay", path, "--backend", "cpu", "--json", "--k", str(K), "--depth", str(DEPTH)],
                            check=True, capture_output=True, text=True).stdout
    ours = json.loads(output)
    us = ours["propose_us"]["mean"]
    print(json.dumps({"case": f"propose on {path} K={K} depth={DEPTH}", "arctic": peer,
                      "specdraft": {"calls": ours["steps"], "accepted": ours["accepted"], "drafted": ours["drafted"], "us": us},
                      "ratio": round(peer["us"] / us, 2), "native_ratio": round(peer["native_us"] / us, 2)}))


if __name__ == "__main__":
    main()
