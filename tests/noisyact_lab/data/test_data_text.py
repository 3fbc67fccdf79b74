"""Text: words and characters by hand, compressed files, and errors that name the line."""

import gzip
import lzma

import pytest
import torch
from data_cases import file_of, set_of
from hypothesis import given
from hypothesis import strategies as st
from text_cases import small_treebank  # noqa: F401

from noisyact_lab.data import locate, text, verify
from noisyact_lab.data.text import CHARACTERS, WORDS

PACKED = {".gz": gzip.compress, ".xz": lzma.compress}


def written(folder, **texts):
    paths = {}
    for part in ("train", "valid", "test"):
        paths[part] = folder / f"{part}.txt"
        paths[part].write_bytes(texts.get(part, " a b \n").encode())
    return paths


def test_words_by_hand(tmp_path):
    corpus = text.read(written(tmp_path, train=" a b a \n <unk> b \n", valid="b\n\n", test="a <unk>\n"), WORDS)
    assert corpus.vocabulary.symbols == ("<eos>", "a", "b", "<unk>")
    assert corpus.train.tolist() == [1, 2, 1, 0, 3, 2, 0]
    assert corpus.valid.tolist() == [2, 0, 0]
    assert corpus.test.tolist() == [1, 3, 0]
    assert corpus.train.dtype == torch.int64


def test_characters_by_hand(tmp_path):
    corpus = text.read(written(tmp_path, train=" ab <b> \n", valid="b a\n", test="a\n"), CHARACTERS)
    assert corpus.vocabulary.symbols == ("\n", "a", "b", "_", "<", ">")
    assert corpus.train.tolist() == [1, 2, 3, 4, 2, 5, 0]
    assert corpus.valid.tolist() == [2, 3, 1, 0]


@pytest.mark.parametrize("units", [WORDS, CHARACTERS], ids=lambda units: units.name)
@given(lines=st.lists(st.lists(st.text("abc'<>.", min_size=1), min_size=1).map(" ".join), min_size=1))
def test_units_put_together_are_the_text(units, lines):
    symbols = [symbol for line in lines for symbol in (*units.of(f" {line} "), units.end)]
    assert units.text(symbols) == "".join(f"{line}\n" for line in lines)
    words = sum(units.ends_word(symbol) for symbol in symbols)
    assert words == sum(len(line.split()) for line in lines) + (len(lines) if units is WORDS else 0)


def test_commonest_words_are_kept(tmp_path):
    train = "c c c b b <unk> a a d\n"
    corpus = text.read(written(tmp_path, train=train, valid="d c b\n", test="a\n"), WORDS)
    limited = corpus.limited(4)  # the end and <unk> always; c, then b, which is as common as a and comes before
    assert limited.vocabulary.symbols == ("<eos>", "c", "b", "<unk>")
    assert limited.train.tolist() == [1, 1, 1, 2, 2, 3, 3, 3, 3, 0]
    assert limited.valid.tolist() == [3, 1, 2, 0]
    assert limited.test.tolist() == [3, 0]
    assert corpus.limited(6).vocabulary.symbols == corpus.vocabulary.symbols
    for size in (1, 7):
        with pytest.raises(ValueError, match=f"vocabulary={size}: must be 2 to 6"):
            corpus.limited(size)
    with pytest.raises(ValueError, match="without <unk> cannot be limited to 3"):
        text.read(written(tmp_path), WORDS).limited(3)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_every_form_of_a_file(suffix, tmp_path, treebank):
    plain = text.penn_treebank(WORDS, verified=False)
    path = treebank / "ptb.valid.txt"
    data = path.read_bytes()
    if suffix:
        path.unlink()
        (treebank / f"{path.name}{suffix}").write_bytes(PACKED[suffix](data))
    again = text.penn_treebank(WORDS, verified=False)
    assert torch.equal(again.valid, plain.valid)
    assert text.lines(treebank / f"{path.name}{suffix}") == data.decode().splitlines(keepends=True)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_compressed_text_is_found_and_verified(suffix, tmp_path):
    """Size and checksum are those of the text, because compressed files of one text differ."""
    content = b"one two\n" * 50
    (file,) = set_of(file_of("some.txt", content)).files
    path = tmp_path / f"some.txt{suffix}"
    path.write_bytes(PACKED[suffix](content))
    assert locate.file_in(tmp_path, file) == path
    assert verify.problem_of(path, file) is None
    path.write_bytes(PACKED[suffix](b"one twO\n" + content[8:]))
    assert "sha256" in verify.problem_of(path, file)
    path.write_bytes(PACKED[suffix](content[8:]))
    assert verify.problem_of(path, file) == f"{path} has 392 bytes, not 400"
    path.write_bytes(PACKED[suffix](content)[:-12])
    assert f"is not a valid {suffix} file" in verify.problem_of(path, file)
    (other,) = set_of(file_of("some.npz", content)).files
    (tmp_path / f"some.npz{suffix}").write_bytes(PACKED[suffix](content))
    assert locate.file_in(tmp_path, other) is None


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_cut_compressed_file(suffix, tmp_path):
    lines = "".join(f"{7919 * i % 1000} and {104_729 * i % 1_000_003}\n" for i in range(20_000))
    path = tmp_path / f"text{suffix}"
    whole = PACKED[suffix](lines.encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ValueError, match=rf"text\{suffix}: not a valid \{suffix} file, after line [1-9]\d*: "
    ) as raised:
        text.lines(path)
    line = int(str(raised.value).split("after line ")[1].split(":")[0])
    assert 1000 < line < 19_000
    path.write_bytes(b"no archive at all\n")
    with pytest.raises(ValueError, match=rf"not a valid \{suffix} file, after line 0"):
        text.lines(path)


