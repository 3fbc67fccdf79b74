"""``python -m noisyact_lab``: as the command `noisyact`."""

from noisyact_lab.cli import main

if __name__ == "__main__":
    main()
