"""Edits of MegatronAPP: addresses and ranks from the environment, shared memory named by job, honest trace sheets,
transfers without RDMA, gradients that stay what they are and are finished, threads that are waited for without
Python's lock, labels that meet their own microbatch, tensor-parallel ranks that compute the same one."""

import ast
import re

from envbuild.node.patch.line_edits import lines
from envbuild.node.patch.source_text import (
    Change,
    Source,
    UnfitError,
    above,
    called,
    constant,
    dotted,
    mask_c,
    nothing_left,
    parents,
)

_GPUS = re.compile(r"^constexpr int NUM_GPUS = ([0-9]+);", re.M)
_IPS = re.compile(r"^std::string ips\[\] = \{[^{};]*\};", re.M)
_GPUS_NEW = """\
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

static int envbuild_gpus_per_node() {
  const char *set = std::getenv("MEGATRONAPP_GPUS_PER_NODE");
  const int count = set ? std::atoi(set) : %s;
  if (count < 1) {
    std::cerr << "MEGATRONAPP_GPUS_PER_NODE is not a positive number: " << set << std::endl;
    std::exit(2);
  }
  return count;
}

const int NUM_GPUS = envbuild_gpus_per_node();"""
_IPS_NEW = """\
// One address a node, in the order of the node ranks: MEGATRONAPP_NODE_ADDRESSES=192.0.2.1,192.0.2.2
struct EnvbuildAddresses {
  std::vector<std::string> nodes;
  EnvbuildAddresses() {
    const char *set = std::getenv("MEGATRONAPP_NODE_ADDRESSES");
    std::stringstream list(set ? set : "");
    for (std::string one; std::getline(list, one, ',');)
      nodes.push_back(one);
    if (nodes.empty())
      nodes.push_back("127.0.0.1");
  }
  const std::string &operator[](int rank) const {
    const size_t node = static_cast<size_t>(rank / NUM_GPUS);
    if (rank < 0 || node >= nodes.size())
      throw std::runtime_error("MEGATRONAPP_NODE_ADDRESSES has no address for rank " + std::to_string(rank));
    return nodes[node];
  }
};
const EnvbuildAddresses ips;"""
_OURS = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "GPUS_PER_NODE")
_SIZES = ("PIPELINE_MP_SIZE", "VIRTUAL_STAGE_LAYER")
_LAUNCHER = "pretrain_gpt_distributed_small.sh"
_SED = re.compile(r'sed -i "s/\^([A-Z_]+)=[^/"]*/\1=([^/"]*)/" \S*/' + re.escape(_LAUNCHER) + r"\s*")
_OWN_ADDRESS = re.compile(r"POD_IP=\$\(hostname -i\)\s*")


def _find_addresses(source: "Source") -> "list[Change]":
    if source.suffix == "cpp":
        return _addresses_in_cpp(source)
    return _addresses_in_launcher(source) if source.path.endswith(_LAUNCHER) else _addresses_in_run(source)


def _addresses_in_cpp(source: "Source") -> "list[Change]":
    masked = mask_c(source.text)
    out = [Change(m.start(), m.end(), _GPUS_NEW % m.group(1)) for m in _GPUS.finditer(masked)]
    # Function-like order: the addresses need the number of GPUs, so that must be known above them.
    for match in _IPS.finditer(masked):
        if out and match.start() < out[0].start:
            raise UnfitError("NUM_GPUS is defined below the addresses", match.start())
        out.append(Change(match.start(), match.end(), _IPS_NEW))
    return out


def _addresses_in_launcher(source: "Source") -> "list[Change]":
    out = []
    for start, line in lines(source):
        match = re.fullmatch(r"([A-Z_]+)=([A-Za-z0-9.]+)\s*", line)
        if not match or match.group(1) not in _OURS + _SIZES:
            continue
        name, old = match.groups()
        # Somebody's own address is no default for anyone else.
        value = ":?set MASTER_ADDR to the address of the first node" if name == "MASTER_ADDR" else ":-" + old
        out.append(Change(start, start + len(line), '%s="${%s%s}"' % (name, name, value)))
    return out


