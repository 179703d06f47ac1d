.PHONY: provision test lint
provision: .venv/.ready
	.venv/bin/envbuild provision --target local
.venv/.ready: pyproject.toml .ci/setup
	sh .ci/setup
