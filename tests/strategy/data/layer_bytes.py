"""layer_bytes.py HIDDEN HEADS SEQUENCE BATCH VOCABULARY: bytes that a layer keeps for its backward pass, and of logits.

Megatron's layer of 2021 in plain torch, half precision, tensors without data. What a fused kernel keeps is said by a
Function of its own; dropout is the GPU's, with a mask of one byte.
"""

import json
import sys
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode

hidden, heads, sequence, batch, vocabulary = map(int, sys.argv[1:])


class Fused(Function):
    """Keeps tensors and gives one of the first one's shape: LayerNorm and GeLU their input, softmax its output."""

    @staticmethod
    def forward(ctx, x, output, *others):
        result = torch.empty_like(x)
        ctx.save_for_backward(result if output else x, *others)
        return result


class Peak(TorchDispatchMode):
    """The most bytes that storages had at once."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.seen = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.untyped_storage() not in self.seen:
                storage = each.untyped_storage()
                self.seen.add(storage)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.free, storage.nbytes())
        return result

    def free(self, size):
        self.now -= size


def weight(*shape):
    return torch.empty(*shape, dtype=torch.half, requires_grad=True)


def dropout(x):
    return torch.native_dropout(x, 0.1, True)[0]


def layer(x, norms, qkv, bias, dense, wide, narrow):
    size = hidden // heads
    mixed = torch.nn.functional.linear(Fused.apply(x, False, norms), qkv, bias).view(sequence, batch * heads, 3 * size)
    query, key, value = (each.transpose(0, 1) for each in mixed.split(size, -1))
    maps = Fused.apply(torch.bmm(query, key.transpose(1, 2)), True)
    context = torch.bmm(dropout(maps), value).transpose(0, 1).reshape(sequence, batch, hidden)
    x = x + dropout(torch.nn.functional.linear(context, dense))
    inner = torch.nn.functional.linear(Fused.apply(x, False, norms), wide)
    return x + dropout(torch.nn.functional.linear(Fused.apply(inner, False), narrow))


with FakeTensorMode():
    weights = [weight(2, hidden), weight(3 * hidden, hidden), weight(3 * hidden), weight(hidden, hidden)]
    weights += [weight(4 * hidden, hidden), weight(hidden, 4 * hidden)]
    known = {each.untyped_storage()._cdata for each in weights}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = layer(weight(sequence, batch, hidden), *weights)
    table, last = weight(vocabulary, hidden), torch.empty(batch, sequence, hidden, dtype=torch.half)
    peak = Peak()
    peak.seen |= {table.untyped_storage(), last.untyped_storage()}
    with torch.no_grad(), peak:
        half = torch.nn.functional.linear(last, table)
        single = half.float()
    print(json.dumps({"layer": sum(kept.values()), "logits": peak.most}))