def _addresses_in_run(source: "Source") -> "list[Change]":
    out = []
    for start, line in lines(source):
        match = _SED.fullmatch(line)
        if match:
            name, value = match.groups()
            new = "${%s:-%s}" % (name, value) if name in _OURS else value
            out.append(Change(start, start + len(line), 'export %s="%s"' % (name, new)))
        elif _OWN_ADDRESS.fullmatch(line):
            # A host with several addresses prints them all.
            out.append(Change(start, start + len(line), "POD_IP=$(hostname -i | awk '{print $1; exit}')"))
    return out


_SHARED = re.compile(r'"/((?:forward|backward)_(?:tensor|write_sem|read_sem)_rank_)"')
_SHARED_HELPER = """\
#include <cctype>
#include <cstdlib>
#include <string>
#include <unistd.h>

// /envbuild_<user>_<job>_<what>: no other job's, and training.py removes only these.
static std::string envbuild_shared_name(const char *what) {
  std::string job;
  for (const char *name : {"MEGATRONAPP_JOB", "SLURM_JOB_ID", "PBS_JOBID", "MASTER_PORT"}) {
    const char *set = std::getenv(name);
    if (set && *set) {
      job = set;
      break;
    }
  }
  job = job.substr(0, 64);
  for (char &letter : job)
    if (!std::isalnum(static_cast<unsigned char>(letter)))
      letter = '-';
  return "/envbuild_" + std::to_string(getuid()) + "_" + job + "_" + what;
}

"""
_REMOVE = "_envbuild_remove_shared"
_REMOVE_HELPER = '''\
def _envbuild_remove_shared():
    """Remove this job's shared memory and semaphores, and nobody else's; the names are the extension's."""
    import glob
    import re

    names = ("MEGATRONAPP_JOB", "SLURM_JOB_ID", "PBS_JOBID", "MASTER_PORT")
    job = next((os.environ[name] for name in names if os.environ.get(name)), "")
    ours = "envbuild_%d_%s_" % (os.getuid(), re.sub("[^A-Za-z0-9]", "-", job[:64]))
    for path in glob.glob("/dev/shm/" + ours + "*") + glob.glob("/dev/shm/sem." + ours + "*"):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # the other ranks of this node do the same


'''


def _find_shared(source: "Source") -> "list[Change]":
    if source.suffix == "py":
        return _removals(source)
    masked = mask_c(source.text, strings=False)
    out = [Change(m.start(), m.end(), 'envbuild_shared_name("%s")' % m.group(1)) for m in _SHARED.finditer(masked)]
    if not out:
        return []
    after = re.search(r"^namespace py = pybind11;", masked, re.M)
    if not after:
        raise UnfitError("there is no `namespace py = pybind11;` to put the helper before")
    return out + [Change(after.start(), after.start(), _SHARED_HELPER, hit=False)]


def _removals(source: "Source") -> "list[Change]":
    calls = [
        node
        for node in source.every(ast.Call)
        if dotted(node.func) == "os.system"
        and node.args
        and re.match(r"rm -rf /dev/shm/[a-z._]+\*\Z", str(constant(node.args[0])))
    ]
    if not calls:
        return []
    if not any(alias.name == "os" for node in source.top(ast.Import) for alias in node.names):
        raise UnfitError("does not import os at its top")
    out = [source.replaced(call, _REMOVE + "()") for call in calls]
    functions = source.top(ast.FunctionDef)
    if not functions or functions[0].decorator_list:
        raise UnfitError("has no plain function at its top to put the helper before")
    at = source.line_start(source.span(functions[0])[0])
    return out + [Change(at, at, _REMOVE_HELPER, hit=False)]


