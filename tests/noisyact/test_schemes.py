"""Schemes are values: they compare, hash, print, parse, pickle, and refuse nonsense."""

import copy
import pickle

import pytest
from cases import SCHEMES, scheme_ids

import noisyact as na


@pytest.mark.parametrize("scheme", SCHEMES, ids=scheme_ids)
def test_round_trips(scheme):
    for again in (na.scheme(str(scheme)), pickle.loads(pickle.dumps(scheme)), copy.deepcopy(scheme)):
        assert again == scheme
        assert hash(again) == hash(scheme)
        assert str(again) == str(scheme)
        assert repr(again) == repr(scheme)
    assert eval(repr(scheme), vars(na)) == scheme


def test_defaults_are_the_papers():
    assert na.scheme("nan") == na.NAN(c=0.5, alpha=1.15, clip=False)
    assert na.scheme("nah") == na.NAH(c=0.5, alpha=1.15, clip=False)
    assert na.scheme("nani") == na.NANI(sigma=0.05)
    assert na.scheme("nanil") == na.NANIL(c=0.5)
    assert na.scheme("nanis") == na.NANIS(sigma=0.25)


def test_text_is_read_leniently_and_settings_in_any_order():
    assert na.scheme(" NAH : alpha = 1.0 , c = 0.3 , clip=true ") == na.NAH(c=0.3, alpha=1.0, clip=True)
    assert na.scheme("nah:") == na.NAH()


def test_kinds_differ_and_values_cannot_change():
    assert na.NAN() != na.NAH()
    assert na.NAH(c=1) == na.NAH(c=1.0)
    assert len({na.NAN(), na.NAH(), na.NAN()}) == 2
    with pytest.raises(AttributeError):
        na.NAH().c = 3.0


def test_the_papers_draw_is_not_written():
    assert repr(na.NAN(draw="sample")) == "NAN(c=0.5, alpha=1.15, clip=False)"
    assert str(na.NAH(draw="mean")) == "nah:c=0.5,alpha=1.15,clip=False,draw=mean"
    assert na.NAH(draw="mean") != na.NAH()
    assert na.NAH(draw="mean").with_scale(2.0) == na.NAH(c=2.0, draw="mean")


def test_scale_is_c_or_sigma():
    assert [s.with_scale(3.0).scale for s in (na.NAN(), na.NAH(), na.NANI(), na.NANIL(), na.NANIS())] == [3.0] * 5
    assert na.NANIS().with_scale(1.5) == na.NANIS(sigma=1.5)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: na.NAN(c=-0.1), ValueError, "-0.1"),
        (lambda: na.NAH(c=float("nan")), ValueError, "nan"),
        (lambda: na.NAH(c=float("inf")), ValueError, "inf"),
        (lambda: na.NAH(alpha=float("nan")), ValueError, "nan"),
        (lambda: na.NAH(alpha="1.0"), TypeError, "'1.0'"),
        (lambda: na.NAH(c=True), TypeError, "True"),
        (lambda: na.NAH(clip=1), TypeError, "clip=1"),
        (lambda: na.NANI(sigma=-1.0), ValueError, "-1.0"),
        (lambda: na.NANIS(sigma=None), TypeError, "None"),
        (lambda: na.NANIL(c=[1]), TypeError, r"\[1\]"),
        (lambda: na.NANI(sigma=0.1).with_scale(-2), ValueError, "-2"),
        (lambda: na.scheme("nahh"), ValueError, "'nahh'.*nan, nah, nani, nanil, nanis"),
        (lambda: na.scheme(""), ValueError, "unknown noise scheme ''"),
        (lambda: na.scheme("nah:gamma=1"), ValueError, "'gamma=1'.*alpha, c, clip"),
        (lambda: na.scheme("nani:c=1"), ValueError, "sigma"),
        (lambda: na.scheme("nah:c"), ValueError, "'c'"),
        (lambda: na.scheme("nah:c=x"), ValueError, "c='x'"),
        (lambda: na.scheme("nah:c=1,c=2"), ValueError, "twice"),
        (lambda: na.scheme("nah:clip=yes"), ValueError, "'yes'"),
        (lambda: na.scheme("nah:c=-3"), ValueError, "-3"),
        (lambda: na.scheme("nah:draw=centered"), ValueError, "'centered'.*sample, mean, centred"),
        (lambda: na.NAH(draw="none"), ValueError, "draw='none'.*'sample', 'mean', 'centred'"),
        (lambda: na.scheme("nani:draw=centred"), ValueError, "'sample', 'mean'"),
        (lambda: na.scheme(3), TypeError, "3"),
        (lambda: na.scheme(None), TypeError, "None"),
    ],
)
def test_wrong_values_are_named(make, error, said):
    with pytest.raises(error, match=said):
        make()
