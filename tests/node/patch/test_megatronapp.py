"""MegatronAPP on one node without RDMA, and its gradients in both schedules; what comes out is compiled and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.node.patch_support import apply, shape, write
from tests.support.need import need
from tests.support.programs import completed

SCHEDULES, TRANSFER = "Megatron/megatron/core/pipeline_parallel/schedules.py", "shm_tensor_new_rdma.cpp"


def test_gradients_of_a_pipeline_stay_what_they_are(tmp_path: Path) -> None:
    file = shape(tmp_path, "megatronapp-gradients")
    before = file.read_text()
    assert apply(tmp_path, "megatronapp-gradients")["hits"] == 1
    loop = "    for param in model.parameters():\n        param.main_grad.uniform_(-1, 1)\n"
    assert file.read_text().startswith(before.replace(loop, ""))
    assert file.read_text().count("uniform_") == 1, "the comment of the other schedule stays"


def module_of(text: str, monkeypatch: pytest.MonkeyPatch, **transfer: Any) -> dict[str, Any]:
    """What a schedule defines, with its module `transfer` as given."""
    monkeypatch.setitem(sys.modules, "transfer", SimpleNamespace(**transfer))
    names: dict[str, Any] = {}
    exec(compile(text, SCHEDULES, "exec"), names)
    return names


def finished(file: Path, name: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[Any]:
    """With what a schedule of the file called the function that finishes gradients."""
    seen: list[Any] = []
    names = module_of(file.read_text(), monkeypatch, compute=lambda model, given: given)
    assert names[name]("model", SimpleNamespace(finalize_model_grads_func=seen.append), [1, 2], **more) == [1, 2]
    return seen


def test_gradients_of_virtual_stages_are_finished_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shape(tmp_path, "megatronapp-finish")
    assert finished(file, "interleaving", monkeypatch) == []
    assert apply(tmp_path, "megatronapp-finish")["hits"] == 1
    assert finished(file, "interleaving", monkeypatch) == ["model"]
    assert finished(file, "interleaving", monkeypatch, forward_only=True) == []
    assert finished(file, "stages", monkeypatch) == [["model"]]


def test_transfers_of_one_node_compile_without_rdma_core_and_say_so_between_nodes(tmp_path: Path) -> None:
    shape(tmp_path, "megatronapp-one-node")
    shape(tmp_path, "megatronapp-one-node", 2)
    assert apply(tmp_path, "megatronapp-one-node")["hits"] == 5
    write(tmp_path, "setuptools.py", "def setup(**given):\n    print(*sum(given.values(), []))\n")
    own = {key: value for key, value in os.environ.items() if key != "CUDA_HOME"}
    for env, cuda in ((own, "/usr/local/cuda"), ({**own, "CUDA_HOME": "/opt/cuda-13.0"}, "/opt/cuda-13.0")):
        done = completed([sys.executable, "setup.py"], cwd=tmp_path, env=env, timeout=60)
        assert done.stdout == f"torch -fPIC -I{cuda}/include -L{cuda}/lib64 -lcudart\n"
    program = tmp_path / "transfer"
    need("g++")
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-Wno-unused-function", TRANSFER, "-o", str(program)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    said = [completed([str(program), *more]).stdout for more in ([], ["other"])]
    assert said[0] == "within a node"
    assert said[1] == "shm_tensor_new_rdma was built without RDMA, for the GPUs of one node"


# What the module uses of pybind11, which is not there: functions without arguments, with or without a guard.
PYBIND11 = """
#include <Python.h>
namespace pybind11 {
struct gil_scoped_acquire {
  PyGILState_STATE was = PyGILState_Ensure();
  ~gil_scoped_acquire() { PyGILState_Release(was); }
};
struct gil_scoped_release {
  PyThreadState *was = PyEval_SaveThread();
  ~gil_scoped_release() { PyEval_RestoreThread(was); }
};
struct Nothing {};
template <typename Guard> struct call_guard { using type = Guard; };
template <void (*function)(), typename Guard> PyObject *called(PyObject *, PyObject *) {
  { Guard guard; function(); }
  Py_RETURN_NONE;
}
template <void (*function)()> struct Bound {
  PyCFunction of(const char *) { return called<function, Nothing>; }
  PyCFunction of() { return called<function, Nothing>; }
  template <typename Guard> PyCFunction of(call_guard<Guard>) { return called<function, Guard>; }
};
}
static PyMethodDef methods[3];
static int count = 0;
struct Module {
  template <void (*function)(), typename... More> void add(const char *name, More... more) {
    methods[count++] = {name, pybind11::Bound<function>().of(more...), METH_NOARGS, nullptr};
  }
};
#define def(name, function, ...) add<function>(name __VA_OPT__(,) __VA_ARGS__)
#define PYBIND11_MODULE(name, m) \
  static void fill(Module m); \
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, #name, nullptr, -1, methods}; \
  PyMODINIT_FUNC PyInit_##name() { fill(Module()); return PyModule_Create(&module); } \
  static void fill(Module m)