_MEASURE = "_envbuild_sizes"
_MEASURE_HELPER = '''\
def _envbuild_sizes(events, pipeline_parallel, num_model_chunks):
    """GPUs, data parallelism, microbatches and the last whole iteration (from 0), as the trace itself has them."""
    begun = [e for e in events if e["ph"] == "B" and e["name"].startswith("forward ")]
    if not begun:
        raise SystemExit("the trace has no forward steps")
    gpus = 1 + max(e["pid"] for e in begun)
    if gpus % pipeline_parallel:
        raise SystemExit("the trace has %d GPUs, which %d stages do not divide" % (gpus, pipeline_parallel))
    data_parallel = gpus // pipeline_parallel
    microbatches = 1 + max(int(e["name"].split("-")[1]) for e in begun)
    per_stage = [sum(e["pid"] == stage * data_parallel for e in begun) for stage in range(pipeline_parallel)]
    iterations = min(per_stage) // (microbatches * num_model_chunks)
    if not iterations:
        raise SystemExit("the trace has no whole iteration")
    return gpus, data_parallel, microbatches, iterations - 1


'''
_SET = (
    "num_gpus, data_parallel, num_microbatches, sample = %s(events, pipeline_parallel, num_model_chunks)\n" % _MEASURE
)


def _find_sample(source: "Source") -> "list[Change]":
    body = source.tree().body
    out, loaded = [], None
    for node in body:
        name = dotted(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if name == "sample" and isinstance(node.value, ast.Call) and dotted(node.value.func).startswith("random."):  # type: ignore[attr-defined]
            out.append(source.replaced(node.value, "None"))  # type: ignore[attr-defined]
        elif name == "num_microbatches" and isinstance(constant(node.value), int):  # type: ignore[attr-defined]
            out.append(source.replaced(node.value, "None"))  # type: ignore[attr-defined]
        elif isinstance(node, ast.With) and "json.load" in source.code(node):
            loaded = node
    if not out:
        return []
    if loaded is None:
        raise UnfitError("the events are not loaded in a `with` at the top of the file")
    end = source.span(loaded)[1]
    at = end + len(source.newline) if source.text.startswith(source.newline, end) else end
    return out + [Change(at, at, "\n" + _MEASURE_HELPER + _SET, hit=False)]


def _check_sample(source: "Source") -> None:
    left = _find_sample(source)
    if left or source.text.count("= %s(" % _MEASURE) != 1:
        raise UnfitError("the sizes are not taken from the trace exactly once", left[0].start if left else None)


_RDMA = re.compile(r"^#include <rdma/rdma_cma\.h>[ \t]*$", re.M)
_RDMA_NAME = re.compile(r"\b(?:(?:rdma|ibv)_\w+|(?:RDMA|IBV)_\w+)")
_NO_RDMA = """\
// Built without rdma-core: within a node everything goes through shared memory. Only calls between nodes end up here.
#include <cstdint>
#include <stdexcept>

[[noreturn]] static void envbuild_no_rdma() {
  throw std::runtime_error("shm_tensor_new_rdma was built without RDMA, for the GPUs of one node");
}

enum { IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_SEND_SIGNALED = 2, RDMA_PS_TCP = 0x0106 };
enum { IBV_QPT_RC = 2, IBV_WC_SUCCESS = 0, IBV_WC_SEND = 0, IBV_WC_RECV = 128, IBV_WR_SEND = 2 };
struct ibv_context;
struct ibv_cq;
struct ibv_pd;
struct ibv_qp;
struct rdma_event_channel;
struct rdma_conn_param {};
struct ibv_mr { uint32_t lkey; };
struct ibv_sge { uint64_t addr; uint32_t length, lkey; };
struct ibv_wc { uint64_t wr_id; int status, opcode; };
struct ibv_recv_wr { uint64_t wr_id; ibv_sge *sg_list; int num_sge; };
struct ibv_send_wr { uint64_t wr_id; ibv_sge *sg_list; int num_sge, opcode; unsigned send_flags; };
struct ibv_qp_init_attr {
  ibv_cq *send_cq, *recv_cq;
  struct { uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge; } cap;
  int qp_type;
};
struct rdma_cm_id { ibv_context *verbs; ibv_qp *qp; };
struct rdma_cm_event { rdma_cm_id *id; };

#define ENVBUILD_NO_RDMA(result, name) \\
  template <typename... Any> static result name(Any...) { envbuild_no_rdma(); }
%s
#undef ENVBUILD_NO_RDMA"""
_RDMA_CALLS = {
    "ibv_cq *": ("ibv_create_cq",),
    "ibv_mr *": ("ibv_reg_mr",),
    "ibv_pd *": ("ibv_alloc_pd",),
    "int": (
        *("ibv_poll_cq", "ibv_post_recv", "ibv_post_send", "rdma_accept", "rdma_ack_cm_event", "rdma_bind_addr"),
        *("rdma_connect", "rdma_create_id", "rdma_create_qp", "rdma_get_cm_event", "rdma_listen"),
        *("rdma_resolve_addr", "rdma_resolve_route"),
    ),
    "rdma_event_channel *": ("rdma_create_event_channel",),
}
_STAND_IN = _NO_RDMA % "\n".join(
    "ENVBUILD_NO_RDMA(%s, %s)" % (kind, name) for kind, names in _RDMA_CALLS.items() for name in names
)
_CUDA = "/usr/local/cuda/"
_CUDA_NEW = '"%s" + os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/%s"'


def _find_one_node(source: "Source") -> "list[Change]":
    return _without_rdma(source) if source.suffix == "cpp" else _plain_setup(source)


def _without_rdma(source: "Source") -> "list[Change]":
    masked = mask_c(source.text)
    out = [Change(match.start(), match.end(), _STAND_IN) for match in _RDMA.finditer(masked)]
    own = set(re.findall(r"^\w+ (rdma_\w+) =", masked, re.M))
    other = sorted(set(_RDMA_NAME.findall(masked)) - set(_RDMA_NAME.findall(_STAND_IN)) - own - {"rdma_cma"})
    if out and other:
        raise UnfitError("uses %s, which the stand-in does not have" % ", ".join(other))
    return out


def _plain_setup(source: "Source") -> "list[Change]":
    """Elements of lists: rdma-core's libraries go, and CUDA's folders are those of the CUDA that the build uses."""
    out = []
    for each in source.every(ast.List):
        for number, one in enumerate(each.elts):
            text = str(constant(one))
            if text in ("rdmacm", "ibverbs"):
                out.append(source.without(each.elts, number, text))
            elif text[:2] in ("-I", "-L") and text[2:].startswith(_CUDA):
                out.append(source.replaced(one, _CUDA_NEW % (text[:2], text[2 + len(_CUDA) :])))
    return [*out, Change(0, 0, "import os\n", hit=False)] if out else []


_JOIN = re.compile(r"\bdef\(\s*\"join_threads\"\s*,\s*&join_threads\s*(?=\))")
_RELEASED = ", py::call_guard<py::gil_scoped_release>()"


def _find_join(source: "Source") -> "list[Change]":
    """The binding of a function that waits for threads, without a guard behind it."""
    code = mask_c(source.text, strings=False)
    return [Change(match.end(), match.end(), _RELEASED) for match in _JOIN.finditer(code)]


def _find_random(source: "Source") -> "list[Change]":
    """A loop that does nothing but fill gradients with random numbers, by whole lines."""
    out = []
    for function in source.every(ast.FunctionDef):
        for loop in [node for node in function.body if isinstance(node, ast.For)]:
            calls = [
                one.value.func for one in loop.body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)
            ]
            if not any(dotted(call).endswith(".main_grad.uniform_") for call in calls):
                continue
            if len(loop.body) != 1 or loop.orelse:
                raise UnfitError("the loop does more than that", source.span(loop)[0])
            start, end = source.span(loop)
            out.append(Change(source.line_start(start), end + len(source.newline), ""))
    return out


