"""A stand-in for Apex's layer norms."""

import torch
from torch.nn import functional


class FusedLayerNorm(torch.nn.Module):
    def __init__(self, shape, eps=1e-5, elementwise_affine=True):
        super().__init__()
        self.shape, self.eps = (shape,), eps
        self.weight = torch.nn.Parameter(torch.ones(shape)) if elementwise_affine else None
        self.bias = torch.nn.Parameter(torch.zeros(shape)) if elementwise_affine else None

    def forward(self, values):
        parts = [None if part is None else part.float() for part in (self.weight, self.bias)]
        return functional.layer_norm(values.float(), self.shape, *parts, self.eps).to(values.dtype)


class MixedFusedLayerNorm(FusedLayerNorm):
    def __init__(self, shape, eps=1e-5):
        super().__init__(shape, eps)

    def forward(self, values):
        parts = [part.float() for part in (self.weight, self.bias)]
        return functional.layer_norm(values.float(), self.shape, *parts, self.eps).to(self.weight.dtype)
