"""Flickr8k: words, vocabulary, annotations by hand, and errors that name inconsistent files."""

import numpy as np
import pytest
import torch
from flickr_cases import CHANNELS, NOUNS, PARTS, image_of, small_flickr  # noqa: F401

from noisyact_lab.data import flickr8k
from noisyact_lab.data.locate import Missing


@pytest.fixture(autouse=True)
def _data(flickr):
    return flickr


def read(part, **settings):
    return flickr8k.read(part, verified=False, **settings)


@pytest.mark.parametrize("part", PARTS)
def test_images_captions_and_annotations_belong_together(part):
    found = read(part)
    assert found.annotations.q.shape == (PARTS[part], 196, CHANNELS)
    for number, (name, captions) in enumerate(zip(found.images, found.captions, strict=True)):
        expected, shown, place = image_of(part, number)
        assert name == expected
        assert captions[0] == ("a", NOUNS[shown])
        assert captions[1] == ("the", NOUNS[shown], "runs")
        assert len(captions) == 5
        assert found.annotations.q[number, place, shown] == 30


def test_annotations_by_hand(flickr):
    """Feature = (q / levels)^2 scale: 30 of 31 levels in channel 1, whose scale is 1.2."""
    found = read("train")
    number = next(n for n in range(PARTS["train"]) if image_of("train", n)[1] == 1)
    place = image_of("train", number)[2]
    seen = found.annotations.at(torch.tensor([number]))
    assert seen.shape == (1, 196, CHANNELS)
    assert seen[0, place, 1].item() == pytest.approx((30 / 31) ** 2 * 1.2)
    assert seen[0, :, 1].count_nonzero() == 1


def test_places_are_averaged_over_squares():
    q = torch.zeros(1, 196, 1, dtype=torch.uint8)
    q[0, 14 * 2 + 3, 0], q[0, 14 * 13 + 13, 0] = 2, 4  # rows 2 and 13, columns 3 and 13
    seen = flickr8k.Annotations(q, torch.ones(1), side=7).at(torch.tensor([0]))[0, :, 0]
    expected = torch.zeros(49)
    expected[7 * 1 + 1], expected[48] = 4 / 4, 16 / 4
    torch.testing.assert_close(seen, expected)


def test_units_are_root_mean_squares():
    annotations = read("train").annotations
    unit = annotations.root_mean_square()
    seen = annotations.at(torch.arange(PARTS["train"]))
    torch.testing.assert_close(unit, seen.square().mean(dim=(0, 1)).sqrt())
    torch.testing.assert_close(annotations.divided(unit).root_mean_square(), torch.ones(CHANNELS))
    dark = flickr8k.Annotations(torch.zeros(1, 196, 1, dtype=torch.uint8), torch.ones(1))
    assert dark.divided(dark.root_mean_square()).at(torch.tensor([0])).count_nonzero() == 0


def test_the_first_images_alone():
    some, every = read("train", images=5), read("train")
    assert some.images == every.images[:5]
    assert some.captions == every.captions[:5]
    assert torch.equal(some.annotations.q, every.annotations.q[:5])


def test_vocabulary_is_by_count():
    captions = [[("b", "a"), ("a", "c")], [("a", "b", "d")]]
    assert flickr8k.vocabulary_of(captions).symbols == ("<eos>", "<unk>", "a", "b", "c", "d")
    assert flickr8k.vocabulary_of(captions, 4).symbols == ("<eos>", "<unk>", "a", "b")
    for size in (2, 7):
        with pytest.raises(ValueError, match=rf"vocabulary={size}: must be 3 to 6"):
            flickr8k.vocabulary_of(captions, size)


def rewrite(flickr, part="dev", **changed):
    path = flickr / f"vgg19-conv5_4.{part}.npz"
    with np.load(path) as arrays:
        kept = {name: arrays[name] for name in arrays.files}
    np.savez_compressed(path, **{name: value for name, value in {**kept, **changed}.items() if value is not None})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": np.zeros((9, CHANNELS, 49), np.uint8)}, r"q must be \[images, channels, 196\].*\[9, 6, 49\]"),
        ({"q": np.zeros((9, CHANNELS, 196), np.float32)}, "q must be rows of uint8, not float32"),
        ({"q": np.zeros((8, CHANNELS, 196), np.uint8)}, "9 ids, but annotations of 8 images"),
        ({"scale": np.ones(5, np.float32)}, r"scale \[channels\], not .* and \[5\]"),
        ({"levels": None}, "not an archive of ids, q, scale and levels"),
        ({"q": None}, "not an archive of ids, q, scale and levels"),
        ({"ids": np.array([f"other{n}.jpg" for n in range(9)])}, r"image 1 is 'other0.jpg', but in .* 'dev000_x.jpg'"),
    ],
)
def test_annotations_that_do_not_fit_are_named(flickr, changed, message):
    rewrite(flickr, **changed)
    with pytest.raises(ValueError, match=message) as caught:
        read("dev")
    assert "vgg19-conv5_4.dev.npz" in str(caught.value)


def test_an_archive_that_is_cut_is_named(flickr):
    path = flickr / "vgg19-conv5_4.dev.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="not an archive"):
        read("dev")


def test_lists_of_another_length_are_named(flickr):
    path = flickr / "Flickr_8k.devImages.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match=r"npz has 9 images, but .*devImages.txt has 8"):
        read("dev")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dev000_x.jpg#0 A dog\n", "expected name#number"),
        ("dev000_x.jpg\tA dog\n", "expected name#number"),
        ("dev000_x.jpg#0\t. ,\n", "the caption has no words"),
        ("dev000_x.jpg#0\t\n", "the caption has no words"),
    ],
)
def test_captions_that_are_none_are_named_with_their_line(flickr, line, message):
    path = flickr / "Flickr8k.token.txt"
    before = path.read_text()
    path.write_text(before + line)
    with pytest.raises(ValueError, match=rf"line {before.count(chr(10)) + 1}: {message}"):
        read("dev")


def test_an_image_without_a_caption_is_named(flickr):
    path = flickr / "Flickr8k.token.txt"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "dev003" not in line))
    with pytest.raises(ValueError, match=r"devImages.txt, line 4: 'dev003_x.jpg' has no caption"):
        read("dev")


def test_bad_arguments(flickr):
    with pytest.raises(ValueError, match="part='valid': allowed are 'train', 'dev', 'test'"):
        read("valid")
    for images in (0, 10):
        with pytest.raises(ValueError, match=rf"images={images}: must be 1 to 9"):
            read("dev", images=images)
    with pytest.raises(ValueError, match="side=5: must divide 14"):
        read("dev", side=5)
    with pytest.raises(ValueError, match="'flickr8k' is not what it should be"):
        flickr8k.read("dev")
    (flickr / "Flickr8k.token.txt").unlink()
    with pytest.raises(Missing, match=r"Flickr8k\.token\.txt"):
        read("dev")


def test_photos_are_found_where_there_are_any(flickr):
    assert flickr8k.photo("dev000_x.jpg") is None
    (flickr / "images").mkdir()
    (flickr / "images" / "dev000_x.jpg").write_bytes(b"")
    assert flickr8k.photo("dev000_x.jpg") == flickr / "images" / "dev000_x.jpg"