_FINISH = "config.finalize_model_grads_func"
_FINISHED = """\
if %s is not None and not forward_only:
        %s(model)
    """ % (_FINISH, _FINISH)


def _find_unfinished(source: "Source") -> "list[Change]":
    """A schedule that finishes its step's gradients in a string alone; the call comes before its last return."""
    out = []
    for function in source.top(ast.FunctionDef):
        texts = [one.value for one in function.body[1:] if isinstance(one, ast.Expr)]
        if not any("%s(model)" % _FINISH in str(constant(text)) for text in texts) or _FINISH in called(function):
            continue
        last = function.body[-1]
        if not isinstance(last, ast.Return):
            raise UnfitError("the schedule does not end with what it returns", source.span(function)[0])
        at = source.span(last)[0]
        out.append(Change(at, at, _FINISHED))
    return out


_BATCHES = "_EnvbuildMicrobatches"
_BATCHES_HELPER = '''\
class _EnvbuildMicrobatches:
    """The microbatches of data iterators by their number: they are asked for in any order, an iterator has one."""

    def __init__(self, iterators):
        self.iterators = iterators
        self.taken = [0] * len(iterators)
        self.waiting = {}

    def at(self, chunk, number):
        """An iterator over this one microbatch alone; None where the rank has no data."""
        return None if self.iterators[chunk] is None else self._one(chunk, number)

    def _one(self, chunk, number):
        while self.taken[chunk] <= number:
            self.waiting[chunk, self.taken[chunk]] = next(self.iterators[chunk])
            self.taken[chunk] += 1
        yield self.waiting.pop((chunk, number))


'''
_NUMBER = (
    "index_to_compute // (num_model_chunks * pipeline_parallel_size) * pipeline_parallel_size"
    " + index_to_compute % pipeline_parallel_size"
)


