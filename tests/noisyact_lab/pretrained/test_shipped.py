"""The models that are shipped: their cards are complete, they fit into the package, and they write and translate."""

import json
from pathlib import Path

import pytest
from commands import noisyact

import noisyact_lab.pretrained
from noisyact_lab.data.text import EOS, UNKNOWN
from noisyact_lab.pretrained.card import read, shipped, shipped_names
from noisyact_lab.pretrained.models import SPEAKER, TRANSLATOR, load_speaker, load_translator

FOLDER = Path(noisyact_lab.pretrained.__file__).parent


def test_they_are_small_and_all_have_cards():
    assert shipped_names() == (SPEAKER, TRANSLATOR)
    files = [path for path in FOLDER.iterdir() if path.suffix in (".json", ".safetensors")]
    assert {path.stem for path in files} == set(shipped_names())
    assert all(path.stat().st_size <= 8_000_000 for path in files)
    assert sum(path.stat().st_size for path in files) <= 20_000_000
    with pytest.raises(ValueError, match="no model of 'ptb-word' is shipped; there are europarl-word, translate-mul"):
        shipped("ptb-word")


@pytest.mark.parametrize("name", [SPEAKER, TRANSLATOR])
def test_a_card_says_what_the_model_came_from(name):
    card = read(shipped(name)).card
    assert card.arm == "nah"
    assert card.settings["scheme"] == "nah"
    assert len(card.commit) == 40  # of files that were all committed
    assert card.licence
    assert card.rebuilt_by.startswith(f"noisyact run {name} --arm nah ")
    assert card.scores[card.metric] > 0
    assert "Treebank" not in card.data


def test_generate_without_a_checkpoint(capsys):
    command = ["generate", "--prompt", "Mr President, I", "--words", "12", "--seed", "4"]
    said = noisyact(*command)
    assert said.stdout == noisyact(*command).stdout
    assert said.stdout != noisyact(*command[:-1], "5").stdout
    assert said.stdout.startswith("Mr President, I ")
    assert "europarl-word (nah, " in said.stderr
    assert "No known copyright restrictions" in said.stderr
    speaker, card = load_speaker()
    assert f"test_perplexity {card.scores['test_perplexity']:.2f}" in said.stderr
    assert speaker.generate("Mr President, I", words=12, seed=4).whole == said.stdout.rstrip("\n")
    assert json.loads(noisyact(*command, "--json").stdout)["run_seed"] == card.seed
    assert "'zebra' not among the 8,000 words known" in noisyact("generate", "--prompt", "a zebra", code=2).stderr


def test_the_speaker_is_a_noisy_lstm_that_knows_english():
    speaker, _ = load_speaker()
    assert "NAH(c=0.5, alpha=1.15, clip=True), gate=NAH(c=0.15," in str(speaker.model.recurrent)
    # Words that hardly ever come from chance: one of 8,000 is right with a probability of 0.0001.
    assert speaker.generate("Thank you very", words=1, temperature=0).text == "much"
    assert speaker.generate("on behalf of the committee on", words=1, temperature=0).text == "the"


def test_translate_without_a_checkpoint():
    pytest.importorskip("sacremoses")
    said = noisyact("translate", "A man is riding a bike.", "", "--device", "cpu")
    assert said.stdout.splitlines() == ["Un homme fait du vélo.", ""]
    assert "translate-multi30k (nah, " in said.stderr
    assert "For research" in said.stderr
    translator, _ = load_translator()
    assert translator.source.symbols[:2] == (EOS, UNKNOWN)
    found = translator.translate(["Two dogs play with a xylophonist."])[0]
    assert found.unknown == ("xylophonist",)
    assert found.translation.startswith("Deux chiens jouent")


def test_the_list_has_both():
    shown = noisyact("pretrained", "list").stdout
    assert shown.count("licence") == 2
    cards = json.loads(noisyact("pretrained", "list", "--json").stdout)
    assert [card["experiment"] for card in cards] == [SPEAKER, TRANSLATOR]
