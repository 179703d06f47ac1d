"""`python -m envbuild`."""

from envbuild.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
