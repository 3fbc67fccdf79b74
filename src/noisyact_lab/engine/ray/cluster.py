"""A Ray cluster: the connection to it, and the versions that all its machines must share."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from noisyact.extras import how_to_install
from noisyact_lab.engine.folder.records import signature

__all__ = ["check_installed", "check_versions", "connected", "versions"]


def check_installed() -> None:
    """Raise an error that says how to install Ray, if it is missing."""
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError(f"engine 'ray': ray is not installed; it needs: {how_to_install('ray')}") from None


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module ray, connected to the cluster at the address; without one, ray.init finds or starts a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports from a cluster started here
    import ray

    if ray.is_initialized():
        yield ray
        return
    _reach(address or os.environ.get("RAY_ADDRESS"))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "" if address is None else f" {address!r}"
        hint = " (does it need a token, RAY_AUTH_TOKEN?)" if isinstance(error, ConnectionError) else ""
        raise ValueError(f"Ray cluster{where}: {' '.join(str(error).split())}{hint}") from None
    try:
        with contextlib.redirect_stdout(_WithoutRay(sys.stdout)):  # pyright: ignore[reportArgumentType]
            yield ray
    except ConnectionError as error:
        raise ValueError(f"the connection to the Ray cluster was lost ({error}); what is done is kept") from None
    finally:
        with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):  # it prints what was withheld
            ray.shutdown()


class _WithoutRay:
    """A stream that drops what one of Ray's threads prints: pages about a lost node, in the middle of the results."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if threading.current_thread().name == "ray_listen_error_messages":
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _reach(address: str | None) -> None:
    """Raise an error if nothing listens at the address: Ray itself tries for minutes, and says little."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"Ray cluster {address!r} cannot be reached ({error}); does it run there, and is the port open?"
        ) from None


def versions() -> dict[str, str]:
    """The versions that must be the same on all machines for results to be the same."""
    found = signature({"device": "cpu"})
    return {"noisyact's source": found["source_sha256"][:12], "torch": found["torch"].partition("+")[0]}


def check_versions(host: str, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise an error if a node has other versions than this machine.

    >>> check_versions("node-7", {"torch": "2.12.0"}, {"torch": "2.13.0"})
    Traceback (most recent call last):
    ...
    ValueError: Ray node node-7: torch is 2.12.0 there and 2.13.0 here; install the same on both
    """
    for name, version in here.items():
        if there.get(name) != version:
            raise ValueError(
                f"Ray node {host}: {name} is {there.get(name)} there and {version} here; install the same on both"
            )
