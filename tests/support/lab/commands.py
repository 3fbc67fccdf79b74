"""Commands of the command line, run in this process."""

from typer.testing import CliRunner

from noisyact_lab.cli.app import app

TINY = ["updates=12", "evaluate_every=4", "test_sequences=40", "hidden=4", "batch=4", "length=6"]


SET = [word for change in TINY for word in ("--set", change)]


SMOKE = ["--preset", "smoke", "--device", "cpu"]


def noisyact(*words, code=0):
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result
