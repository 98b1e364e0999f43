"""The decode problem that all programs solve: its inputs, its answer in double precision, and how a program in Python
is timed. problem.hpp says the same for programs in C++."""

import argparse
import json
import time

import numpy as np

QUERY_HEADS, KV_HEADS, WIDTH = 64, 8, 128
GROUP = QUERY_HEADS // KV_HEADS
SCALE = WIDTH**-0.5
POOL_ROWS = 16381  # a prime, so that places spread over all rows
KEY_FACTOR, VALUE_FACTOR = 2654435761, 2246822519
BYTES_PER_TOKEN = 2 * KV_HEADS * WIDTH * 2  # of a 2-byte cache


def exact(numbers):
    """Rounded to numbers that bf16 and f16 both have: fp32 with 8 significant bits, none below f16's normal range."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.abs(rounded) < 2.0**-14, np.float32(0), rounded)


def write(folder, batch, tokens):
    """Writes the inputs. Scores have a deviation of 2, so that many keys count; the key of the newest token points
    to the queries of its group and has some of the weight of most heads, so that an answer without it is far off."""
    random = np.random.default_rng([batch, tokens])
    pool = exact(random.standard_normal((POOL_ROWS, WIDTH)))
    queries = exact(2 * random.standard_normal((batch, QUERY_HEADS, WIDTH)))
    mean = queries.reshape(batch, KV_HEADS, GROUP, WIDTH).mean(axis=2)
    length = 0.75 * np.log(tokens) / (SCALE * 4 * WIDTH / GROUP)
    newest = exact(np.stack([length * mean, random.standard_normal(mean.shape)]))
    for name, numbers in [("pool", pool), ("queries", queries), ("newest", newest)]:
        numbers.tofile(f"{folder}/{name}.f32")


class Inputs:
    def __init__(self, folder, batch, tokens):
        self.batch, self.tokens = batch, tokens
        read = lambda name, shape: np.fromfile(f"{folder}/{name}.f32", np.float32).reshape(shape)
        self.pool = read("pool", (-1, WIDTH))
        self.queries = read("queries", (batch, QUERY_HEADS, WIDTH))
        self.newest_key, self.newest_value = read("newest", (2, batch, KV_HEADS, WIDTH))

    def rows(self, factor, cache, request):
        """The pool rows of all tokens but the newest: [tokens - 1][heads]."""
        token, head = np.ogrid[: self.tokens - 1, :KV_HEADS]
        place = ((cache * self.batch + request) * self.tokens + token) * KV_HEADS + head
        return ((place.astype(np.int64) * factor) >> 13) % len(self.pool)

    def cache(self, index, convert):
        """Keys and values as two arrays [batch][heads][tokens][width]; convert makes elements of fp32 numbers."""
        pool = convert(self.pool)
        shape = (self.batch, KV_HEADS, self.tokens, WIDTH)
        planes = []
        for factor, newest in [(KEY_FACTOR, self.newest_key), (VALUE_FACTOR, self.newest_value)]:
            plane = np.empty(shape, pool.dtype)
            for request in range(self.batch):
                rows = self.rows(factor, index, request)
                for head in range(KV_HEADS):
                    np.take(pool, rows[:, head], axis=0, out=plane[request, head, :-1], mode="clip")
            plane[:, :, -1] = convert(newest)
            planes.append(plane)
        return planes

    def answers(self, cache):
        """The exact attention over one cache in double precision, [batch][query heads][width], and what it would be
        without the newest token. All keys and values are rows of the pool, so that few scores are computed, and the
        weights of equal values add up."""
        pool = self.pool.astype(np.float64)
        whole, without = np.empty((2, self.batch, QUERY_HEADS, WIDTH))
        for request in range(self.batch):
            queries = self.queries[request].astype(np.float64) * SCALE
            of_pool = queries @ pool.T
            keys = self.rows(KEY_FACTOR, cache, request)
            values = self.rows(VALUE_FACTOR, cache, request)
            weights = np.empty((QUERY_HEADS, len(pool)))
            newest = np.empty(QUERY_HEADS)
            for head in range(QUERY_HEADS):
                kv = head // GROUP
                scores = of_pool[head][keys[:, kv]]
                last = queries[head] @ self.newest_key[request, kv]
                most = scores.max(initial=last)
                weights[head] = np.bincount(values[:, kv], np.exp(scores - most), len(pool))
                newest[head] = np.exp(last - most)
            sums = weights @ pool
            totals = weights.sum(axis=1)
            last_values = np.repeat(self.newest_value[request], GROUP, axis=0)
            whole[request] = (sums + newest[:, None] * last_values) / (totals + newest)[:, None]
            without[request] = sums / np.maximum(totals, 1e-300)[:, None]
        return whole, without


def bf16_bits(numbers):
    """bf16 as 16-bit words, of numbers that bf16 has."""
    return (np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def parse():
    parser = argparse.ArgumentParser()
    for name in ["folder", "type", "out"]:
        parser.add_argument("--" + name, required=True)
    for name in ["batch", "tokens", "caches", "threads"]:
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    return parser.parse_args()


def run(given, name, step, output):
    """Decodes once over every cache, and writes all outputs as fp32; then times steps over caches in turn: at least
    three, unless they are very slow. step(cache) decodes; output() is what it left, as fp32 numbers of
    [batch][query heads][width]. Prints JSON."""
    with open(f"{given.folder}/{given.out}", "wb") as file:
        for cache in range(given.caches):
            step(cache)
            result = np.ascontiguousarray(output(), np.float32)
            assert result.size == given.batch * QUERY_HEADS * WIDTH
            file.write(result.tobytes())
    took = []
    start = time.perf_counter()
    while time.perf_counter() - start < (10 * given.seconds if len(took) < 3 else given.seconds):
        cache = len(took) % given.caches
        before = time.perf_counter()
        step(cache)
        took.append(time.perf_counter() - before)
    took.sort()
    print(json.dumps({"name": name, "seconds": took[len(took) // 2], "fastest": took[0], "steps": len(took)}))
