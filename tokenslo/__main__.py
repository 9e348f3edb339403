"""Run the command line as ``python -m tokenslo``."""

from tokenslo.cli import main

if __name__ == "__main__":
    main()
