"""What `smoke --full` leaves out and says so; the program runs behind a torch that only answers about its GPU."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from envbuild.node.smoke import check, smoke
from envbuild.node.smoke.runner import Outcome

GIB = 1 << 30
PROGRAM = "envbuild.node.smoke.programs.full"
H200 = "NVIDIA H200"


def stand_in(free: float, capability: tuple[int, int], name: str, bf16: bool, graphs: int) -> dict[str, ModuleType]:
    made = {each: ModuleType(each) for each in ("torch", "torch.nn", "torch._dynamo", "torch._dynamo.utils")}

    def memory(device: SimpleNamespace) -> tuple[int, int]:
        if device.index is None:  # as torch before 2.5
            raise ValueError("Expected a torch.device with a specified index")
        return int(free * GIB), 2 * int(free * GIB)

    def device(text: str) -> SimpleNamespace:
        kind, _, index = text.partition(":")
        return SimpleNamespace(type=kind, index=int(index) if index else None)

    made["torch"].__dict__.update(
        __version__="2.4.0",
        nn=made["torch.nn"],
        device=device,
        cuda=SimpleNamespace(
            get_device_name=lambda _: name,
            get_device_capability=lambda _: capability,
            mem_get_info=memory,
            is_bf16_supported=lambda: bf16,
        ),
    )
    made["torch.nn"].__dict__.update(Module=object, functional=None)
    made["torch._dynamo.utils"].__dict__["counters"] = {"stats": {"unique_graphs": graphs}}
    return made


class Told:
    """A program's channel in memory."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.outcome.returncode = 0

    def __getattr__(self, kind: str) -> Any:
        names = {"stage": ("what",), "failure": ("what",), "facts": ("data",), "done": ()}[kind]
        return lambda *values: self.outcome.events.append({"kind": kind, **dict(zip(names, values, strict=True))})

    def metric(self, name: str, unit: str, values: list[float]) -> None:
        event = {"name": name, "unit": unit, "n": len(values), "median": values[0], "least": min(values)}
        self.outcome.events.append({"kind": "metric", **event, "greatest": max(values)})


def full(
    monkeypatch: pytest.MonkeyPatch, free: float, capability: tuple[int, int] = (9, 0), name: str = H200,
    *, bf16: bool = True, graphs: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """The checks of `full` on such a GPU; its models learn at once."""
    for each, module in stand_in(free, capability, name, bf16, graphs).items():
        monkeypatch.setitem(sys.modules, each, module)
    for each in (PROGRAM, "envbuild.node.smoke.programs.training"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    program, told = importlib.import_module(PROGRAM), Told()
    losses = iter([4.0, *[1.0] * 12] * 2)
    training = SimpleNamespace(parameters=163_000_000, step=lambda _: SimpleNamespace(item=lambda: next(losses)))
    monkeypatch.setattr(program, "Training", lambda *_: training)
    monkeypatch.setattr(program, "batch", lambda *_: SimpleNamespace(to=lambda _: None))
    monkeypatch.setattr(sys.modules["torch"], "Generator", lambda: SimpleNamespace(manual_seed=lambda _: None), False)

    def run(*args: Any, **_: Any) -> list[Outcome]:
        request = json.loads(json.dumps(args[2][0]))
        monkeypatch.setattr(program, "begin", lambda: (request, told))
        program.main()
        return [told.outcome]

    monkeypatch.setattr(check, "run_programs", run)
    spec = smoke.Spec("/no", {}, True)
    spec.peaks = {H200: 989.0}
    checks = smoke.smoke_items(spec, [{"name": "full", "deadline": 60.0}], None)
    for each in (PROGRAM, "envbuild.node.smoke.programs.training"):
        monkeypatch.delitem(sys.modules, each)
    return checks


@pytest.mark.parametrize(("free", "batch"), [(139, 16), (51, 16), (47, 8), (23.5, 4), (15.5, 4), (10, 2), (7, 1)])
def test_the_batch_is_halved_until_free_memory_holds_it_and_is_told(
    monkeypatch: pytest.MonkeyPatch, free: float, batch: int
) -> None:
    (told,) = full(monkeypatch, free)
    assert told["status"] == "passed"
    assert told["details"]["shape"]["batch"] == batch
    assert told["says"].startswith(f"GPT of 163 M parameters, batch {batch} × 2048 trained compiled on {H200}; MFU ")


@pytest.mark.parametrize(
    ("gpu", "bf16", "why"),
    [
        ((3.5, (9, 0), H200), True, "3.5 GiB of GPU memory are free, and one sequence needs 6"),
        ((15.5, (7, 5), "Tesla T4"), False, "torch 2.4.0 has no bfloat16 here"),
    ],
)
def test_what_a_gpu_cannot_do_is_a_gap_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, gpu: tuple[float, tuple[int, int], str], bf16: bool, why: str
) -> None:
    (told,) = full(monkeypatch, *gpu, bf16=bf16)
    assert (told["status"], told["metrics"], told["says"]) == ("skipped", [], f"not run: {why}")


def test_the_compiled_half_is_a_gap_without_native_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    eager, compiled = full(monkeypatch, 15.5, (7, 0), "Tesla V100-SXM2-16GB")
    assert eager["status"] == "passed"
    assert eager["says"] == "GPT of 163 M parameters, batch 4 × 2048 trained eagerly on Tesla V100-SXM2-16GB"
    assert [metric["name"] for metric in eager["metrics"]] == ["full_eager_tokens_per_second"]
    assert (compiled["name"], compiled["status"]) == ("smoke/full/compiled", "skipped")
    assert compiled["says"] == "torch.compile not run: no native bfloat16 on Tesla V100-SXM2-16GB"


def test_a_model_of_which_nothing_was_compiled_is_not_called_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    eager, compiled = full(monkeypatch, 139, graphs=0)
    assert "trained eagerly" in eager["says"]
    assert "mfu_percent" not in eager["details"]
    assert [metric["name"] for metric in eager["metrics"]] == ["full_eager_tokens_per_second"]
    assert (compiled["status"], "no graph that it compiled" in compiled["says"]) == ("skipped", True)


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb"])
def test_a_variant_or_a_part_of_a_gpu_has_no_share_of_the_whole_one_s_peak(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (check,) = full(monkeypatch, 139, name=name)
    assert check["status"] == "passed"
    assert "mfu_percent" not in check["details"]
