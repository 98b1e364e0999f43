"""Decode by PyTorch's scaled_dot_product_attention on the CPU, over contiguous caches [request][head][token][width].

The eight query heads of a KV head are given as eight query rows of that head, which is the same attention: PyTorch
then reads each key once, where with enable_gqa=True it would read it, or a copy of it, for each query head."""

import numpy as np
import torch

import problem


def main():
    given = problem.parse()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    inputs = problem.Inputs(given.folder, given.batch, given.tokens)
    kind, convert = {
        "bf16": (torch.bfloat16, problem.bf16_bits),
        "f16": (torch.float16, lambda numbers: numbers.astype(np.float16).view(np.uint16)),
    }[given.type]
    tensor = lambda words: torch.from_numpy(words.view(np.int16)).view(kind)
    caches = [[tensor(plane) for plane in inputs.cache(i, convert)] for i in range(given.caches)]
    queries = tensor(convert(inputs.queries)).view(given.batch, problem.KV_HEADS, problem.GROUP, problem.WIDTH)
    result = None

    def step(cache):
        nonlocal result
        result = torch.nn.functional.scaled_dot_product_attention(queries, *caches[cache])

    problem.run(given, "PyTorch " + torch.__version__, step, lambda: result.float().numpy())


main()