def _find_labels(source: "Source") -> "list[Change]":
    """A forward step of what has arrived (`index_to_compute`), whose data are what its chunk's iterator has next."""
    parent = parents(source.tree())
    out = []
    for call in [node for node in source.every(ast.Call) if dotted(node.func) == "forward_step"]:
        outer = above(call, parent)
        loops = [node for node in outer if isinstance(node, ast.While)]
        next_ones = [each for each in call.args if source.code(each) == "data_iterator[cur_model_chunk_id]"]
        if not loops or not next_ones or "[index_to_compute]" not in source.code(call):
            continue
        function = next(node for node in outer if isinstance(node, ast.FunctionDef))
        names = {node.id for node in source.every(ast.Name, function)}
        if function not in source.top(ast.FunctionDef) or not {"num_model_chunks", "pipeline_parallel_size"} <= names:
            raise UnfitError("the schedule does not number its microbatches", source.span(function)[0])
        at, top = source.span(loops[-1])[0], source.line_start(source.span(function)[0])
        made = "microbatches = %s(data_iterator)\n%s" % (_BATCHES, source.indent(at))
        out += [Change(at, at, made, hit=False), Change(top, top, _BATCHES_HELPER, hit=False)]
        out += [source.replaced(each, "microbatches.at(cur_model_chunk_id, %s)" % _NUMBER) for each in next_ones]
    return out


