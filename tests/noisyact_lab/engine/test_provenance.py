"""Which code a number came from."""

import subprocess

import pytest

import noisyact
import noisyact_lab
from noisyact_lab.engine.folder.records import commit


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in a folder of a checkout, and git there."""

    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    file = tmp_path / "package" / "__init__.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    for package in (noisyact, noisyact_lab):
        monkeypatch.setattr(package, "__file__", str(file))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    return file, git


def test_the_commit_is_that_of_the_packages_checkout(package):
    file, git = package
    git("add", "package")
    git("commit", "-q", "-m", "second")
    assert commit() == git("rev-parse", "HEAD")
    file.write_text("a = 2\n")
    assert commit() == git("rev-parse", "HEAD") + "+"


def test_a_package_installed_below_another_checkout_has_no_commit(package):
    assert commit() is None


def test_a_package_in_no_checkout_has_no_commit(tmp_path, monkeypatch):
    for package in (noisyact, noisyact_lab):
        monkeypatch.setattr(package, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
