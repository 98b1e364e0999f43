"""Decode by OpenVINO's PagedAttentionExtension on the CPU, over shuffled pages of [block][head][32 tokens][width]. A
step writes the newest token into its page and attends.

The operation is not in OpenVINO's published operation sets: its own transformation of models puts it in, with the
inputs and the runtime information that this program gives it by hand. Its inputs after the page table are settings, all
left at nothing, in the order of release 2026.4; a release that takes others refuses them, and the run says so."""

import os

os.environ["OPENVINO_TELEMETRY_OPT_OUT"] = "1"

import numpy as np
import openvino
from openvino import Type, opset13
from openvino.op import _PagedAttentionExtension

import problem

PAGE = 32  # the CPU plugin's own


def settings():
    """The inputs behind the page table, all but one constants: scale and no window, slopes, rotation, sparsity,
    sinks, eviction, token types or query masks."""
    none = lambda kind, rank=1: opset13.constant(np.zeros((0,) * rank, kind))
    number = lambda value, kind: opset13.constant(np.array(value, kind))
    return [
        number(problem.SCALE, np.float32),
        number(0, np.int32),  # sliding window
        none(np.float32),  # alibi slopes
        parameter("max_context_len", Type.i32, []),
        none(np.int32),  # score aggregation window
        *(none(np.int32), none(np.int32), none(np.float32)),  # rotated blocks, deltas, table
        *(none(np.float32), number(0, np.int32), number(0, np.int32)),  # sparse attention
        none(np.float32, 4),  # sinks
        *(number(0, np.int32), none(np.int32), none(np.int32), none(np.int32)),  # eviction
        none(np.int32),  # token types
        *(none(np.uint8), none(np.int32)),  # masks between queries
    ]


def parameter(name, kind, shape):
    made = opset13.parameter(shape, kind, name)
    made.output(0).set_names({name})
    return made


def compiled(given):
    hidden, kv_hidden = problem.QUERY_HEADS * problem.WIDTH, problem.KV_HEADS * problem.WIDTH
    rows = [parameter(name, Type.f32, [-1, size]) for name, size in [("q", hidden), ("k", kv_hidden), ("v", kv_hidden)]]
    caches = [parameter(name, Type.dynamic, [-1, problem.KV_HEADS, -1, problem.WIDTH]) for name in ["keys", "values"]]
    table = [
        parameter(name, Type.i32, [-1])
        for name in ["past_lens", "subsequence_begins", "block_indices", "block_indices_begins"]
    ]
    nodes = rows + caches + table + settings()
    attention = _PagedAttentionExtension([node.output(0) for node in nodes])
    attention.get_rt_info()["write_kv_cache"] = True
    for side in "kv":
        attention.get_rt_info()[side + "_head_size"] = problem.WIDTH
        attention.get_rt_info()[f"num_{side}_heads"] = problem.KV_HEADS
    parameters = [node for node in nodes if node.get_type_name() == "Parameter"]
    model = openvino.Model([attention.output(0)], parameters, "decode")
    return openvino.Core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": given.type,
            "KV_CACHE_PRECISION": given.type,
            "INFERENCE_NUM_THREADS": given.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        },
    )


def paged(plane, ids):
    """[request][head][token][width] as pages."""
    requests, heads, tokens, width = plane.shape
    pages = np.zeros((len(ids), heads, PAGE, width), plane.dtype)
    for request in range(requests):
        columns = len(ids) // requests
        for column in range(columns):
            block = plane[request, :, column * PAGE : (column + 1) * PAGE]
            pages[ids[request * columns + column], :, : block.shape[1]] = block
    return pages


def main():
    given = problem.parse()
    kind, convert = {
        "bf16": (Type.bf16, problem.bf16_bits),
        "f16": (Type.f16, lambda numbers: numbers.astype(np.float16)),
    }[given.type]
    inputs = problem.Inputs(given.folder, given.batch, given.tokens)
    model = compiled(given)
    assert list(model.input("keys").partial_shape)[2] == PAGE and model.input("keys").element_type == kind
    columns = -(-given.tokens // PAGE)
    ids = np.random.default_rng(1).permutation(given.batch * columns).astype(np.int32)

    numbers = lambda values: openvino.Tensor(np.ascontiguousarray(values, np.int32))
    row = lambda array: openvino.Tensor(array.reshape(given.batch, -1))
    shared = {
        "q": row(inputs.queries),
        "k": row(inputs.newest_key),
        "v": row(inputs.newest_value),
        "past_lens": numbers(np.full(given.batch, given.tokens - 1)),
        "subsequence_begins": numbers(np.arange(given.batch + 1)),
        "block_indices": numbers(ids),
        "block_indices_begins": numbers(np.arange(given.batch + 1) * columns),
        "max_context_len": openvino.Tensor(np.array(given.tokens, np.int32)),
    }
    requests, kept = [], []
    for i in range(given.caches):
        request = model.create_infer_request()
        for name, tensor in shared.items():
            request.set_tensor(name, tensor)
        for name, plane in zip(["keys", "values"], inputs.cache(i, convert)):
            pages = paged(plane, ids)
            kept.append(pages)
            request.set_tensor(name, openvino.Tensor(pages, pages.shape, kind))
        requests.append(request)
    done = None

    def step(cache):
        nonlocal done
        done = requests[cache]
        done.infer()

    problem.run(given, "OpenVINO " + openvino.__version__.split("-")[0], step, lambda: done.get_output_tensor(0).data)


main()
