"""Runs whose files were damaged while they were stopped: what is detected and reported; no result is invented."""

import io
import json
import pickle
import shutil
import struct

import pytest
import torch
from commands import noisyact
from damaged_cases import place, reseal, stop, train
from run_cases import kept
from safetensors.torch import load, save

from noisyact_lab.engine.folder.files import read_json


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    train(out)
    return out


@pytest.fixture
def out(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "out")


def lost(lines):
    del lines[1]


def doubled(lines):
    lines.insert(1, lines[0])


def changed(lines):
    assert '"loss": ' in lines[0]
    lines[0] = lines[0].replace('"loss": ', '"loss":1')  # as long as before, and JSON


@pytest.mark.parametrize("damage", [lost, doubled, changed, list.clear, None])
@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl"])
def test_records_that_changed_while_a_run_was_stopped_are_noticed(out, finished, name, damage):
    path = stop(out) / name
    lines = path.read_text().splitlines(keepends=True)
    if damage is None:
        path.unlink()
    elif damage is changed and name == "timing.jsonl":
        path.write_text(lines[0].replace('"seconds"', '"second"') + "".join(lines[1:]))
    else:
        damage(lines)
        path.write_text("".join(lines))
    before = kept(place(out))
    said = train(out, code=1).stderr
    assert f"{path} is damaged: " in said
    assert "Put the right file back, or do the run again with --force" in said
    assert kept(place(out)) == before  # nothing is lost: with the right file the run goes on
    shutil.copy(place(finished) / name, path)
    train(out)
    assert kept(place(out)) == kept(place(finished))


def test_records_that_lost_their_end_are_made_again(out, finished):
    """The run resumes from the previous checkpoint, which was written before the lost lines."""
    folder = stop(out)
    path = folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    said = train(out).stderr
    assert f"{path} was changed while the run was stopped" in said
    assert "resumes from the checkpoint before, at update 8" in said
    assert kept(folder) == kept(place(finished))


def test_lines_behind_the_checkpoint_are_recorded_again(out, finished):
    """This is the state after a kill between lines and checkpoint, not damage, so nothing is reported."""
    folder = stop(out)
    shutil.rmtree(folder / "checkpoints" / "000000012")
    said = train(out).stderr
    assert said.count("\n") == 1
    assert (folder / "metrics.jsonl").read_bytes() == (place(finished) / "metrics.jsonl").read_bytes()


def test_checkpoints_of_before_there_were_checksums_are_resumed(out, finished):
    folder = stop(out)
    for checkpoint in (folder / "checkpoints").iterdir():
        state = read_json(checkpoint / "state.json")
        assert state.pop("records")["bytes"] > 0
        reseal(checkpoint, state)
    right = (folder / "metrics.jsonl").read_text()
    for text, why in (("5\n", "line 1 has no update"), ("", "it has no line for update 12")):
        (folder / "metrics.jsonl").write_text(text)
        assert why in train(out, code=1).stderr
    (folder / "metrics.jsonl").write_text(right)
    assert train(out).stderr.count("\n") == 1
    assert (folder / "metrics.jsonl").read_text() == right


STRAYS = (".DS_Store", ".nfs00001", ".ipynb_checkpoints/x", "12345/x", "notes.txt", "000000099x/x", "٣٣٣٣٣٣٣٣٣/x")


def test_strays_are_left_alone(out, finished):
    folder = stop(out)
    places = [folder / below / stray for below in ("", "checkpoints") for stray in STRAYS]
    for path in places:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (folder / "checkpoints" / ".000000012.7.abc").mkdir()
    said = train(out).stderr
    assert said.count("\n") == 1
    assert [path.read_text() for path in places] == ["mine"] * len(places)
    assert not (folder / "checkpoints" / ".000000012.7.abc").exists()


def test_names_of_checkpoints_to_come_do_not_make_those_there_go(out, finished):
    folder = stop(out)
    for name in ("999999998", "999999999"):
        (folder / "checkpoints" / name).mkdir()
    shutil.rmtree(folder / "checkpoints" / "000000012")
    said = train(out).stderr
    assert said.count("cannot be used (state.json: No such file or directory); falling back to the previous") == 2
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["000000008", "000000012", "999999998", "999999999"]


def test_a_corrupt_checkpoint_is_told_in_words(out):
    folder = stop(out) / "checkpoints"
    (folder / "000000012" / "tensors.safetensors").write_bytes(b"")
    said = train(out).stderr
    assert said.splitlines()[0] == (
        f"noisyact: checkpoint {folder / '000000012'} cannot be used (its checksum is wrong); falling back to the "
        "previous checkpoint, 000000008"
    )
    assert "Warning" not in said
    assert ".py" not in said
    stop(out)
    for name in ("000000008", "000000012"):
        (folder / name / "state.json").write_text("null")
    said = train(out).stderr
    assert said.count("falling back") == 1
    assert "000000008 cannot be used (state.json: it has null in place of an object); there is no other" in said
    assert "its checkpoints cannot be used; the run starts again from update 0" in said


