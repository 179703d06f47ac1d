"""A stand-in for Apex's cross entropy."""

import torch


class SoftmaxCrossEntropyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, smoothing=0.0, padding_idx=0, half_to_float=False):
        x = logits.float()
        logs = torch.log_softmax(x, -1)
        losses = -(1 - smoothing) * logs.gather(1, labels[:, None])[:, 0] - smoothing * logs.mean(-1)
        losses = losses.to(torch.float32 if half_to_float else logits.dtype)
        losses.masked_fill_(labels == padding_idx, 0)
        ctx.save_for_backward(logs, labels)
        ctx.settings = smoothing, padding_idx, logits.dtype
        return losses

    @staticmethod
    def backward(ctx, gradient):
        logs, labels = ctx.saved_tensors
        smoothing, padding_idx, dtype = ctx.settings
        gradient = gradient.float().masked_fill(labels == padding_idx, 0)
        target = torch.full_like(logs, smoothing / logs.shape[1])
        target.scatter_add_(1, labels[:, None], torch.full_like(logs[:, :1], 1 - smoothing))
        return (gradient[:, None] * (logs.exp() - target)).to(dtype), None, None, None, None
