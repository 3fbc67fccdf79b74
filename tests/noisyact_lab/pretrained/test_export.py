"""A run becomes a model with a card, and commands use it; damaged and missing files are named."""

import hashlib
import json

import pytest
import torch
from commands import noisyact
from parallel_cases import packed_backwards  # noqa: F401
from tiny import TRANSLATE as TINY

from noisyact_lab.data import moses
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.translate.text_translator import text_translator_of
from noisyact_lab.pretrained.card import read
from noisyact_lab.pretrained.export import export
from noisyact_lab.pretrained.models import load_translator
from noisyact_lab.tasks.trained_run import state_of_run

pytest.importorskip("sacrebleu")
pytest.importorskip("sacremoses")


@pytest.fixture
def exported(packed_alone, tmp_path):
    job = Job("translate", "nah", "smoke", 3, tmp_path / "out/runs", "cpu", TINY)
    record = run(job)
    return job.folder, record, export(job.folder, tmp_path / "made")


def test_a_model_has_the_rounded_weights_and_their_scores(exported):
    folder, record, path = exported
    assert sorted(file.name for file in path.parent.iterdir()) == ["translate.json", "translate.safetensors"]
    translator, card = load_translator(path)
    original = text_translator_of(folder)
    read_back, parameters = translator.model.state_dict(), dict(original.model.named_parameters())
    for name, value in original.model.state_dict().items():
        kept = value.half().float() if name in parameters else value  # a noise scale of 0.15 is no float16
        assert torch.equal(read_back[name], kept), name
    assert read_back.keys() > parameters.keys()
    assert (translator.source.symbols, translator.target.symbols) == (
        original.source.symbols, original.target.symbols,
    )  # fmt: skip
    assert not translator.model.training
    assert card.scores["test_nll"] == pytest.approx(record["result"]["test_nll"], rel=1e-3)
    assert card.scores["test_nll"] != record["result"]["test_nll"]  # of the rounded weights
    assert card.scores.keys() == record["result"].keys()
    assert "tok:none" in card.signatures["test_bleu"]
    assert "research" in card.licence
    assert card.rebuilt_by.startswith("noisyact run translate --arm nah --preset smoke --seed 3 --device cpu --set ")
    assert "--set hidden=16" not in card.rebuilt_by  # the preset's
    assert "--set updates=12" in card.rebuilt_by
    assert card.rebuilt_by.endswith("&& noisyact pretrained export out/runs/translate/smoke/nah/seed-3")
    assert (card.arm, card.seed, card.updates) == ("nah", 3, 12)
    assert card.size == path.with_suffix(".safetensors").stat().st_size
    assert card.parameters == sum(weight.numel() for weight in parameters.values())


def test_commands_use_a_card(exported, tmp_path, monkeypatch):
    folder, _, path = exported
    said = noisyact("translate", "--checkpoint", path, "one two", "--device", "cpu")
    assert said.stdout == f"{load_translator(path)[0].translate(['one two'])[0].translation}\n"
    assert said.stderr.startswith("noisyact: translate (nah, ")
    assert "Licence: For research" in said.stderr
    assert (
        noisyact("pretrained", "export", folder, "--to", tmp_path / "again").stdout.strip().endswith("translate.json")
    )
    assert read(tmp_path / "again" / "translate.json") is not None
    assert "a model of 'translate', not of 'europarl-word'" in noisyact("generate", "--checkpoint", path, code=2).stderr

    def missing():
        raise ValueError("Moses tokenisation needs sacremoses: pip install 'noisyact[translate]'")

    monkeypatch.setattr(moses, "_sacremoses", missing)
    assert "noisyact[translate]" in noisyact("translate", "--checkpoint", path, "one", code=2).stderr


def test_damaged_and_missing_files_are_named(exported):
    _, _, path = exported
    weights, card = path.with_suffix(".safetensors"), json.loads(path.read_text())
    content = weights.read_bytes()

    def said(code=1):
        answer = noisyact("translate", "--checkpoint", path, "one", code=code).stderr
        assert answer.startswith("noisyact: ")
        assert answer.count("\n") == 1
        return answer

    weights.write_bytes(content[:-1])
    assert "its checksum is not the one on its card" in said()
    weights.write_bytes(b"no tensors")
    path.write_text(json.dumps({**card, "sha256": hashlib.sha256(b"no tensors").hexdigest()}))
    assert "it does not hold tensors" in said()
    weights.write_bytes(content)
    for changes, message in (
        ({"settings": {**card["settings"], "hidden": 17}}, "its weights are not those of its settings"),
        ({"settings": {**card["settings"], "colour": 1}}, "its settings are not those of this version"),
        ({"settings": []}, "its settings is '[]', which no card has"),
        ({"licence": None}, "its licence is 'None', which no card has"),
        ({"colour": "red"}, "it is no card of a model: 'colour' missing or unknown"),
    ):
        path.write_text(json.dumps({**card, **changes}))
        assert message in said()
    path.write_text("{")
    assert "translate.json is damaged: it is not JSON" in said()
    path.write_text(json.dumps(card))
    weights.unlink()
    assert "translate.safetensors: No such file" in said(code=2)
    path.unlink()
    assert "translate.json: No such file" in said(code=2)


def test_what_cannot_be_exported_is_named(exported, tmp_path):
    folder, record, _ = exported
    with pytest.raises(ValueError, match=r"nowhere: no finished run"):
        export(tmp_path / "nowhere", tmp_path)
    for changes, message in (
        ({"experiment": "ptb-word"}, "a run of 'ptb-word'; only models of europarl-word, translate, translate-adam"),
        ({"status": "diverged"}, "its status is 'diverged', not 'finished'"),
    ):
        (folder / "result.json").write_text(json.dumps({**record, **changes}))
        with pytest.raises(ValueError, match=message):
            export(folder, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_weights_beyond_float16_are_refused(exported, tmp_path, monkeypatch):
    folder, _, _ = exported
    config, state = state_of_run(folder, "translate")
    state["modules"]["best"]["output.bias"][0] = 70_000.0
    monkeypatch.setattr("noisyact_lab.pretrained.export.state_of_run", lambda *_: (config, state))
    with pytest.raises(ValueError, match=r"its weight output\.bias has numbers that float16 cannot hold"):
        export(folder, tmp_path / "none")


def test_generate_needs_the_experiment_of_a_run(exported):
    folder, _, _ = exported
    assert "name the experiment too" in noisyact("generate", "--checkpoint", folder, code=2).stderr
    assert "no model of 'ptb-word' is shipped" in noisyact("generate", "ptb-word", code=2).stderr
