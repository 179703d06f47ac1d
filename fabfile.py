"""The tasks of envbuild for hand use, where `fab` looks for them in a checkout."""

from envbuild.fab.fabfile import *  # noqa: F403
