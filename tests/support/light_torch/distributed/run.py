"""What torchrun is asked for by the joint smoke test: ranks with their variables, in sessions of their own."""

import argparse
import os
import subprocess
import sys
import time


def main():
    parser = argparse.ArgumentParser()
    for name in ("nnodes", "node_rank", "nproc_per_node", "master_port", "max_restarts"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--master_addr", required=True)
    parser.add_argument("--no_python", action="store_true", required=True)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    ranks = []
    for local in range(args.nproc_per_node):
        told = {
            "RANK": args.node_rank * args.nproc_per_node + local, "LOCAL_RANK": local,
            "WORLD_SIZE": args.nnodes * args.nproc_per_node,
            "MASTER_ADDR": args.master_addr, "MASTER_PORT": args.master_port,
        }  # fmt: skip
        env = {**os.environ, **{name: str(value) for name, value in told.items()}}
        ranks.append(subprocess.Popen(args.program, env=env, start_new_session=True))
    while any(rank.poll() is None for rank in ranks):
        if any(rank.returncode for rank in ranks):
            for rank in ranks:
                rank.kill()
        time.sleep(0.05)
    return int(any(rank.returncode for rank in ranks))


if __name__ == "__main__":
    sys.exit(main())