_ARRIVED = "_EnvbuildArrived"
_ARRIVED_HELPER = '''\
class _EnvbuildArrived:
    """What has arrived at every rank of a tensor-parallel group: these compute the same, in the same order."""

    group = None  # on the CPU, so that asking waits for no kernel

    def __init__(self, count, *functions):
        self.alone = parallel_state.get_tensor_model_parallel_world_size() == 1
        self.waiting = {(function, k): None for function in functions for k in range(count)}
        self.agreed = set()
        if not self.alone and self.group is None:
            ranks = torch.distributed.get_process_group_ranks(parallel_state.get_tensor_model_parallel_group())
            _EnvbuildArrived.group = torch.distributed.new_group(ranks, backend="gloo", use_local_synchronization=True)

    def agree(self):
        """Once a round: take what is here, and ask which of it is everywhere."""
        if self.alone:
            return
        rank = torch.distributed.get_rank()
        for (function, k), tensor in self.waiting.items():
            if tensor is None:
                self.waiting[function, k] = function(k, rank)
        here = torch.tensor([tensor is not None for tensor in self.waiting.values()], dtype=torch.uint8)
        torch.distributed.all_reduce(here, torch.distributed.ReduceOp.MIN, group=self.group)
        self.agreed = {each for each, everywhere in zip(self.waiting, here.tolist()) if everywhere}

    def get(self, function, k, rank):
        """The tensor, once it is everywhere; without tensor parallel what the transfer has."""
        if self.alone:
            return function(k, rank)
        return self.waiting.pop((function, k)) if (function, k) in self.agreed else None


'''
_COUNTED = "total_num_microbatches"


def _find_tensor_order(source: "Source") -> "list[Change]":
    """A loop that computes what the transfer has for this rank: it takes what its tensor-parallel group has."""
    parent = parents(source.tree())
    found: dict[ast.While, list[ast.Call]] = {}
    for call in source.every(ast.Call):
        loops = [node for node in above(call, parent) if isinstance(node, ast.While)]
        if loops and dotted(call.func).rpartition(".")[2] in ("get_backward_tensor", "get_forward_tensor"):
            found.setdefault(loops[-1], []).append(call)
    out = []
    for loop, calls in found.items():
        function = next(node for node in above(loop, parent) if isinstance(node, ast.FunctionDef))
        names = {node.id for node in source.every(ast.Name, function)}
        if function not in source.top(ast.FunctionDef) or not {_COUNTED, "parallel_state"} <= names:
            raise UnfitError("the schedule does not count its microbatches", source.span(function)[0])
        at, top = source.span(loop)[0], source.line_start(source.span(function)[0])
        gets = [source.code(call.func) for call in calls]
        made = "arrived = %s(%s)\n%s" % (_ARRIVED, ", ".join([_COUNTED, *gets]), source.indent(at))
        first = source.span(loop.body[0])[0]
        out += [Change(at, at, made, hit=False), Change(top, top, _ARRIVED_HELPER, hit=False)]
        out += [Change(first, first, "arrived.agree()\n%s" % source.indent(first), hit=False)]
        for call, get in zip(calls, gets, strict=True):
            out.append(source.replaced(call, "arrived.get(%s)" % ", ".join([get, *map(source.code, call.args)])))
    return out


EDITS = {
    "megatronapp-addresses": (_find_addresses, nothing_left(_find_addresses, "a fixed address or rank"), 1),
    "megatronapp-finish": (_find_unfinished, nothing_left(_find_unfinished, "a schedule that finishes nothing"), 1),
    "megatronapp-gradients": (_find_random, nothing_left(_find_random, "a loop that makes gradients random"), 1),
    "megatronapp-join": (_find_join, nothing_left(_find_join, "a wait that holds Python's lock"), 1),
    "megatronapp-labels": (_find_labels, nothing_left(_find_labels, "data in the order of computing"), 1),
    "megatronapp-one-node": (_find_one_node, nothing_left(_find_one_node, "RDMA or a fixed CUDA"), 1),
    "megatronapp-semaphores": (_find_shared, nothing_left(_find_shared, "a name that every job shares"), 1),
    "megatronapp-tensor-order": (
        *(_find_tensor_order, nothing_left(_find_tensor_order, "a rank that takes what has arrived for it alone")),
        1,
    ),
    "megatronapp-trace-sample": (_find_sample, _check_sample, 1),
}
