"""A stand-in for Apex's fused dense layers."""

import torch
from torch.nn import Parameter, functional


def _linear(values, weight, bias):
    return functional.linear(values.float(), weight.float(), bias.float())


class FusedDense(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.weight, self.bias = Parameter(torch.empty(outer, inner)), Parameter(torch.empty(outer))

    def forward(self, values):
        return _linear(values, self.weight, self.bias).to(values.dtype)


class FusedDenseGeluDense(torch.nn.Module):
    def __init__(self, inner, middle, outer):
        super().__init__()
        self.weight1, self.bias1 = Parameter(torch.empty(middle, inner)), Parameter(torch.empty(middle))
        self.weight2, self.bias2 = Parameter(torch.empty(outer, middle)), Parameter(torch.empty(outer))

    def forward(self, values):
        middle = functional.gelu(_linear(values, self.weight1, self.bias1), approximate="tanh")
        return _linear(middle, self.weight2, self.bias2).to(values.dtype)
