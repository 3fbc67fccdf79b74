"""Parallel text: which pairs are kept, which are dropped and counted, and errors."""

import gzip
import lzma
import shutil

import pytest
import torch
from parallel_cases import backwards_corpus, pairs_of, write  # noqa: F401

from noisyact_lab.data.locate import Missing
from noisyact_lab.data.packed import PackedCorpus
from noisyact_lab.data.parallel import CORPORA, corpus, packed_path

pytest.importorskip("sacremoses")


def sentence(vocabulary, sentences, row):
    return [vocabulary.symbols[number] for number in sentences.padded(torch.tensor([row]), 12)[:, 0].tolist()]


def test_numbers_are_the_text(backwards):
    found = corpus("multi30k", 100, 50)
    assert found.source.symbols[:2] == found.target.symbols[:2] == ("<eos>", "<unk>")
    for row, (english, french) in enumerate(pairs_of("train", 400)):
        for text, vocabulary, side in ((english, found.source, "source"), (french, found.target, "target")):
            words = text.split()
            assert sentence(vocabulary, getattr(found.train, side), row) == words + ["<eos>"] * (12 - len(words))
    assert found.test.target_text == [french for _, french in pairs_of("test_2016_flickr", 20)]
    assert found.about["counts"]["train"] == {"pairs": 400, "empty": 0, "too_long": 0}


def test_words_as_moses_has_them(backwards):
    write(backwards, "test_2016_flickr", [("A cat's hat, isn't it?", "L'homme est là.")])
    found = corpus("multi30k", 100, 50)
    assert found.test.source_words == ["A cat &apos;s hat , isn &apos;t it ?"]
    assert found.test.target_words == ["L&apos; homme est là ."]
    assert sentence(found.target, found.test.target, 0)[:6] == ["<unk>"] * 5 + ["<eos>"]


def test_empty_and_long_pairs_are_left_out_and_counted(backwards):
    odd = [("", "un"), ("one", "   "), ("one two three", "un"), ("one", "trois deux un"), ("one two", "deux un")]
    write(backwards, "train", odd)
    write(backwards, "val", [("", ""), ("one two three four", "quatre")])
    found = corpus("multi30k", 100, 2)
    assert found.about["counts"]["train"] == {"pairs": 1, "empty": 2, "too_long": 2}
    assert found.about["counts"]["valid"] == {"pairs": 1, "empty": 1, "too_long": 0}  # of any length
    assert found.valid.source_text == ["one two three four"]
    write(backwards, "train", odd[:4])
    with pytest.raises(ValueError, match=r"of 4 pairs \(train\) none has 1 to 2 words"):
        corpus("multi30k", 100, 2)


def test_the_commonest_words_are_kept(backwards):
    write(backwards, "train", [("one one two", "un"), ("two one three", "un")])
    found = corpus("multi30k", 4, 50)
    assert found.source.symbols == ("<eos>", "<unk>", "one", "two")
    assert sentence(found.source, found.train.source, 1)[:4] == ["two", "one", "<unk>", "<eos>"]


def test_files_that_are_no_pairs_are_named(backwards):
    (backwards / "val.fr").write_text("un\ndeux\n")
    with pytest.raises(ValueError, match=r"val\.en has 30 lines and .*val\.fr has 2: not parallel"):
        corpus("multi30k", 100, 50)
    (backwards / "val.fr").write_bytes(b"un\n\xff\n")
    with pytest.raises(ValueError, match=r"val\.fr, line 2: not UTF-8"):
        corpus("multi30k", 100, 50)


def test_compressed_files_are_the_same(backwards):
    plain = corpus("multi30k", 100, 50)
    for name, packer, suffix in (("train.en", gzip, ".gz"), ("train.fr", lzma, ".xz")):
        path = backwards / name
        (backwards / (name + suffix)).write_bytes(packer.compress(path.read_bytes()))
        path.unlink()
    again = corpus("multi30k", 100, 50)
    assert again.about["files"].keys() >= {"train.en.gz", "train.fr.xz"}
    assert torch.equal(again.train.target.numbers, plain.train.target.numbers)


def test_the_packed_file_is_all_one_needs(backwards, monkeypatch):
    first = corpus("multi30k", 100, 50)
    write(backwards, "val", pairs_of("other", 7))
    assert len(corpus("multi30k", 100, 50).valid) == 7  # packed again: the text is another
    shutil.rmtree(backwards)
    kept = corpus("multi30k", 100, 50)
    assert len(kept.valid) == 7
    assert kept.source.symbols == first.source.symbols
    assert kept.words_sha256 == first.words_sha256
    with pytest.raises(Missing, match=r"noisyact data fetch multi30k.*Or copy a packed corpus to .*99-words"):
        corpus("multi30k", 99, 50)
    path = packed_path("multi30k", 100, 50)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="is not a valid packed corpus"):
        PackedCorpus.read(path)


def test_bad_settings_are_named(backwards):
    for arguments, message in (
        (("wmt", 100, 50), "corpus='wmt': allowed are 'europarl', 'multi30k'"),
        (("multi30k", 2, 50), "words=2: must be at least 3"),
        (("multi30k", 100, 0), "longest=0: must be at least 1"),
        (("multi30k", 100, 50, 3), "shards=3: multi30k has none"),
        (("europarl", 100, 50, 19), "shards=19: must be 1 to 18"),
    ):
        with pytest.raises(ValueError, match=message):
            corpus(*arguments)


def test_validation_is_never_the_test_set():
    for layout in CORPORA.values():
        assert layout.valid != layout.test
