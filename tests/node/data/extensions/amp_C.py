"""A stand-in in plain torch for the compiled module of this name: right, so that a test can make one line wrong."""

import torch


def multi_tensor_adam(chunk, flag, lists, lr, beta1, beta2, eps, step, mode, correction, decay):
    for gradient, value, first, second in zip(*lists, strict=True):
        g, p = gradient.double(), value.double()
        g = g if mode == 1 else g + decay * p
        m = beta1 * first.double() + (1 - beta1) * g
        v = beta2 * second.double() + (1 - beta2) * g * g
        first.copy_(m)
        second.copy_(v)
        update = (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps)
        update = update + decay * p if mode == 1 else update
        value.copy_(p - lr * update)


def multi_tensor_l2norm(chunk, flag, lists, per_tensor):
    each = torch.stack([part.double().norm() for part in lists[0]]).float()
    return each.double().norm().float().reshape(1), each if per_tensor else each[:0]


def multi_tensor_scale(chunk, flag, lists, factor):
    for source, target in zip(*lists, strict=True):
        target.copy_(source.float() * factor)
        if not bool(torch.isfinite(source).all()):
            flag.fill_(1)
