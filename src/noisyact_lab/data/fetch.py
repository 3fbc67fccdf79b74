"""Download of data sets over https, or extraction from an archive. Every file is checked before it gets its name."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from noisyact_lab.data.archive import take
from noisyact_lab.data.catalog import DataFile, DataSet, dataset
from noisyact_lab.data.locate import Missing, file_in, find, home
from noisyact_lab.data.store import Refused, locked, store
from noisyact_lab.data.verify import Progress, problem_of, verify

__all__ = ["Refused", "fetch"]

_BLOCK = 1 << 16
_SECONDS = 60


def fetch(name: str | DataSet, progress: Progress | None = None, *, archive: Path | None = None) -> Path:
    """Fetch the files of a data set that are missing or damaged, and return their folder.

    Two processes may call this at once: the second waits and then finds the files.

    Args:
        name: the data set or its name.
        progress: called with a file's name, the bytes received so far and the file's size.
        archive: a zip, tar or tar.gz with some or all of the files, for data sets without addresses.

    Raises: :class:`Refused` for a file with a wrong size or checksum, ConnectionError for a failed download.
    """
    chosen = dataset(name)
    with contextlib.suppress(Missing):
        if not verify(chosen):
            return find(chosen)
    if archive is None and not chosen.fetchable:
        raise Refused(f"data set {chosen.name!r} has no address to fetch it from. {chosen.source}")
    folder = home() / chosen.name
    with locked(folder):
        needed = [file for file in chosen.files if not _is_valid(folder, file)]
        if archive is not None:
            if needed and not take(archive, needed, folder, progress):
                raise Refused(f"{archive} has none of {', '.join(file.name for file in needed[:4])}")
            return folder
        for file in needed:
            _download(file, folder, progress)
    return folder


def _is_valid(folder: Path, file: DataFile) -> bool:
    path = file_in(folder, file)
    return path is not None and problem_of(path, file) is None


def _download(file: DataFile, folder: Path, progress: Progress | None) -> None:
    address = file.address or ""
    _only_https(address)
    opener = urllib.request.build_opener(_Redirects)
    request = urllib.request.Request(address, headers={"User-Agent": "noisyact", "Accept-Encoding": "identity"})
    try:
        with contextlib.closing(opener.open(request, timeout=_SECONDS)) as stream:
            store(_blocks(stream), file, folder, address, progress)
    except urllib.error.HTTPError as error:
        error.close()
        raise ConnectionError(f"{address}: the server returned {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
        raise ConnectionError(f"{address}: {getattr(error, 'reason', error)}") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https addresses only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        """Follow the redirect, or raise :class:`Refused` if it leaves https."""
        _only_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _only_https(address: str) -> None:
    if not address.startswith("https://"):
        raise Refused(f"{address!r}: only https:// addresses are fetched")


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block
