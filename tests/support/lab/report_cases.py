"""Runs for the report: finished, diverged and unfinished ones, and malicious files."""

import json
import shutil

from noisyact_lab.engine.folder.files import write_json, write_text
from noisyact_lab.engine.job import Job, folder_of
from noisyact_lab.engine.run import run

ATTACK = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><script>top.hacked = 3</script>'
    '<rect width="9" height="9"/></svg>'
)


def real_runs(out):
    """Unique count: an arm of three seeds, one of two, a run that diverged and one that never finished."""
    for arm, seeds in (("reference", 3), ("nan-annealed", 2)):
        for seed in range(seeds):
            run(Job("unique", arm, "smoke", seed, out, device="cpu"))
    run(Job("unique", "hard", "smoke", 0, out, device="cpu", changes={"learning_rate": 1e30}))
    run(Job("unique", "leak", "smoke", 0, out, device="cpu"))
    partial = folder_of(out, "unique", "smoke", "leak", 0)
    (partial / "result.json").unlink()
    lines = (partial / "metrics.jsonl").read_text().splitlines(keepends=True)
    (partial / "metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:9])  # killed while it wrote the third
    return out


def add_extras(out):
    """A commentary, samples of two arms and pictures of one."""
    write_text(out / "unique" / "smoke" / "commentary.txt", "The first\nparagraph.\n\nThe second one.\n")
    for arm, said in (("reference", "6."), ("nan-annealed", "7.")):
        folder = folder_of(out, "unique", "smoke", arm, 0)
        rows = [["a=3\nprint(a+4)", "7.", said]]
        table = {"title": "programs", "columns": ["program", "target", "prediction"], "rows": rows}
        write_json(folder / "samples.json", [table])
    write_text(folder_of(out, "unique", "smoke", "nan-annealed", 0) / "pictures" / "attention_map.svg", SVG)


def add_attacks(out):
    """Names, numbers and texts that try to be markup or script, and files that are broken."""
    smoke = out / "unique" / "smoke"
    (smoke / "<img src=x onerror=window.hacked=4>" / "seed-0").mkdir(parents=True)
    hostile = smoke / "nan" / "seed-<img src=x onerror=window.hacked=5>"
    shutil.copytree(folder_of(out, "unique", "smoke", "reference", 0), hostile)
    record = json.loads((hostile / "result.json").read_text())
    write_json(hostile / "result.json", record | {"status": ATTACK})
    config = json.loads((hostile / "config.json").read_text())
    write_json(hostile / "config.json", config | {"device": ATTACK})
    line = {"update": 1, ATTACK: 2.0, "test_error": 9.0, "loss": "<b>"}
    (hostile / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    write_json(hostile / "samples.json", [{"title": ATTACK, "columns": [ATTACK], "rows": [[ATTACK]]}])
    (hostile / "pictures").mkdir()
    (hostile / "pictures" / "' onerror='window.hacked=6.svg").write_text(SVG)
    write_text(smoke / "commentary.txt", ATTACK)
