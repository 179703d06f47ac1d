"""The redactor: a planted secret never comes out, and ordinary text stays readable."""

from __future__ import annotations

import base64
import json
import re
import string
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envbuild.node import redact
from envbuild.node.redact import MASK, Redactor, looks_secret, redact_data, redact_text, secrets_of
from tests.support.canary import SECRET_NAMES

PLAIN = Redactor({})
CANARY = "c4nary/Value+with=odd&chars"


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("fetching https://user:hunter2@host/simple/", "hunter2"),
        ("https://tok3nvalue@github.com/a/b.git", "tok3nvalue"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ('curl -H "Authorization: token abcdef123" https://host', "abcdef123"),
        ('Proxy-Authorization: Digest username="bob", response="6629fae4"', "6629fae4"),
        ("{'Authorization': 'Bearer abcdefghijk'}", "abcdefghijk"),
        ("PRIVATE-TOKEN: xyzzy", "xyzzy"),
        ("got Bearer abc.def-ghi_jkl", "abc.def-ghi_jkl"),
        ("ghp_" + "a1B2" * 9, "a1B2a1B2"),
        ("hf_" + "Ab3" * 11, "Ab3Ab3"),
        ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
        ("glpat-" + "x1-Y" * 5, "x1-Yx1-Y"),
        ("github_pat_" + "Ab3" * 8, "Ab3Ab3"),
        ("npm_" + "Ab3" * 12, "Ab3Ab3"),
        ("xoxb-" + "Ab3" * 5, "Ab3Ab3"),
        ("sk-" + "Ab3" * 9, "Ab3Ab3"),
        ("nvapi-" + "Ab3" * 9, "Ab3Ab3"),
        ("dckr_pat_" + "Ab3" * 9, "Ab3Ab3"),
        ("ASIA" + "ABCDEFGH12345678", "ABCDEFGH"),
        ("eyJ" + "Ab3" * 5 + ".eyJ" + "Ab3" * 5 + ".sig", "Ab3Ab3"),
        ("Set-Cookie: a=xyzzy", "xyzzy"),
        ("PASSPHRASE=hunter2", "hunter2"),
        ("pypi-AgEIcHlwaS5vcmcCJDU3", "AgEIcHlwaS5vcmc"),
        ("--password=hunter2 --next", "hunter2"),
        ("huggingface-cli login --token hunter2", "hunter2"),
        ("x --secret-key 'hunter2 4'", "hunter2"),
        ("wandb login hunter2", "hunter2"),
        ("https://conda.host/t/tk-hunter2/channel", "hunter2"),
        ("WANDB_API_KEY=0123456789", "0123456789"),
        ('{"password": "hunter2"}', "hunter2"),
        ("https://host/?token=abc123&x=1", "abc123"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
    ],
)
def test_secrets_of_known_forms_are_masked(text: str, gone: str) -> None:
    redacted = PLAIN.text(text)
    assert gone not in redacted
    assert MASK in redacted


