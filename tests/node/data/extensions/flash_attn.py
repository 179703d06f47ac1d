"""A stand-in for flash-attn 2."""

import torch

__version__ = "2.8.3"


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    dtype = q.dtype
    q, k, v = (part.float().transpose(1, 2) for part in (q, k, v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.triu(torch.ones(scores.shape[-2:]), diagonal=1).bool(), float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).to(dtype)
