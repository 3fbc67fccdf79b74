"""``python -m noisyact_cli``: as the command `noisyact`."""

from noisyact_cli import main

if __name__ == "__main__":
    main()