def test_bad_text_is_named_with_its_line(tmp_path):
    paths = written(tmp_path, train="a b\nc d\ne")
    with pytest.raises(ValueError, match=r"train\.txt, line 3: the file ends without a newline"):
        text.read(paths, WORDS)
    paths["train"].write_bytes(b"a b\n\xff\n")
    with pytest.raises(ValueError, match=r"train\.txt, line 2: not UTF-8: invalid start byte at its byte 0"):
        text.read(paths, WORDS)
    paths["train"].write_bytes(b"")
    with pytest.raises(ValueError, match=r"train\.txt: is empty"):
        text.read(paths, WORDS)
    for part in ("valid", "test"):
        paths = written(tmp_path, train="a b\n", **{part: "a\nb a\na zebra b\n"})
        with pytest.raises(ValueError, match=rf"{part}\.txt, line 3: the word 'zebra' is not in .*train\.txt"):
            text.read(paths, WORDS)
        with pytest.raises(ValueError, match=rf"{part}\.txt, line 3: the character 'z' is not in .*train\.txt"):
            text.read(paths, CHARACTERS)


def test_what_is_not_the_treebank_is_refused(treebank):
    with pytest.raises(ValueError, match=r"ptb\.train\.txt: has 151 lines, but the Treebank's file has 42,068"):
        text.penn_treebank(WORDS)
    (treebank / "ptb.train.txt").write_text("a\n" * 42_068)
    with pytest.raises(
        ValueError, match=r"ptb\.train\.txt: not the Treebank's file: the text has sha256 [0-9a-f]{64}, not "
    ):
        text.penn_treebank(WORDS)
    (treebank / "ptb.test.txt").unlink()
    with pytest.raises(locate.Missing, match=r"ptb\.test\.txt.*noisyact data fetch ptb"):
        text.penn_treebank(WORDS, verified=False)


def test_real_counts(real_treebank):
    assert verify.verify("ptb") == []
    words = text.penn_treebank(WORDS)
    assert [len(part) for part in (words.train, words.valid, words.test)] == [929_589, 73_760, 82_430]
    assert len(words.vocabulary) == 10_000
    assert (
        words.units.text(words.vocabulary.symbols[n] for n in words.valid[:5].tolist()) == "consumers may want to move"
    )
    ends = [int((part == 0).sum()) for part in (words.train, words.valid, words.test)]
    assert ends == [42_068, 3_370, 3_761]
    characters = text.penn_treebank(CHARACTERS)
    parts = (characters.train, characters.valid, characters.test)
    assert [len(part) for part in parts] == [5_017_482, 393_042, 442_423]
    assert len(characters.vocabulary) == 50
