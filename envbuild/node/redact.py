"""The one redactor, of nodes and of the controller: every sink (log, answer, report, terminal) has its text from it.

Removed are: credentials in URLs, authorization headers, tokens of well-known forms, values given to secret-looking
names, and the values of environment variables whose names look secret, also base64-, URL- and
JSON-encoded, in hexadecimal and as Python writes a text.
"""

import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MASK = "***"
# Shorter values ("1", "true", "none") would make every text unreadable without protecting anything.
SHORTEST_SECRET = 8

_SECRET_WORDS = frozenset(
    "TOKEN PASSWORD PASSWORDS PASSWD PASSPHRASE SECRET SECRETS CREDENTIAL CREDENTIALS CREDS APIKEY PAT".split()
)
# Of variables alone: as the name of a field (`pass`, `pin`, `auth`) they are ordinary words.
_VARIABLE_WORDS = frozenset("PASS PW PWD PIN OTP AUTH WEBHOOK SAS JWT DSN COOKIE COOKIES".split())
_VARIABLE_ENDINGS = ("PASS", "PWD", "PIN", "AUTH", "WEBHOOK", "JWT", "DSN")
# The folder of a shell, and processors that an MPI or a thread is pinned to.
_ORDINARY_VARIABLE = re.compile(r"(OLD)?PWD\Z|(I_MPI|KMP|GOMP|MPICH|OMPI)_|PIN_MEMORY|(\w*_)?(SPIN|BYPASS|COMPASS)\Z")
_KEY_COMPANIONS = frozenset({"API", "ACCESS", "PRIVATE", "SECRET", "AUTH", "ACCOUNT", "ENCRYPTION", "SIGNING"})
_SECRET_ENDINGS = ("TOKEN", "PASSWORD", "PASSWD", "SECRET", "APIKEY", "ACCESSKEY")
_ORDINARY_WORDS = frozenset({"TIKTOKEN"})  # TIKTOKEN_CACHE_DIR

# No pattern starts with an unbounded repeat: a megabyte without a match must stay linear.
_URL_USERINFO = re.compile(r"://([^\s/?#\"'<>]*)@")
_CONDA_TOKEN = re.compile(r"(://[^\s/]{1,253}/t/)[^\s/\"'<>]{4,}")
_HEADER = re.compile(
    r"(?i)((?:proxy-)?authorization|private-token|x-api-key|x-auth-token|(?:set-)?cookie)"
    r"([\"']?[ \t]*[:=][ \t]*[\"']?)((?:digest\b[^\r\n]*)|[^\r\n\"']+)"
)
_ASSIGNED = re.compile(
    r"(?i)((?:token|passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key)"
    r"(?:=[\"']?|[\"']\s{0,4}:\s{0,4}[\"']))([^\s\"'&,;]+)"
)
_OPTION = re.compile(
    r"(?i)(?<![\w-])((?:wandb[ \t]{1,4}login|--(?:(?:hf|api|auth|access|client|github|gitlab|user|db)[_-])?"
    r"(?:token|passw(?:or)?d|passphrase|secret|(?:api|access|secret|wandb)[_-]?key))[ \t]+[\"']?)"
    r"([^\s\"'&,;<-][^\s\"'&,;]{3,})"
)
# A variable as a shell and as JSON has it; its name decides.
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{1,63})(=[\"']?|[\"']\s{0,4}:\s{0,4}[\"'])([^\s\"'&,;]+)")
# Of packages: tiktoken==0.14.0, "detect-secrets": ">=1.5.0". Nothing that is generated looks so.
_VERSION = re.compile(
    r"[<>=!~]{0,3} ?\d{1,4}(?:\.(?:\d{1,8}|\*)){1,4}"
    r"(?:[.-]?(?:a|b|rc|post|dev)\d{1,8}){0,3}(?:\+[a-z0-9.]{1,16})?[)\]}\\]*\Z"
)
_BEARER = re.compile(r"(?i)\b(bearer[ \t]+)([A-Za-z0-9._~+/=-]{8,})")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.S
)
_KNOWN_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"
    r"|hf_[A-Za-z0-9]{16,}|glpat-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|pypi-(?:AgE[A-Za-z0-9_-]{13,}|[A-Za-z0-9_-]{40,})|npm_[A-Za-z0-9]{30,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|sk-[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{20,}|dckr_pat_[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r")"
)
# What every one of these patterns needs somewhere: nearly all texts have nothing of it, and are left after one look.
_SUSPICIOUS = re.compile(
    r"(?i)://|authorization|login|token|key|cookie|pass|secret|bearer"
    r"|gh[pousr]_|_pat_|hf_|glpat-|a[ks]ia|pypi-|npm_|xox|sk-|nvapi-|eyj|(?-i:[A-Z0-9_][\"']?\s{0,4}[=:])"
)


