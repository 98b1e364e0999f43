"""Decode by ONNX Runtime's com.microsoft.GroupQueryAttention on the CPU, over contiguous caches
[request][head][token][width]. A step writes the newest token into the cache, which is input and output in one, and
attends."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import problem


def model(kind):
    """One node: packed rows of one new token a request, and the cache in and out."""
    hidden, kv_hidden = problem.QUERY_HEADS * problem.WIDTH, problem.KV_HEADS * problem.WIDTH
    value = helper.make_tensor_value_info
    cache = ["batch", problem.KV_HEADS, "tokens", problem.WIDTH]
    node = helper.make_node(
        "GroupQueryAttention",
        ["query", "key", "value", "past_key", "past_value", "last", "total"],
        ["output", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=problem.QUERY_HEADS,
        kv_num_heads=problem.KV_HEADS,
    )
    inputs = [
        value("query", kind, ["batch", 1, hidden]),
        value("key", kind, ["batch", 1, kv_hidden]),
        value("value", kind, ["batch", 1, kv_hidden]),
        value("past_key", kind, cache),
        value("past_value", kind, cache),
        value("last", TensorProto.INT32, ["batch"]),  # of each request, its length less one
        value("total", TensorProto.INT32, [1]),  # the longest request's length
    ]
    outputs = [
        value("output", kind, ["batch", 1, hidden]),
        value("present_key", kind, cache),
        value("present_value", kind, cache),
    ]
    made = helper.make_model(
        helper.make_graph([node], "decode", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
    )
    made.ir_version = 8
    return made.SerializeToString()


def main():
    given = problem.parse()
    kind, convert = {
        "f16": (TensorProto.FLOAT16, lambda numbers: numbers.astype(np.float16)),
        "f32": (TensorProto.FLOAT, lambda numbers: numbers),
    }[given.type]
    inputs = problem.Inputs(given.folder, given.batch, given.tokens)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = given.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model(kind), options, providers=["CPUExecutionProvider"])

    value = lambda array: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    row = lambda array: value(convert(array).reshape(given.batch, 1, -1))
    shared = {
        "query": row(inputs.queries),
        "key": row(inputs.newest_key),
        "value": row(inputs.newest_value),
        "last": value(np.full(given.batch, given.tokens - 1, np.int32)),
        "total": value(np.array([given.tokens], np.int32)),
    }
    output = row(np.zeros_like(inputs.queries))
    bindings = []
    for i in range(given.caches):
        binding = session.io_binding()
        for name, bound in shared.items():
            binding.bind_ortvalue_input(name, bound)
        for name, plane in zip(["key", "value"], inputs.cache(i, convert)):
            bound = value(plane)
            binding.bind_ortvalue_input("past_" + name, bound)
            binding.bind_ortvalue_output("present_" + name, bound)
        binding.bind_ortvalue_output("output", output)
        bindings.append(binding)
    name = "ONNX Runtime " + onnxruntime.__version__
    problem.run(given, name, lambda cache: session.run_with_iobinding(bindings[cache]), output.numpy)


main()