@pytest.mark.parametrize(
    "text",
    [
        "tokens_per_second=1234.5 median",
        "12 tokens/s: 4 tokens: 5",
        "ssh://git@github.com/org/repo",
        "https://github.com/astral-sh/uv/releases/download/0.9/uv.tar.gz",
        "numpy==2.1.0 --hash=sha256:0123456789abcdef",
        "commit a8b7867411b67fc78d6ccd8ed63d21f71a341779",
        "expected ',' but got an unexpected token: '}'",
        "task-runner-with-a-very-long-name-indeed",
        "tiktoken==0.14.0 --hash=sha256:0123456789abcdef",
        "requests (2.34.2), tiktoken (tiktoken==0.14.0rc1)",
        '{"tiktoken": "0.14.0", "detect-token": ">=1.5.0"}',
        "tiktoken==0.14.*",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert PLAIN.text(text) == text


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_d68_the_variables_that_people_keep_secrets_in_are_masked_by_value_and_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looks_secret(name)
    assert Redactor({name: "c4nary-value"}).text("it printed c4nary-value\n") == f"it printed {MASK}\n"
    assert PLAIN.data({"environment": {name: "4711"}}) == {"environment": {name: MASK}}
    for text in (f"{name}=4711", f"export {name}='4711'", f'{{"{name}": "4711"}}'):
        assert "4711" not in PLAIN.text(text)
    monkeypatch.setattr(redact, "_LEARNED", set())
    redact.learn({"environment": {name: "c4nary-value", "MY_KEY": "c4nary-of-a-key"}})
    assert redact_text("c4nary-value c4nary-of-a-key") == f"{MASK} {MASK}"


def test_what_is_secret_by_its_name_or_value_and_what_is_told() -> None:
    assert all(map(looks_secret, ("HF_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "MY_KEY", "github-pat", "apiKey")))
    ordinary = """I_MPI_PIN KMP_SPIN OLDPWD NVLINK_BYPASS AUTHOR COMPASS GIT_AUTHOR_NAME PATH PWD TOKENIZERS_PARALLELISM
        TIKTOKEN_CACHE_DIR MODEL_SIZE_KEY tokens_per_second HOME KEYBOARD"""
    assert list(filter(looks_secret, ordinary.split())) == []
    held = {"https_proxy": "http://me:word@proxy:3128", "HF_TOKEN": "x"}
    free = {"http_proxy": "http://proxy:3128", "WANDB_API_KEY": "", "PASSWORDS": {"path": "/p", "if": "exists"}}
    assert secrets_of({**held, **free}) == ["HF_TOKEN", "https_proxy"]
    data = {"pass": "of 3", "auth": "by key", "pin": "2.1.0", "dsn": "x", "google-auth": "see its page", "KEY": "a row"}
    packages = {"tiktoken": "0.14.0", "jwt-token": ">=0.14.0rc1", "detect-secrets": "1.5.0.post1+cu130"}
    told = {**data, "packages": packages, "build_key": "abcdef"}
    assert PLAIN.data(told) == told
    assert PLAIN.data({"api_key": "abcdef"}) == {"api_key": MASK}


@pytest.mark.parametrize(
    "value", ["0.14.0x", "1", "20260101", "hunter2", "1.2.3+" + "a" * 30, ">=", "v1.local.abc", "1.2.3.4.5.6"]
)
def test_a_token_is_masked_where_it_is_no_version(value: str) -> None:
    assert PLAIN.data({"token": value}) == {"token": MASK}
    assert PLAIN.text(f"token={value}") == f"token={MASK}"
    for name in ("password", "PGPASSWORD", "passphrase"):  # whatever it is
        assert PLAIN.data({name: "0.14.0"}) == {name: MASK}
        assert PLAIN.text(f"{name}=0.14.0") == f"{name}={MASK}"


def test_what_is_learned_is_no_version_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_LEARNED", set())
    redact.learn({"packages": {"jwt-token": "2026.11.25"}, "variables": {"hf_token": "hunter2hunter2"}})
    assert redact_text("2026.11.25 hunter2hunter2") == f"2026.11.25 {MASK}"


@pytest.mark.parametrize(
    "form",
    [
        CANARY,
        quote(CANARY, safe=""),
        quote(CANARY),
        base64.b64encode(CANARY.encode()).decode(),
        base64.urlsafe_b64encode(CANARY.encode()).decode(),
        CANARY.encode().hex(),
        CANARY.encode().hex().upper(),
        json.dumps(CANARY),
    ],
)
def test_a_canary_in_the_environment_never_comes_out(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", CANARY)
    redacted = redact_text(f"before {form} after")
    assert "c4nary" not in redacted
    assert form not in redacted
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")


@given(user=st.text(string.ascii_letters, max_size=9), secret=st.text(string.printable, min_size=12, max_size=60))
def test_a_secret_inside_basic_credentials_is_masked_at_every_alignment(user: str, secret: str) -> None:
    assume(not Path(secret).exists())  # a path of a file is none
    encoded = base64.b64encode(f"{user}:{secret}".encode()).decode()
    redacted = Redactor({"A_SECRET": secret}).text(encoded)
    assert MASK in redacted
    # At most the characters at the edges, which mix the secret with its neighbours, remain.
    assert len(redacted) <= len(encoded) - len(secret) + len(MASK)


@given(
    before=st.text(max_size=30),
    secret=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=8, max_size=50),
    after=st.text(max_size=30),
)
def test_the_value_of_a_secret_variable_never_survives(before: str, secret: str, after: str) -> None:
    if secret in MASK or secret.strip("*") == "" or Path(secret).exists():
        return
    redacted = Redactor({"MY_PASSWORD": secret}).text(before + secret + after)
    assert secret not in redacted


_PIECES = [
    "gho_", "github_pat_", "HF_", "hf_", "glpat-", "AKIA", "asia", "pypi-AgE", "npm_", "xoxs-", "sk-", "NVAPI-",
    "nvapi-", "dckr_pat_", "eyJ", ".", "Authorization", "cookie", "X-Api-Key", "private-token", ":", "=", '"', "://",
    "@", "Token", "passwd", "PASSPHRASE", "Secret", "api_key", "access-key", "Ab3dEf6hIj9kLm2o", "A" * 16, "bearer ",
    "-----BEGIN RSA PRIVATE KEY-----", " ", "\n",
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=8)), max_size=8).map("".join))
def test_what_is_left_after_one_look_has_nothing_to_mask(text: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redact, "_SUSPICIOUS", re.compile(""))
        looked_at_closely = PLAIN.text(text)
    assert PLAIN.text(text) == looked_at_closely


@given(st.text())
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = PLAIN.text(text)
    assert PLAIN.text(once) == once


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_data_keeps_its_shape_and_stays_json(data: object) -> None:
    redacted = PLAIN.data(data)
    json.dumps(redacted)
    assert type(redacted) is type(data)


def test_data_under_secret_keys_bytes_and_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", CANARY)
    data = {"env": {"HF_TOKEN": "abc"}, "raw": CANARY.encode(), "path": Path("/a") / CANARY, "list": (CANARY, 1, None)}
    redacted = redact_data(data)
    assert redacted["env"] == {"HF_TOKEN": MASK}
    assert redacted["raw"] == MASK.encode()
    assert "c4nary" not in str(redacted["path"])
    assert redacted["list"] == [MASK, 1, None]


def test_the_values_of_variables_are_masked_in_other_forms_and_short_ones_and_paths_are_not(tmp_path: Path) -> None:
    secret = "correct'horse\"bat\\tery"
    key = tmp_path / "id_ed25519"
    key.write_text("x")
    redactor = Redactor(
        {
            "MY_PASSWORD": secret,
            "https_proxy": "http://bob:open%20sesame@proxy:3128",
            "DEPLOY_KEY": "first-line-of-the-key\nsecond-line-of-the-key\n",
            "MY_TOKEN": "1",
            "SSH_KEY": str(key),
        }
    )
    assert redactor.text(f"KeyError: {KeyError(secret)}") == f"KeyError: '{MASK}'", "as an exception writes it"
    assert redactor.text("auth failed with 'open sesame'") == f"auth failed with '{MASK}'"
    assert "second-line" not in redactor.text("| second-line-of-the-key |")
    assert redactor.text(f"1 of 1 with {key}") == f"1 of 1 with {key}"


@pytest.mark.parametrize("text", ["a" * 1_000_000, "://" * 300_000, "token" * 200_000, "-----BEGIN " * 90_000])
def test_a_megabyte_is_redacted_in_linear_time(text: str) -> None:
    started = time.process_time()
    PLAIN.text(text)
    assert time.process_time() - started < 5
