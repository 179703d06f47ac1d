"""A stand-in for Megatron-LM's kernel of this name."""


def forward_affine(values, shape, weight, bias, eps):
    x = values.float()
    mean = x.mean(-1)
    inverse = (x.var(-1, unbiased=False) + eps).rsqrt()
    normal = (x - mean[:, None]) * inverse[:, None]
    return [(normal * weight.float() + bias.float()).to(weight.dtype), mean, inverse]


def backward_affine(gradient, mean, inverse, values, shape, weight, bias, eps):
    g = gradient.float()
    normal = (values.float() - mean[:, None]) * inverse[:, None]
    scaled = g * weight.float()
    inner = scaled - scaled.mean(-1, keepdim=True) - normal * (scaled * normal).mean(-1, keepdim=True)
    parts = (inverse[:, None] * inner, (g * normal).sum(0), g.sum(0))
    return [part.to(like.dtype) for part, like in zip(parts, (values, weight, bias), strict=True)]
