"""Answers requests with ONNX Runtime, for ever by default; the lines with autotune's name connect it."""

import argparse
import itertools

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import autotune

FEATURES, WIDTH, LAYERS, ANSWERS = 256, 512, 6, 16


def model(rng):
    """Linear layers, each scaled and shifted as a batch norm is at inference, with dropout left in."""
    nodes, weights, last = [], [], "x"
    sizes = [FEATURES, *[WIDTH] * LAYERS, ANSWERS]
    for i, (m, n) in enumerate(itertools.pairwise(sizes)):
        made = {
            f"w{i}": rng.normal(size=(m, n)) * np.sqrt(2 / m),
            f"b{i}": rng.normal(size=n) * 0.1,
            f"scale{i}": rng.uniform(0.5, 1.5, size=n),
            f"shift{i}": rng.normal(size=n) * 0.1,
        }
        weights += [numpy_helper.from_array(a.astype(np.float32), name) for name, a in made.items()]
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"matmul{i}"]),
            helper.make_node("Add", [f"matmul{i}", f"b{i}"], [f"add{i}"]),
            helper.make_node("Mul", [f"add{i}", f"scale{i}"], [f"scaled{i}"]),
            helper.make_node("Add", [f"scaled{i}", f"shift{i}"], [f"shifted{i}"]),
            helper.make_node("Relu", [f"shifted{i}"], [f"relu{i}"]),
            helper.make_node("Dropout", [f"relu{i}"], [f"out{i}"]),
        ]
        last = f"out{i}"
    graph = helper.make_graph(
        nodes,
        "answers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", ANSWERS])],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def session(blob, level, threads):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = threads
    return ort.InferenceSession(blob, options, providers=["CPUExecutionProvider"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, help="then end; for ever where it is not given")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    blob = model(rng)
    batch = autotune.value("batch", 4)
    answer = session(blob, autotune.value("graph", "ORT_DISABLE_ALL"), autotune.value("intra_threads", 0))

    requests = rng.normal(size=(4096, FEATURES)).astype(np.float32)
    plain = session(blob, "ORT_DISABLE_ALL", 1)
    expected = np.concatenate([plain.run(None, {"x": row[None]})[0] for row in requests[:batch]])
    np.testing.assert_allclose(answer.run(None, {"x": requests[:batch]})[0], expected, rtol=1e-3, atol=1e-4)

    starts = itertools.cycle(range(0, len(requests), batch))
    for start in itertools.islice(starts, args.batches):
        answer.run(None, {"x": requests[start : start + batch]})
        autotune.step(samples=batch)
    print("answered")


if __name__ == "__main__":
    main()
