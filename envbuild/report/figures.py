"""Figures by their names: what each is in words, which of a kind is the largest, and which misses its floor."""

from __future__ import annotations

import re

from envbuild.model.evidence import Check, Evidence, Metric
from envbuild.report.verdict import node_checks
from envbuild.text import number

_FIGURES = (
    (re.compile(r"gemm_cpu_([a-z0-9]+)_tflops"), r"Matrix products, \1, CPU"),
    (re.compile(r"gemm_cuda_([a-z0-9]+)_tflops"), r"Matrix products, \1, GPUs"),
    (re.compile(r"gemm_(?:cpu|cuda)_([a-z0-9]+)_(\d+)_tflops"), r"Matrix products, \1, \2 × \2"),
    (re.compile(r"all_reduce_busbw_gbps"), "All-reduce in a node, bus bandwidth"),
    (re.compile(r"all_reduce_(\d+)_mib_busbw_gbps"), r"All-reduce in a node, \1 MiB"),
    (re.compile(r"copy_cpu_gbps"), "Copy in memory, CPU"),
    (re.compile(r"copy_device_gbps"), "Copy within a GPU, read and write"),
    (re.compile(r"copy_host_to_device_gbps"), "Copy from host to GPU"),
    (re.compile(r"copy_device_to_host_gbps"), "Copy from GPU to host"),
    (re.compile(r"copy_peer_gbps"), "Copy between GPUs"),
    (re.compile(r"full_(eager|compiled)_tokens_per_second"), r"Training of 125 M parameters, \1"),
    (re.compile(r"multi_node_busbw_gbps"), "All-reduce over nodes, bus bandwidth"),
    (re.compile(r"training_tokens_per_second"), "Training speed"),
    (re.compile(r"bench"), "The stack's own run"),
    (re.compile(r"tflops"), "Computing speed of a GPU"),
    (re.compile(r"tokens_per_gpu_per_second"), "Tokens of a GPU in a second"),
    (re.compile(r"wps"), "Words in a second"),
    (re.compile(r"elapsed_time_per_iteration"), "Time of a step"),
)


def figure(name: str) -> str:
    """What a figure is, in words; its name where nothing is known of it."""
    return next((match.expand(words) for form, words in _FIGURES if (match := form.fullmatch(name))), name)


_SIZED = re.compile(r"(gemm_(?:cpu|cuda)_[a-z0-9]{1,12}|all_reduce)(?:_([0-9]{1,9})(?:_mib)?)?_(?:tflops|busbw_gbps)")


def of_smaller_size(metric: Metric, check: Check) -> bool:
    """Whether a figure of a check is of a smaller size than another one of its kind there; no size is the largest."""
    own = kind_and_size(metric)
    if own is None or (size := own[1]) is None:
        return False
    others = filter(None, map(kind_and_size, check.metrics))
    return any(kind == own[0] and (other is None or size < other) for kind, other in others)


def kind_and_size(metric: Metric) -> tuple[str, int | None] | None:
    """Kind of a product or all-reduce, and the size in its name (rows, MiB) unless it is the largest one."""
    match = _SIZED.fullmatch(metric.name)
    return (match[1], int(match[2]) if match[2] else None) if match else None


def largest(evidence: Evidence) -> dict[str, list[tuple[str, Metric, Check]]]:
    """Node, metric and check of every figure by its name, but for smaller sizes without a floor."""
    found: dict[str, list[tuple[str, Metric, Check]]] = {}
    for node, check in node_checks(evidence):
        for metric in check.metrics:
            if metric.floor is not None or not of_smaller_size(metric, check):
                found.setdefault(metric.name, []).append((node.node, metric, check))
    return found


def below_floor(metric: Metric) -> bool:
    """True when the metric has a floor and misses it."""
    return metric.floor is not None and metric.median < metric.floor


def headline(check: Check) -> str:
    """The figure that stands for a check: the one that a floor is about, else the last; named where there are more."""
    metric = next((each for each in check.metrics if each.floor is not None), check.metrics[-1])
    name = f" {metric.name}" if len(check.metrics) > 1 else ""
    return f"{number(metric.median, metric.floor)} {metric.unit}{name}"