def _header(data, change):
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    change(header[next(name for name in header if name != "__metadata__")])
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def _tensors(change):
    def changed(data):
        tensors = load(data)
        change(tensors)
        return save(tensors)

    return changed


def _torch(data):
    file = io.BytesIO()
    torch.save(load(data), file)
    return file.getvalue()


WEIGHT = "/modules/model/lstm.weight_hh_l0"
MOMENT = "/optimizers/adam/state/1/exp_avg"
FOREIGN = {
    "pickle": lambda data: pickle.dumps({"weights": [1.0]}),
    "torch.save": _torch,
    "empty": lambda data: b"",
    "vast header": lambda data: struct.pack("<Q", 2**62) + data[8:],
    "offsets": lambda data: _header(data, lambda entry: entry.update(data_offsets=[0, 10**12])),
    "dtype": lambda data: _header(data, lambda entry: entry.update(dtype="F7")),
    "missing": _tensors(lambda tensors: tensors.pop(WEIGHT)),
    "shape": _tensors(lambda tensors: tensors.update({WEIGHT: torch.zeros(3, 5)})),
    "shape of a moment": _tensors(lambda tensors: tensors.update({MOMENT: torch.zeros(3)})),
}


@pytest.mark.parametrize("how", FOREIGN)
def test_checkpoints_of_something_else_are_named(out, how):
    """Their checksum is valid, so this is no accident, and the run does not fall back to an older checkpoint."""
    checkpoint = stop(out) / "checkpoints" / "000000012"
    data = (checkpoint / "tensors.safetensors").read_bytes()
    assert {WEIGHT, MOMENT} <= load(data).keys()
    reseal(checkpoint, read_json(checkpoint / "state.json"), FOREIGN[how](data))
    said = train(out, code=1).stderr
    assert f"noisyact: {checkpoint} is damaged: it does not " in said
    assert said.endswith("do the run again with --force\n")
    assert said.count("\n") == 1
    train(out, "--force")


@pytest.mark.parametrize("value", ["null", "5", '"x"', "[]", "{}", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "timing.jsonl", "state.json"])
def test_json_of_another_kind_is_named(out, name, value):
    """In every file, by every command that reads it: a sentence, never a traceback."""
    folder = place(out)
    path = folder / name if name != "state.json" else folder / "checkpoints" / "000000012" / name
    if name not in ("config.json", "result.json"):
        stop(out)
    path.write_text(value + "\n")
    noisyact("table", "unique", "--preset", "smoke", "--out", out)
    noisyact("generate", "ptb-word", "--checkpoint", folder, code=1 if name == "config.json" and value != "{}" else 2)
    found = "damaged" if name != "state.json" else "cannot be used"
    if (name, value) == ("config.json", "{}"):
        assert "other settings" in train(out, code=2).stderr
    else:
        said = train(out, code=0 if name == "state.json" else 1).stderr
        assert found in said
        assert str(path if name != "state.json" else path.parent) in said
    if value == "null":
        train(out, "--force")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "partial"}, "its status is 'partial'"),
        ({"result": [1]}, "its result is not a number for each name"),
        ({"result": {"test_error": "low"}}, "its result is not a number for each name"),
        ({"seed": 7}, "its settings are not those of config.json"),
    ],
)
def test_a_result_that_is_none_is_named_with_the_way_out(out, change, why):
    path = place(out) / "result.json"
    path.write_text(json.dumps(read_json(path) | change))
    assert f"{path} is damaged: {why}" in train(out, code=1).stderr
    assert "finished" in train(out, "--force").stderr


def test_without_its_settings_nobody_knows_what_a_run_is(out):
    (place(out) / "config.json").unlink()
    assert "config.json is damaged: it is gone" in train(out, code=1).stderr
    stop(out)
    assert "config.json is damaged: it is gone" in train(out, code=1).stderr


def test_a_folder_in_place_of_a_file_and_the_other_way_round(out):
    folder = place(out)
    for name in ("config.json", "result.json", "checkpoints"):
        path = folder / name
        if name == "checkpoints":
            stop(out)
            shutil.rmtree(path)
            path.write_text("")
        else:
            path.unlink()
            path.mkdir()
        assert str(path) in train(out, code=1).stderr
        train(out, "--force")
