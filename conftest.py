"""Doctests are looked for in every module; those that import Triton cannot be where there is none."""

import importlib.util

pytest_plugins = ["version_record"]

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/noisyact/ops/triton/*", "src/*triton_*.py"]
