"""Loggers: TensorBoard, Weights & Biases, trackio and MLflow, each a class of the same three methods.

What is logged when is for :mod:`noisyact_lab.engine.logging.run_log`. The libraries are imported where they are used.
"""

from __future__ import annotations

import contextvars
import importlib
import importlib.util
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from noisyact.extras import how_to_install
from noisyact_lab.engine.experiment import UnknownName

__all__ = ["LOGGERS", "Logger", "MLflow", "TensorBoard", "Trackio", "WandB", "check"]


class Logger(Protocol):
    """Sends the metrics of one run somewhere.

    Args:
        where: what follows the logger's name and a colon on the command line, if anything does.
    """

    needs: ClassVar[tuple[str, str]]
    """The module that the logger imports, and the extra of noisyact that installs it."""

    def __init__(self, where: str | None) -> None: ...

    def start(self, config: Mapping[str, Any], folder: Path, identity: str) -> int:
        """Begin, or continue what was logged of this run before.

        Args:
            config: the content of config.json.
            folder: for the logger's files.
            identity: unique to the run, and the same when it is resumed.

        Returns: the last update that is logged already; 0 or less if none is.
        """
        ...

    def log(self, update: int, metrics: Mapping[str, float], at: float) -> None:
        """Log an evaluation, and when it was made."""
        ...

    def finish(self, record: Mapping[str, Any] | None) -> None:
        """End, with the content of result.json, or None for a run that did not reach its end."""
        ...


class TensorBoard:
    """Event files in the run's folder or, if one is given, in a folder for all runs.

    When a run is resumed its event file is written again from its metrics, so that no reader finds a point twice.
    """

    needs: ClassVar[tuple[str, str]] = ("tensorboard", "experiments")

    def __init__(self, where: str | None) -> None:
        self._where = where

    def start(self, config: Mapping[str, Any], folder: Path, identity: str) -> int:
        """Write the settings."""
        from torch.utils.tensorboard import SummaryWriter

        if self._where is not None:
            folder = Path(self._where) / f"{_title(config)}-{identity[:8]}"
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._config, self._update = _flat(config), 0
        _quieten_threads()
        self._writer = SummaryWriter(str(folder))
        self._writer.add_text("config", f"```\n{json.dumps(config, indent=1)}\n```")
        return 0

    def log(self, update: int, metrics: Mapping[str, float], at: float) -> None:
        """Write scalars, and flush them to the disk."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, update, walltime=at)
        self._writer.flush()
        self._update = update

    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Write the result as scalars and, with the settings, as hyperparameters."""
        from torch.utils.tensorboard.summary import hparams

        if record is not None:
            numbers = _numbers(record)
            allowed = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in self._config.items()}
            for summary in hparams(allowed, numbers):
                self._writer._get_file_writer().add_summary(summary)  # add_hparams would make another run of it
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, self._update)
            self._writer.add_text("status", record["status"], self._update)
        self._writer.close()


