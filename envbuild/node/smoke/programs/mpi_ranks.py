"""RANK and LOCAL_RANK from the variables of the MPI that started this process; as a program, then what follows it.

DeepSpeed takes MASTER_PORT where both are set. Else it asks MPI, and takes port 29500 whatever was said.
"""

import os
import sys

# Of PALS, Open MPI, and MPICH and its kin. Slurm's are a stale 0 in a job whose ranks another MPI starts.
KNOWN = (
    ("PALS_RANKID", "PALS_LOCAL_RANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "MPI_LOCALRANKID"),
)


def tell() -> None:
    """Set both, where an MPI that is known says both."""
    for rank, local in KNOWN:
        if os.environ.get(rank) and os.environ.get(local):
            os.environ.update(RANK=os.environ[rank], LOCAL_RANK=os.environ[local])
            return


if __name__ == "__main__":
    tell()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the words of the launch, no shell's