"""


def test_threads_that_take_pythons_lock_are_waited_for_without_it(tmp_path: Path) -> None:
    program = "import shm_tensor_new_rdma as m; m.thread_pool(); print('waits', flush=True)\n"
    program += "m.join_threads(); print('joined')"
    need("g++")
    ended = {}
    for name in ("before", "after"):
        folder = tmp_path / name
        shape(folder, "megatronapp-join", 1)
        write(folder, "pybind11/pybind11.h", PYBIND11)
        if name == "after":
            assert apply(folder, "megatronapp-join")["hits"] == 1
        include = ["-I.", f"-I{sysconfig.get_paths()['include']}"]
        command = ["g++", "-std=c++20", "-shared", "-fPIC", *include, TRANSFER, "-o", "shm_tensor_new_rdma.so"]
        subprocess.run(command, cwd=folder, check=True, timeout=120)
        # Unbuffered: what is read with the first line would be lost to communicate().
        running = subprocess.Popen([sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE, bufsize=0)
        assert running.stdout is not None and running.stdout.readline() == b"waits\n"
        try:
            ended[name] = running.communicate(timeout=60 if name == "after" else 0.5)[0].decode()
        except subprocess.TimeoutExpired:
            ended[name] = "hangs"
        running.kill()
        running.communicate()
    assert ended == {"before": "hangs", "after": "joined\n"}


def last_stage(file: Path, arriving: list[int], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Microbatch and label as the sample's schedule brings them together, of two stages with two chunks each.

    `arriving`: the order in which the inputs come; the last chunk alone reads data, as on a last stage.
    """
    queue = list(arriving)

    def arrived(k: int) -> int | None:
        return queue.pop(0) if queue and k == queue[0] else None

    def step(data: Any, chunk: int, given: int) -> tuple[int, int] | None:
        return (given // 4 * 2 + given % 2, next(data)) if chunk == 1 else None

    names = module_of(file.read_text(), monkeypatch, get_forward_tensor=arrived)
    data = [iter(range(len(arriving) // 2)), iter(range(len(arriving) // 2))]
    found = names["forward_backward_pipelining_with_interleaving"](step, data, [0, 1], len(arriving) // 2, 2)
    return [each for each in found if each is not None]


def test_labels_meet_their_own_microbatch_in_whatever_order_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shape(tmp_path, "megatronapp-labels")
    in_order, late = [0, 1, 2, 3, 4, 5, 6, 7], [4, 1, 0, 7, 3, 2, 5, 6]
    before = last_stage(file, in_order, monkeypatch), last_stage(file, late, monkeypatch)
    assert apply(tmp_path, "megatronapp-labels")["hits"] == 1
    after = last_stage(file, in_order, monkeypatch), last_stage(file, late, monkeypatch)
    assert before == ([(0, 0), (1, 1), (2, 2), (3, 3)], [(3, 0), (1, 1), (0, 2), (2, 3)])
    assert after == (before[0], [(3, 3), (1, 1), (0, 0), (2, 2)])
    batches = module_of(file.read_text(), monkeypatch, get_forward_tensor=None)["_EnvbuildMicrobatches"](
        [None, iter("ab")]
    )
    assert batches.at(0, 1) is None, "a rank without data broadcasts none"
    assert [next(batches.at(1, 1)), next(batches.at(1, 0))] == ["b", "a"]


class Flags:
    """A tensor of flags."""

    def __init__(self, values: list[bool], dtype: str) -> None:
        assert dtype == "uint8"
        self.values = [int(each) for each in values]

    def tolist(self) -> list[int]:
        return self.values


class Ranks:
    """A stage of two tensor-parallel ranks, each a thread: what it sees of torch, of Megatron and of the transfer.

    `orders`: in which order microbatches come to each rank; another one comes with every third question.
    """

    def __init__(self, orders: list[list[int]]) -> None:
        self.size, self.orders = len(orders), orders
        self.meeting, self.given = threading.Barrier(self.size, timeout=30), [[] for _ in orders]
        self.asked = 0  # collectives about what has arrived

    def together(self, rank: int, values: list[int]) -> list[list[int]]:
        """What all ranks bring, as a collective gives it to each."""
        self.given[rank] = values
        self.meeting.wait()
        all_given = list(self.given)
        self.meeting.wait()
        return all_given

    def modules(self, rank: int, stage: int) -> dict[str, Any]:
        questions = {"forward": 0, "backward": 0}
        left = {kind: list(self.orders[rank]) for kind in questions}

        def get(kind: str, k: int) -> int | None:
            questions[kind] += 1
            if k not in self.orders[rank][: questions[kind] // 3] or k not in left[kind]:
                return None
            left[kind].remove(k)
            return k

        def least(here: Any, op: str, group: Any) -> None:
            assert (op, group) == ("least", ("gloo", list(range(self.size))))
            self.asked += 1
            here.values = [min(each) for each in zip(*self.together(rank, here.values), strict=True)]

        distributed = SimpleNamespace(
            get_rank=lambda: rank,
            get_process_group_ranks=lambda group: group,
            new_group=lambda ranks, backend, use_local_synchronization: (backend, ranks),
            all_reduce=least,
            ReduceOp=SimpleNamespace(MIN="least"),
        )
        parallel_state = SimpleNamespace(
            get_tensor_model_parallel_world_size=lambda: self.size,
            get_tensor_model_parallel_group=lambda: list(range(self.size)),
            get_pipeline_model_parallel_rank=lambda: stage,
        )
        return {
            "torch": SimpleNamespace(distributed=distributed, tensor=Flags, uint8="uint8"),
            "shm_tensor_new_rdma": SimpleNamespace(
                get_forward_tensor=lambda k, _: get("forward", k), get_backward_tensor=lambda k, _: get("backward", k)
            ),
            "parallel_state": parallel_state,
        }

    def run(self, file: Path, stage: int = 1, **more: Any) -> list[list[tuple[str, int, int]]]:
        """For each rank its passes in their order: kind, microbatch, sum over the ranks."""
        text = "\n".join(line for line in file.read_text().split("\n") if not line.startswith(("import ", "from ")))

        def one(rank: int) -> Any:
            names = self.modules(rank, stage)
            exec(compile(text, SCHEDULES, "exec"), names)
            schedule = names["forward_backward_pipelining_with_interleaving"]
            return schedule(lambda given: sum(each[0] for each in self.together(rank, [given])), 3, 2, **more)

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(one, range(self.size)))


IN_ORDER, LATE = [0, 1, 2, 3, 4, 5], [1, 0, 3, 5, 4, 2]


@pytest.mark.parametrize("stage", [0, 1])
def test_tensor_parallel_ranks_sum_the_same_pass_whatever_arrives_first_at_each(tmp_path: Path, stage: int) -> None:
    file = shape(tmp_path, "megatronapp-tensor-order")
    before = Ranks([LATE]).run(file, stage)
    first, second = Ranks([IN_ORDER, LATE]).run(file, stage)
    assert first != second, "the fault"
    assert any(total != 2 * k for _, k, total in first)
    assert apply(tmp_path, "megatronapp-tensor-order")["hits"] == 2
    first, second = Ranks([IN_ORDER, LATE]).run(file, stage)
    assert first == second
    assert all(total == 2 * k for _, k, total in first)
    assert sorted(first) == sorted((kind, k, 2 * k) for kind in ("forward", "backward") for k in IN_ORDER)
    evaluated = Ranks([IN_ORDER, LATE]).run(file, stage, forward_only=True)
    assert evaluated[0] == evaluated[1] and len(evaluated[0]) == len(IN_ORDER)
    alone = Ranks([LATE])
    assert alone.run(file, stage) == before
    assert alone.asked == 0, "without tensor parallel nothing is asked and the order stays"
