"""The language model of Europarl: its text, its schedule, and runs that resume."""

import lzma

import pytest
import torch
from run_cases import stopped_ends_as_whole

from noisyact_lab.data.europarl import PLAIN, speeches
from noisyact_lab.data.locate import Missing
from noisyact_lab.experiments.europarl_word import EUROPARL_WORD, Speeches

TEXT = ["Mr President, I don\N{RIGHT SINGLE QUOTATION MARK}t agree.", "The Commission (again) has 27 members."]
TINY = {"words": 18, "tokens": 400, "batch": 2, "steps": 5, "epochs": 3, "embedding": 6, "hidden": 8}


@pytest.fixture
def small_europarl(own_data):
    folder = own_data / "europarl"
    folder.mkdir(parents=True)
    for stem, lines in (("europarl-v7.fr-en.train.00", TEXT * 25), ("europarl-q4-2000.dev", TEXT * 3)):
        (folder / f"{stem}.en.xz").write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))
    (folder / "europarl-q4-2000.test.en").write_text("The Zebra has members.\n")
    return folder


def test_plain_text_becomes_words_and_plain_text_again():
    assert PLAIN.of(TEXT[0]) == ["mr", "president", ",", "i", "don", "'t", "agree", "."]
    assert PLAIN.text(PLAIN.of(TEXT[1])) == "the commission (again) has 27 members."
    assert PLAIN.text(["one", ".", "<eos>", "<unk>", "two"]) == "one.\n<unk> two"


def test_rare_words_are_unknown(small_europarl):
    corpus = speeches(words=100, tokens=18)
    # 9 + 9 words; the second line's end is beyond the 18 that are read.
    assert corpus.train.tolist()[:9] == [corpus.vocabulary.number[word] for word in (*PLAIN.of(TEXT[0]), "<eos>")]
    assert len(corpus.train) == 18
    found = [corpus.vocabulary.symbols[n] for n in corpus.test.tolist()]
    assert found == ["the", "<unk>", "has", "members", ".", "<eos>"]
    few = speeches(words=3, tokens=18)
    assert few.vocabulary.symbols == ("<eos>", "<unk>", ".")
    assert few.train.tolist() == [1] * 7 + [2, 0] + [1] * 8 + [2]
    for arguments, message in (
        ((2, 18), "words=2: must be at least 3"),
        ((9, 10**6), "tokens=1000000: must be 1 to 475"),
    ):
        with pytest.raises(ValueError, match=message):
            speeches(*arguments)
    (small_europarl / "europarl-q4-2000.test.en").unlink()
    with pytest.raises(Missing, match="data set 'europarl'"):
        speeches(9, 9)


def test_stopped_and_resumed_ends_the_same(small_europarl, tmp_path):
    stopped_ends_as_whole(EUROPARL_WORD, "nah", tmp_path, TINY)


def test_the_rate_grows_and_falls_to_nothing(small_europarl):
    settings = EUROPARL_WORD.effective("nah", "smoke", {**TINY, "warmup": 3, "learning_rate": 0.5})
    task = Speeches(settings, 0, torch.device("cpu"))
    rates = []
    for index in range(task.updates):
        task.update(index)
        rates.append(float(task.optimizer.param_groups[0]["lr"]))
    assert rates[:4] == [0.125, 0.25, 0.375, 0.5]
    assert rates[-1] == pytest.approx(0.5 / (len(rates) - 3))
    with pytest.raises(ValueError, match=f"warmup={len(rates)}: must be 0 or more and less than the {len(rates)} upd"):
        Speeches(EUROPARL_WORD.effective("nah", "smoke", {**TINY, "warmup": len(rates)}), 0, torch.device("cpu"))
