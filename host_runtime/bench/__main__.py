"""python -m host_runtime.bench gpu|overlap|trace: started by `duckctl bench`, which adds the paths.

Results go to stdout as one JSON object; progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from host_runtime.bench.full_size import GENERATION, MODELS, full_size
from host_runtime.errors import HostError


def main() -> int:
    """Run one benchmark; exit code 1 with a message for expected failures."""
    arguments = _parser().parse_args()
    try:
        result = _run(arguments)
    except HostError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  hint: {error.hint}\n")
        return 1
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.bench", description=__doc__)
    parser.add_argument("what", choices=("gpu", "overlap", "trace"))
    parser.add_argument("--model", default="deepseek-v3.2", help=", ".join(MODELS))
    parser.add_argument("--layers", type=int, default=None, help="fewer layers than the model has")
    parser.add_argument("--context", type=int, nargs="+", default=[2048, 32768])
    parser.add_argument("--prefill", type=int, default=1481, help="tokens; 0 = leave out")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of one prompt chunk")
    parser.add_argument("--factor", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--wire-us", type=float, nargs="+", default=[0.0, 60.0])
    parser.add_argument("--library", type=Path, required=True, help="libduckecho.so")
    parser.add_argument("--output", type=Path, default=None, help="trace file")
    return parser


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    from host_runtime.cuda.capability import check_gpu
    from host_runtime.cuda.memory_plan import plan_memory

    capability = check_gpu()
    config = full_size(arguments.model, arguments.layers)
    positions = max(max(arguments.context) + 64, 4096)
    plan = plan_memory(config, positions, 2)
    _say(f"{capability.name}: {plan.text()}")
    plan.require(capability.free_bytes)

    from host_runtime.bench import steps
    from host_runtime.bench.echo import EchoDucks
    from host_runtime.cuda.model import GpuModel
    from host_runtime.cuda.weights import RandomWeights

    bandwidth = steps.copy_bandwidth()
    begin = time.monotonic()
    source = RandomWeights(torch.device("cuda", 0))
    model = GpuModel(config, GENERATION, source, positions=positions, cache_dtype=torch.bfloat16)
    torch.cuda.synchronize()
    _say(f"random weights in {time.monotonic() - begin:.1f} s")
    steps.fill_caches(model)
    ducks = EchoDucks(arguments.library, model.lanes)
    head = {"card": capability.name, "model": arguments.model, "layers": config.num_hidden_layers,
            "copy_tb_per_s": round(bandwidth / 1e12, 3)}  # fmt: skip
    try:
        if arguments.what == "gpu":
            return head | _gpu(model, ducks, bandwidth, arguments)
        if arguments.what == "overlap":
            return head | _overlap(model, ducks, arguments)
        from host_runtime.bench.trace import write_trace

        output = arguments.output or Path("step-trace.json")
        return head | write_trace(model, ducks, arguments.context[0], output)
    finally:
        ducks.close()
        model.close()


def _gpu(model: Any, ducks: Any, bandwidth: float, arguments: argparse.Namespace) -> dict[str, Any]:
    from host_runtime.bench import steps
    from host_runtime.bench.trace import op_times

    result: dict[str, Any] = {"weights_gb": round(steps.weight_bytes(model) / 1e9, 3)}
    gemv = steps.gemv_times(model)
    floor = steps.gemv_bytes(model) / bandwidth * 1e3
    result["gemv"] = {"ms": round(gemv.p50_ms, 3), "floor_ms": round(floor, 3),
                      "over_floor": round(gemv.p50_ms / floor, 3)}  # fmt: skip
    _say(f"GEMV: {result['gemv']}")
    calls = model.config.num_hidden_layers - model.config.first_k_dense_replace
    for context in arguments.context:
        total = steps.weight_bytes(model) + steps.cache_bytes(model, context)
        floor = total / bandwidth * 1e3
        null = steps.step_times(model, context, 1, calls=False)
        ducks.set(0, 0)
        echo = steps.step_times(model, context, 1, calls=True)
        per_call = {
            name: round((getattr(echo, name) - null.p50_ms) / calls * 1e3, 2)
            for name in ("p50_ms", "p99_ms")
        }
        result[f"context {context}"] = {
            "step_ms": round(null.p50_ms, 3),
            "step_p99_ms": round(null.p99_ms, 3),
            "floor_ms": round(floor, 3),
            "over_floor": round(null.p50_ms / floor, 3),
            "step_with_calls_ms": round(echo.p50_ms, 3),
            "call_us_per_layer": {name[:3]: value for name, value in per_call.items()},
            "ops": op_times(model, context),
        }
        _say(f"context {context}: {result[f'context {context}']}")
    if arguments.prefill:
        seconds = steps.prefill_seconds(model, arguments.prefill, arguments.chunk)
        result["prefill"] = {"tokens": arguments.prefill, "chunk": arguments.chunk,
                             "seconds": [round(value, 3) for value in seconds]}  # fmt: skip
        _say(f"prefill: {result['prefill']}")
    return result


def _overlap(model: Any, ducks: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    from host_runtime.bench import steps

    rows = []
    for wire_us in arguments.wire_us:
        for factor in arguments.factor:
            found = steps.measure_overlap(model, ducks, arguments.context[0], factor, wire_us)
            rows.append(
                {
                    "factor": factor,
                    "duck_us": round(found.duck_us, 1),
                    "wire_us": wire_us,
                    "gpu_ms": round(found.gpu_ms, 3),
                    "ducks_ms": round(found.ducks_ms, 3),
                    "step_ms": round(found.step_ms, 3),
                    "overlap_ratio": round(found.ratio, 3),
                    "step_over_longer": round(found.over_longer, 3),
                }
            )
            _say(f"overlap: {rows[-1]}")
    return {"overlap": rows, "prefill": _prefill_overlap(model, arguments)}


def _prefill_overlap(model: Any, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Four chunks of a prompt, in turns and two at once."""
    from host_runtime.bench.prefill import measure_prefill

    tokens = 4 * arguments.chunk
    if not arguments.prefill or tokens > model.pool.positions:
        return []
    rows = [
        {name: round(value, 3) for name, value in times.row().items()}
        for times in measure_prefill(model, tokens, arguments.chunk, arguments.factor)
    ]
    for row in rows:
        _say(f"prefill: {row}")
    return rows


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
