"""`python -m rearview` is the `rearview` command; `torchrun ... -m rearview train` needs it."""

from rearview.cli import main

if __name__ == "__main__":
    main()
