"""A stand-in for Megatron-LM's kernel of this name."""

import torch


def forward(values, scale):
    future = torch.triu(torch.ones(values.shape[-2:]), diagonal=1).bool()
    return torch.softmax((values.float() * scale).masked_fill(future, float("-inf")), -1).to(values.dtype)


def backward(gradient, result, scale):
    g, p = gradient.float(), result.float()
    gradient.copy_(scale * p * (g - (g * p).sum(-1, keepdim=True)))
    return gradient
