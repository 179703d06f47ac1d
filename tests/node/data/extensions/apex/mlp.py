"""A stand-in for Apex's MLP."""

import itertools

import torch


class MLP(torch.nn.Module):
    def __init__(self, mlp_sizes, bias=True, activation="relu"):
        super().__init__()
        self.function = {"relu": torch.relu, "sigmoid": torch.sigmoid}[activation]
        self.weights, self.biases = [], []
        for index, (inner, outer) in enumerate(itertools.pairwise(mlp_sizes)):
            for kind, into, shape in (("weight", self.weights, (outer, inner)), ("bias", self.biases, (outer,))):
                into.append(torch.nn.Parameter(torch.empty(*shape)))
                setattr(self, f"{kind}_{index}", into[-1])

    def forward(self, values):
        dtype = values.dtype
        values = values.float()
        for index in range(len(self.weights)):
            weight, bias = getattr(self, f"weight_{index}"), getattr(self, f"bias_{index}")
            values = self.function(values @ weight.float().t() + bias.float())
        return values.to(dtype)
