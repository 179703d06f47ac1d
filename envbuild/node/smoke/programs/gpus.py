"""Smoke program `gpus`: how many GPUs torch sees."""

import torch

from .common import begin


def main() -> None:
    """One fact."""
    channel = begin().channel
    channel.facts({"gpus": torch.cuda.device_count()})
    channel.done()


if __name__ == "__main__":
    main()