@functools.lru_cache(maxsize=4096)
def looks_secret(name: str, any_key: bool = True) -> bool:
    """Whether a variable or field of this name holds a secret.

    `any_key`: it is a variable, of which a part `KEY` alone is enough; otherwise it needs a companion (`API_KEY`).
    What is written in capitals is a variable too, as far as its other parts go.
    """
    parts = [part for part in re.split(r"[^A-Z0-9]+", name.upper()) if part]
    if (any_key or name.isupper()) and _is_secret_variable(name.upper(), parts):
        return True
    telling = [part for part in parts if part not in _ORDINARY_WORDS]
    if any(part in _SECRET_WORDS or part.endswith(_SECRET_ENDINGS) for part in telling):
        return True
    if "AUTHORIZATION" in parts:
        return True
    if "KEY" not in parts:
        return False
    # MODEL_SIZE_KEY is the row of a table of models.
    return bool(_KEY_COMPANIONS.intersection(parts)) or (any_key and "SIZE" not in parts)


def _is_secret_variable(name: str, parts: "list[str]") -> bool:
    """Whether words that mean a secret in the name of a variable say so."""
    if _ORDINARY_VARIABLE.match(name):
        return False
    if {"CONNECTION", "STRING"}.issubset(parts):
        return True
    return any(part in _VARIABLE_WORDS or part.endswith(_VARIABLE_ENDINGS) for part in parts)


def _is_version(name: str, value: str) -> bool:
    """Whether it is that of a package, whose name may look secret. Of passwords nothing is: people choose anything."""
    return "pass" not in name.lower() and _VERSION.match(value) is not None


