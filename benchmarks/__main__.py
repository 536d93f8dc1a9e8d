"""``python -m benchmarks``: list the benchmarks, or run one."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from aiokcc import AiokccError
from benchmarks import (
    assignment,
    dashboard,
    gate,
    harness,
    hosts,
    kafka_store,
    members,
    period_latency,
    rebalance,
    resume,
    simulation,
    skew,
    spark,
    throughput,
    timers,
)

__all__ = ["main"]


class Benchmark(Protocol):
    """The interface of a benchmark's module."""

    SUMMARY: str
    EXAMPLES: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Awaitable[harness.Outcome]]


BENCHMARKS: dict[str, Benchmark] = {
    "period-latency": period_latency,  # type: ignore[dict-item]
    "members": members,  # type: ignore[dict-item]
    "hosts": hosts,  # type: ignore[dict-item]
    "simulation": simulation,  # type: ignore[dict-item]
    "gate": gate,  # type: ignore[dict-item]
    "kafka-store": kafka_store,  # type: ignore[dict-item]
    "throughput": throughput,  # type: ignore[dict-item]
    "skew": skew,  # type: ignore[dict-item]
    "resume": resume,  # type: ignore[dict-item]
    "spark": spark,  # type: ignore[dict-item]
    "timers": timers,  # type: ignore[dict-item]
    "assignment": assignment,  # type: ignore[dict-item]
    "dashboard": dashboard,  # type: ignore[dict-item]
    "rebalance": rebalance,  # type: ignore[dict-item]
}


def _parser() -> argparse.ArgumentParser:
    examples = [example for module in BENCHMARKS.values() for example in module.EXAMPLES]
    listed = "\n".join(f"  {name:<16}{module.SUMMARY}" for name, module in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure aiokcc and what it is compared with, in the same run on the same machine.\n\n"
        f"benchmarks:\n{listed}",
        epilog=_examples(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = parser.add_subparsers(dest="name", metavar="NAME", help="one of the above; NAME --help says more")
    for name, module in BENCHMARKS.items():
        one = names.add_parser(
            name,
            description=sys.modules[f"benchmarks.{name.replace('-', '_')}"].__doc__,
            epilog=_examples(module.EXAMPLES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures are rougher")
        one.add_argument("--json", metavar="FILE", help="write the results as JSON; - for the standard output")
        one.add_argument("--plot", metavar="FILE", help="draw them: PNG, SVG or PDF by the suffix (needs matplotlib)")
        module.add_arguments(one)
    return parser


def _examples(examples: Sequence[str]) -> str:
    return "examples:\n" + "\n".join(f"  {example}" for example in examples)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark, or list them. Returns 0 if it was measured, goals met or not; 1 if it failed; 130 if interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.name is None:
        parser.print_help()
        return 0
    try:
        draw = harness.drawing() if options.plot else None
        harness.show_load()
        outcome = asyncio.run(_run(BENCHMARKS[options.name], options))
        harness.show(outcome)
        if options.json:
            outcome.write_json(options.json)
        if draw is not None:
            draw(outcome, options.plot)
    except (harness.BenchmarkError, AiokccError, OSError) as error:
        harness.note(f"{options.name}: {error}")
        return 1
    except KeyboardInterrupt:
        harness.note("interrupted; all processes have ended")
        return 130
    return 0


async def _run(benchmark: Benchmark, options: argparse.Namespace) -> harness.Outcome:
    return await benchmark.run(options)


if __name__ == "__main__":
    sys.exit(main())
