"""A stand-in for Apex's optimizers."""

import amp_C
import torch


class FusedAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
                 weight_decay=0.0, amsgrad=False, set_grad_none=True):  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.mode = 1 if adam_w_mode else 0

    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            lists = [[], [], [], []]
            for p in group["params"]:
                if p.dtype not in (torch.float16, torch.float32):
                    raise RuntimeError("FusedAdam only support fp16 and fp32.")
                if not self.state[p]:
                    self.state[p]["first"] = torch.zeros_like(p.data, dtype=torch.float32)
                    self.state[p]["second"] = torch.zeros_like(p.data, dtype=torch.float32)
                state = self.state[p]
                for to, what in zip(lists, (p.grad.data, p.data, state["first"], state["second"]), strict=True):
                    to.append(what)
            b1, b2 = group["betas"]
            amp_C.multi_tensor_adam(65536, None, lists, group["lr"], b1, b2, group["eps"], group["step"],
                                    self.mode, 1, group["weight_decay"])  # fmt: skip