class Redactor:
    """Redacts text and data, given the secrets of one environment.

    `environ` is searched for secret-looking names and for URLs with passwords; `extra` are further secret values.
    """

    def __init__(self, environ: "Mapping[str, str]", extra: "Iterable[str]" = ()) -> None:
        """Collect the secrets once; the object can be used from several threads."""
        self._secrets = _secrets_pattern(frozenset(_secret_values(environ)) | frozenset(extra))
        # Of many nodes nearly all texts are the same.
        self._repeated = functools.lru_cache(maxsize=8192)(self.text)

    def text(self, text: str) -> str:
        """The text with every secret replaced by `***`."""
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
        if _SUSPICIOUS.search(text) is None:
            return text
        text = _PRIVATE_KEY.sub(MASK, text)
        text = _URL_USERINFO.sub(_mask_userinfo, text)
        text = _CONDA_TOKEN.sub(r"\1" + MASK, text)
        text = _HEADER.sub(r"\1\2" + MASK, text)
        text = _ASSIGNED.sub(_mask_assigned, text)
        text = _OPTION.sub(_mask_assigned, text)
        text = _VARIABLE.sub(_mask_variable, text)
        text = _BEARER.sub(r"\1" + MASK, text)
        return _KNOWN_FORMS.sub(MASK, text)

    def data(self, value: "Any") -> "Any":
        """The same for JSON-like data: strings, keys, and values under secret-looking keys. Tuples become lists."""
        if isinstance(value, str):
            return self._repeated(value)
        if isinstance(value, dict):
            return {self._key(key): self._field(key, item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.data(item) for item in value]
        if isinstance(value, bytes):
            return self.text(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if hasattr(value, "__fspath__"):
            return type(value)(self.text(str(value)))
        return value

    def _key(self, key: "Any") -> "Any":
        return self._repeated(key) if isinstance(key, str) else key

    def _field(self, key: "Any", item: "Any") -> "Any":
        if isinstance(key, str) and isinstance(item, str) and item and looks_secret(key, any_key=False):
            return self.data(item) if _is_version(key, item) else MASK
        return self.data(item)


_LEARNED: "set[str]" = set()


def learn(data: "Any", variables: bool = False) -> None:
    """From now on, take the values under secret-looking names in JSON-like `data` for secrets.

    `variables`: its keys are the names of variables, as those of a field `environment` or `variables` are.
    """
    if isinstance(data, dict):
        named = {str(key): value for key, value in data.items() if isinstance(value, str)}
        _LEARNED.update(_secret_values(named, any_key=variables))
        for key, item in data.items():
            learn(item, key in ("environment", "variables"))
    elif isinstance(data, (list, tuple)):
        for item in data:
            learn(item)


def redactor() -> Redactor:
    """What redacts with the secrets of this process's environment, and those learned until now."""
    return Redactor(os.environ, _LEARNED)


def redact_text(text: str) -> str:
    """Redact with the secrets of this process's environment, and those learned."""
    return redactor().text(text)


def redact_data(data: "Any") -> "Any":
    """Redact JSON-like data as `redact_text` does; shape as in `Redactor.data`."""
    return redactor().data(data)


def secrets_of(variables: "Mapping[str, Any]") -> "list[str]":
    """Names of the variables that hold a secret, by their name or by their value (a URL with a password)."""
    given = sorted((name, value) for name, value in variables.items() if value and isinstance(value, str))
    return [name for name, value in given if looks_secret(name) or Redactor({}).text(value) != value]


def has_credentials(value: str) -> bool:
    """Whether `value` holds a URL with a user name or a password."""
    return _URL_USERINFO.search(value) is not None


def _mask_assigned(match: "re.Match[str]") -> str:
    name, value = match.groups()
    return match.group(0) if _is_version(name, value) else name + MASK


def _mask_variable(match: "re.Match[str]") -> str:
    name, between, value = match.groups()
    return name + between + MASK if looks_secret(name, False) and not _is_version(name, value) else match.group(0)


def _mask_userinfo(match: "re.Match[str]") -> str:
    userinfo = match.group(1)
    scheme = match.string[max(0, match.start() - 8) : match.start()].lower()
    # `ssh://git@host` names an account, not a secret; over http a lone user name is often a token.
    if ":" not in userinfo and scheme.endswith(("ssh", "sftp", "rsync")):
        return match.group(0)
    return "://%s@" % MASK


def _secret_values(environ: "Mapping[str, str]", any_key: bool = True) -> "Iterator[str]":
    for name, value in environ.items():
        if len(value) >= SHORTEST_SECRET and looks_secret(name, any_key):
            if not (_is_file(value) or _is_version(name, value)):
                yield value
        if "://" in value and "@" in value:
            password = _password(value)
            if len(password) >= SHORTEST_SECRET:
                yield password


def _is_file(value: str) -> bool:
    """A name like `SSL_KEY` often holds the path of a file; hiding the path helps nobody."""
    if not value.startswith("/"):
        return False
    try:
        return os.path.exists(value)
    except ValueError:
        return False


def _password(url: str) -> str:
    from urllib.parse import unquote, urlsplit

    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


@functools.lru_cache(maxsize=8)
def _secrets_pattern(values: "frozenset[str]") -> "re.Pattern[str] | None":
    forms = {form for value in values for form in _forms(value) if len(form) >= SHORTEST_SECRET}
    if not forms:
        return None
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form))))


def _forms(value: str) -> "Iterator[str]":
    """The value and the ways in which it is commonly written into other texts."""
    import base64
    from urllib.parse import quote, quote_plus

    yield value
    yield value.strip()
    yield quote(value, safe="", errors="surrogatepass")
    yield quote(value, errors="surrogatepass")
    yield quote_plus(value, errors="surrogatepass")
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]  # in a traceback
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= 2 * SHORTEST_SECRET)
    raw = value.encode("utf-8", "surrogatepass")
    yield raw.hex()
    yield raw.hex().upper()
    for lead in range(3):
        # Inside a longer base64 text (`user:secret`) the value can begin at any of three alignments; the characters
        # at its edges mix with its neighbours and are left out.
        encoded = base64.b64encode(b"\0" * lead + raw)
        middle = encoded[(0, 2, 3)[lead] : len(encoded) - 4 if (lead + len(raw)) % 3 else len(encoded)].decode()
        yield middle
        yield middle.replace("+", "-").replace("/", "_")
