"""A run of twelve updates, finished or stopped, to be damaged and resumed."""

import json
from hashlib import sha256
from pathlib import Path

from commands import SET, SMOKE, noisyact

from noisyact_lab.engine.job import folder_of


def place(out) -> Path:
    return folder_of(out, "unique", "smoke", "nan", 0)


def train(out, *more, code=0):
    return noisyact("run", "unique", "--arm", "nan", *SMOKE, *SET, "--out", out, *more, code=code)


def stop(out) -> Path:
    """Leave a finished run as if it had been killed before its end; returns its folder."""
    (place(out) / "result.json").unlink()
    return place(out)


def reseal(checkpoint: Path, state, tensors: bytes | None = None) -> None:
    """Write a checkpoint's files with a checksum that fits, as another program would."""
    data = (checkpoint / "tensors.safetensors").read_bytes() if tensors is None else tensors
    state.pop("sha256", None)
    digest = sha256(data)
    digest.update(json.dumps(state).encode())
    (checkpoint / "state.json").write_text(json.dumps({**state, "sha256": digest.hexdigest()}))
    (checkpoint / "tensors.safetensors").write_bytes(data)
