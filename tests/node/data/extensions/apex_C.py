"""A stand-in for the compiled module of this name."""

import torch


def flatten(parts):
    return torch.cat([part.reshape(-1) for part in parts])


def unflatten(flat, parts):
    out, start = [], 0
    for part in parts:
        out.append(flat[start : start + part.numel()].view_as(part))
        start += part.numel()
    return out
