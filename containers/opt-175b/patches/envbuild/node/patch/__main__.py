"""A program that applies patches under an environment's own interpreter: its syntax is that of the sources.

JSON on stdin: `directory`, `specs` (as `patch.apply` takes them), `facts`. JSON on stdout: `results` (of `patch.apply`,
in order), and `error` (of a NodeError) where one could not be applied; that one and those after it changed nothing.
"""

import json
import sys

from envbuild.node.patch import apply
from envbuild.node.protocol import NodeError


def main() -> int:
    """Apply what stdin says; always ends with 0 when it could answer."""
    request = json.load(sys.stdin)
    results = []
    error = None
    for spec in request["specs"]:
        try:
            results.append(apply.apply(request["directory"], spec, request.get("facts") or {}))
        except NodeError as refused:
            error = refused.as_dict()
            break
    json.dump({"results": results, "error": error}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