class WandB:
    """Weights & Biases; a project may be given. Its files are in the run's folder."""

    needs: ClassVar[tuple[str, str]] = ("wandb", "wandb")

    def __init__(self, where: str | None) -> None:
        self._project = where or os.environ.get("WANDB_PROJECT", "noisyact")

    def start(self, config: Mapping[str, Any], folder: Path, identity: str) -> int:
        """Open the run of that identity, which the server may have already."""
        wandb = importlib.import_module("wandb")
        # Offline no server knows what is logged already: all is logged again, and earlier files are removed.
        for old in folder.glob(f"wandb/offline-run-*-{identity}"):
            shutil.rmtree(old)
        self._run = wandb.init(
            project=self._project, id=identity, name=_title(config), group=_group(config), config=dict(config),
            dir=str(folder.absolute()), resume="allow", reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        return self._run.step - 1 if self._run.resumed else 0

    def log(self, update: int, metrics: Mapping[str, float], at: float) -> None:
        """Log a step of the history."""
        self._run.log(dict(metrics), step=update)

    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Write the result to the summary; a run without one has failed."""
        if record is not None:
            self._run.summary.update({**_numbers(record), "status": record["status"]})
        self._run.finish(exit_code=int(record is None))


class Trackio:
    """trackio; a project may be given."""

    needs: ClassVar[tuple[str, str]] = ("trackio", "trackio")

    def __init__(self, where: str | None) -> None:
        self._project = where or "noisyact"

    def start(self, config: Mapping[str, Any], folder: Path, identity: str) -> int:
        """Open the run of that name, or a new one."""
        trackio = importlib.import_module("trackio")
        # In a new context: it ends the earlier run of the same context, which may be at work.
        self._run = contextvars.Context().run(
            trackio.init, self._project, name=f"{_title(config)}-{identity[:8]}", group=_group(config),
            config=dict(config), resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        return self._run._next_step - 1

    def log(self, update: int, metrics: Mapping[str, float], at: float) -> None:
        """Log a step."""
        self._run.log(dict(metrics), step=update)

    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Log the result one step after the last."""
        if record is not None:
            self._run.log({**_numbers(record), "status": record["status"]}, step=record["updates"] + 1)
        self._run.finish()


class MLflow:
    """MLflow; the address of a server or store may be given. Default: MLFLOW_TRACKING_URI, else mlflow's own."""

    needs: ClassVar[tuple[str, str]] = ("mlflow", "mlflow")

    def __init__(self, where: str | None) -> None:
        self._where = where

    def start(self, config: Mapping[str, Any], folder: Path, identity: str) -> int:
        """Open the run that has the identity as its tag, or a new one."""
        # A server that is gone should cost the run seconds, not the minutes that mlflow waits by default.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        mlflow = importlib.import_module("mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        self._client = mlflow.MlflowClient(tracking_uri=self._where)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", f"noisyact {config['experiment']}")
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        found = self._client.search_runs([experiment], f"tags.`noisyact.run` = '{identity}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, "RUNNING")
            names = found[0].data.metrics
            return max((p.step for name in names for p in self._client.get_metric_history(self._run, name)), default=0)
        tags = {"noisyact.run": identity}
        self._run = self._client.create_run(experiment, tags=tags, run_name=_title(config)).info.run_id
        params = [self._entities.Param(name, str(value)) for name, value in _flat(config).items()]
        self._client.log_batch(self._run, params=params)
        return 0

    def log(self, update: int, metrics: Mapping[str, float], at: float) -> None:
        """Log all metrics of a step in one call, so that none is missing."""
        points = [  # mlflow allows no per cent sign in the names of metrics
            self._entities.Metric(name.replace("%", " percent"), value, int(1000 * at), update)
            for name, value in metrics.items()
        ]
        self._client.log_batch(self._run, metrics=points)

    def finish(self, record: Mapping[str, Any] | None) -> None:
        """Log the result as metrics; a run without one has failed."""
        if record is not None:
            self.log(record["updates"], _numbers(record), time.time())
            self._client.set_tag(self._run, "status", record["status"])
        self._client.set_terminated(self._run, "FAILED" if record is None else "FINISHED")


LOGGERS: dict[str, type[Logger]] = {
    "tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio, "mlflow": MLflow,
}  # fmt: skip


def check(names: Sequence[str]) -> None:
    """Raise an error unless all loggers are known and what they import is installed.

    >>> check(["tensorboard", "tensorboard:out/events"])
    >>> check(["paper"])
    Traceback (most recent call last):
    ...
    noisyact_lab.engine.experiment.UnknownName: logger 'paper' is unknown; allowed are tensorboard, wandb, trackio,
    mlflow
    """
    for name in names:
        kind = name.partition(":")[0]
        if kind not in LOGGERS:
            raise UnknownName("logger", kind, LOGGERS)
        module, extra = LOGGERS[kind].needs
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:  # a folder of that name, which some of them make, is no library
            raise ValueError(f"logger {kind!r}: {module} is not installed; it needs: {how_to_install(extra)}")


def _quieten_threads() -> None:
    """Print no traceback if TensorBoard's thread fails: its next call raises the same error, and that is reported."""
    before = threading.excepthook
    if before.__module__ == __name__:
        return

    def without_tensorboard(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            before(failed)

    threading.excepthook = without_tensorboard


def _title(config: Mapping[str, Any]) -> str:
    return f"{_group(config)}/seed-{config['seed']}"


def _group(config: Mapping[str, Any]) -> str:
    return "/".join(str(config[name]) for name in ("experiment", "preset", "arm"))


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in config.items() if name != "settings"}, **config["settings"]}


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of the result that were reached."""
    return {f"result/{name}": value for name, value in record["result"].items() if value is not None}
