"""Text from a trained run: what is drawn, from which checkpoint, and the errors if it cannot be."""

import json
import shutil

import pytest
import torch
from commands import noisyact
from text_cases import small_treebank  # noqa: F401

from noisyact_lab.data.text import WORDS, penn_treebank
from noisyact_lab.engine.experiment import load_experiment
from noisyact_lab.engine.job import Job
from noisyact_lab.engine.run import run
from noisyact_lab.experiments.ptb_char import PTB_CHAR
from noisyact_lab.experiments.ptb_word import PTB_WORD
from noisyact_lab.models.language_model import continuation
from noisyact_lab.tasks.generate import generate

SMALL = {"hidden": 16, "batch": 4, "verified": False, "tokens": None}
CHANGES = {
    "ptb-word": {**SMALL, "vocabulary": None, "steps": 5, "bound": 0.5, "epochs": 4},
    "ptb-char": {**SMALL, "steps": 20, "epochs": 2, "evaluate_every": 20},
}


@pytest.fixture
def trained(treebank, tmp_path):
    def train(name):
        job = Job(name, "nah" if name == "ptb-word" else "nan", "smoke", 3, tmp_path, "cpu", CHANGES[name])
        run(job)
        return job.folder

    return train


class Alphabet(torch.nn.Module):
    """A model that always finds the symbol after the last one likeliest, and the one after that half as likely."""

    def __init__(self, symbols):
        super().__init__()
        self.output = torch.nn.Linear(1, symbols)
        self.seen = []

    def forward(self, x, state=None):
        self.seen.append(x[:, 0].tolist())
        probability = torch.nn.functional.one_hot(x + 1, self.output.out_features + 3)
        probability = 2 * probability + probability.roll(1, -1)
        return probability[..., : self.output.out_features].float().log(), state


def test_every_symbol_is_drawn_given_all_before_it(tmp_path, treebank):
    (treebank / "ptb.train.txt").write_text("a b c d e f g h it the cat dog mr. <unk> sees likes sold N shares\n")
    for part in ("valid", "test"):
        (treebank / f"ptb.{part}.txt").write_text("a\n")
    corpus = penn_treebank(WORDS, verified=False)
    model, generator = Alphabet(len(corpus.vocabulary)), torch.Generator().manual_seed(0)
    assert continuation(model, corpus, "a b", 3, 0.0, generator) == "c d e"
    assert model.seen == [[0, 1, 2], [3], [4]]
    assert continuation(model, corpus, "", 2, 0.0, generator) == "a b"
    drawn = [continuation(model, corpus, "a", 1, 1.0, generator) for _ in range(300)]
    assert set(drawn) == {"b", "c"}
    assert 160 < drawn.count("b") < 240  # two in three
    colder = [continuation(model, corpus, "a", 1, 0.25, generator) for _ in range(300)]
    assert colder.count("b") > 265  # 16 in 17


def test_words_from_a_run(trained):
    folder = trained("ptb-word")
    first = generate(PTB_WORD, folder, "the cat", words=12, seed=1)
    assert first == generate(PTB_WORD, folder, "the cat", words=12, seed=1)
    assert first.text != generate(PTB_WORD, folder, "the cat", words=12, seed=2).text
    assert first.whole == f"the cat {first.text}"
    assert (first.arm, first.run_seed) == ("nah", 3)
    assert len(WORDS.of(first.text)) + first.text.count("\n") == 12
    surest = {generate(PTB_WORD, folder, "a", words=1, temperature=0.0, seed=seed).text for seed in range(3)}
    assert surest == {"dog"}  # nothing else follows it in the text
    assert generate(PTB_WORD, folder, "", words=1).whole


def test_a_checkpoint_can_be_named_and_a_damaged_one_is_passed_over(trained):
    folder = trained("ptb-word")
    before, last = sorted((folder / "checkpoints").iterdir())
    drawn = {path: generate(PTB_WORD, path, "the", words=20) for path in (folder, before, last)}
    assert drawn[folder] == drawn[last]
    assert (drawn[before].update, drawn[last].update) == (int(before.name), int(last.name))
    tensors = last / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=rf"{last.name} cannot be used \(its checksum is wrong\)"):
        assert generate(PTB_WORD, folder, "the", words=20) == drawn[before]
    with (
        pytest.warns(UserWarning, match="cannot be used"),
        pytest.raises(ValueError, match=f"{last.name}: no checkpoint there can be used"),
    ):
        generate(PTB_WORD, last, "the")


def test_characters_from_a_run(trained):
    folder = trained("ptb-char")
    drawn = generate(PTB_CHAR, folder, "the c", words=4, seed=1)
    assert drawn.whole == f"the c{drawn.text}"
    assert 1 <= len(drawn.text) <= 4 * 30
    assert sum(c in " \n" for c in drawn.text) == 4 or len(drawn.text) == 120
    with pytest.raises(ValueError, match=r"prompt 'the café': 'f', 'é' not among the \d\d characters known"):
        generate(PTB_CHAR, folder, "the café")


def test_what_cannot_be_is_named(trained, tmp_path):
    folder = trained("ptb-word")
    for arguments, said in (
        ({"words": 0}, "words=0: must be at least 1"),
        ({"temperature": -1.0}, "temperature=-1.0: must be finite and at least 0"),
        ({"temperature": float("nan")}, "temperature=nan: must be"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        ({"prompt": "the zebra saw a yak zebra"}, r"'zebra', 'saw', 'yak' not among the 13 words known"),
    ):
        with pytest.raises(ValueError, match=said):
            generate(PTB_WORD, folder, **{"prompt": "the", **arguments})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: neither the folder of a run"):
        generate(PTB_WORD, tmp_path / "empty", "the")
    with pytest.raises(ValueError, match="none: there is no such folder"):
        generate(PTB_WORD, tmp_path / "none", "the")
    with pytest.raises(ValueError, match="a run of 'ptb-word', not of 'ptb-char'"):
        generate(PTB_CHAR, folder, "the")
    with pytest.raises(
        ValueError, match=r"'unique' has no model that could speak; allowed are estimators-char, .*europarl-word, ptb"
    ):
        generate(load_experiment("unique"), folder, "the")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "settings": {**config["settings"], "c": 10**400}}))
    with pytest.raises(ValueError, match="its settings or weights are not those of this version: int too large"):
        generate(PTB_WORD, folder, "the")
    config["settings"]["hidden"] = 17
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"its settings or weights are not those of this version: .*size mismatch"):
        generate(PTB_WORD, folder, "the")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ValueError, match="seed-3: no checkpoint there yet"):
        generate(PTB_WORD, folder, "the")


def test_command(trained):
    folder = trained("ptb-word")
    command = ["generate", "ptb-word", "--checkpoint", folder, "--prompt", "mr. <unk>", "--words", "5", "--seed", "4"]
    drawn = generate(PTB_WORD, folder, "mr. <unk>", words=5, seed=4)
    assert noisyact(*command).stdout == f"{drawn.whole}\n"
    answer = json.loads(noisyact(*command, "--json").stdout)
    assert answer["text"] == drawn.text
    assert answer["update"] == drawn.update
    assert "'zebra' not among" in noisyact(*command, "--prompt", "a zebra", code=2).stderr
    assert "neither the folder of a run" in noisyact(*command, "--checkpoint", folder.parent, code=2).stderr
    damaged = max((folder / "checkpoints").iterdir()) / "state.json"
    damaged.write_text("{")
    said = noisyact(*command)
    assert "cannot be used" in said.stderr
    assert said.stdout.startswith("mr. <unk> ")
