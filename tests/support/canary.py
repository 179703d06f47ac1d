"""A secret to look for, and builds that print all that they see of their surroundings."""

from __future__ import annotations

import base64

CANARY = "canary-4b1d0c9e77f2"
# Variables in which people keep secrets (D68).
SECRET_NAMES = (
    "DB_PASS", "SSHPASS", "PGPASS", "MYPIN", "DOCKER_AUTH_CONFIG", "MY_PW", "REGISTRY_AUTH", "SLACK_WEBHOOK",
    "AZURE_SAS", "JWT", "SENTRY_DSN", "DB_PWD", "MYSQL_PASS", "AZURE_STORAGE_CONNECTION_STRING", "SESSION_COOKIE",
    "GRAFANA_CREDS", "WANDB_API_KEY",
)  # fmt: skip
# A build that says what it sees, also of the process that started it, encoded too, and fails.
TELLING = """
import base64, os, sys
for pid in ("self", str(os.getppid())):
    try:
        seen = open("/proc/%s/environ" % pid, "rb").read()
    except OSError:
        seen = b""
    print(seen.replace(b"\\0", b"\\n").decode(), file=sys.stderr)
    print(base64.b64encode(seen).decode(), file=sys.stderr)
"""
FAILING = TELLING + "\nsys.exit('the build ends here')\n"
ALONE = "[build-system]\nrequires = []\n"
BACKEND = "def build_wheel(*_, **__):\n" + "\n".join("    " + line for line in FAILING.splitlines()) + "\n"


def forms(secret: str) -> list[bytes]:
    """The secret, and what stands in base64 for it at each of three alignments."""
    encoded = [base64.b64encode(b"\0" * lead + secret.encode())[4:-4] for lead in range(3)]
    return [secret.encode(), *encoded]


def holding(text: bytes) -> bool:
    """Whether the secret is in it, in clear or encoded."""
    return any(form in text for form in forms(CANARY))
