"""The command line: results on disk, and one line for whatever a user gets wrong."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from model.__main__ import commands
from model.command import run
from model.options import parse_lanes, preset_name
from spec.errors import InputError
from spec.mac import Folding
from spec.method import TERMS
from spec.plan import Plan
from spec.planner import Wishes, make_plan
from spec.presets import Preset
from spec.zoo import digits_mlp

BLOCKED = """
import sys
sys.modules.update(amaranth=None, cocotb=None)
import model.__main__, model.train
"""


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `python -m model` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["model", *arguments])
    with pytest.raises(SystemExit) as left:
        run(commands)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train", "--net", "cats"], "unknown network 'cats': must be one of deep_cnn, digits_cnn"),
        (["train", "--method", "adam"], f"method must be terms of {TERMS} joined by +, not 'adam'"),
        (["train", "--schedule", "x"], "schedule must be one of paper, 1f1b, sequential, not 'x'"),
        (["train", "--preset", "x"], "preset must be one of compact, wide, not 'x'"),
        (["train", "--arithmetic", "int"], "must be one of float32, float64, fixed, not 'int'"),
        (["train", "--seed", "-1"], "seed must be a whole number of at least 0, not '-1'"),
        (["train", "--seed", "4294967296"], "seed must be from 0 to 4294967295"),
        (["train", "--lr", "fast"], "learning rate must be a number, not 'fast'"),
        (["train", "--lr", "nan"], "learning rate must be a positive number"),
        (["train", "--lr", "1e9"], "learning rate must be from"),
        (["train", "--samples", "0"], "samples must be a whole number of at least 1, not '0'"),
        (["train", "--samples", "1", "--epochs", "1"], "either samples or epochs, not both"),
        (["train", "--lanes", "5x4,4x4,4x2"], "lanes_in must divide its 64 inputs (one of 1, 2, 4"),
        (["train", "--lanes", "4x4"], "has 3 tiles with weights, so needs as many foldings"),
        (["train", "--lanes", "4by4"], "lanes must look like"),
        (["train", "--lanes", "4x4/3,4x4,4x2"], "update_lanes must be one of"),
        (["train", "--stash-bits", "9"], "more than the 9 allowed"),
        (["train", "--plan", "/nowhere/plan.json"], "cannot read plan /nowhere/plan.json"),
        (["train", "--plan", "a", "--net", "b"], "a plan file decides net itself"),
        (["train", "--resume", "/nowhere"], "cannot read checkpoint /nowhere"),
        (["train", "--output", "/dev/null/x"], "cannot make folder /dev/null/x"),
        (["train", "--colour", "red"], "No such option"),
        (["paint"], "No such command"),
        ([], "Missing command"),
        (["calibrate", "--net", "cats"], "unknown network 'cats'"),
    ],
)
def test_bad_input_gets_one_line_and_status_two(
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert complaint in output.err


def without_last_edge(text: str) -> str:
    plan = json.loads(text)
    plan["hardware"]["edges"].pop()
    return json.dumps(plan)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda text: text.replace('"width": 8', '"width": 9'), "was edited"),
        (without_last_edge, "must describe the edges of digits_mlp"),
        (lambda text: "\xff" + text, "is not a plan: it is not text"),
    ],
)
def test_an_edited_plan_is_refused(
    edit: Callable[[str], str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "plan.json"
    make_plan(digits_mlp(), Wishes()).save(path)
    path.write_text(edit(path.read_text()), "latin-1")
    assert call(monkeypatch, "train", "--plan", str(path)) == 2
    assert complaint in capsys.readouterr().err


def test_training_writes_a_result_and_continues_from_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan_file = tmp_path / "plan.json"
    plan = make_plan(digits_mlp(), Wishes(seed=4))
    plan.save(plan_file)
    shared = ["train", "--arithmetic", "fixed", "--output", str(tmp_path)]
    folder = tmp_path / "digits_mlp-lwp+sc-fixed"
    assert call(monkeypatch, *shared, "--plan", str(plan_file), "--samples", "300") == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["hardware_hash"] == plan.hardware.hash
    assert result["run_hash"] == plan.run_hash
    assert (result["samples"], result["seed"], result["preset"]) == (300, 4, "compact")
    assert result["accuracy_before"] < 0.3
    assert result["accuracy_after"] > 0.5
    assert 0.1 < result["loss_after"] < 2.3
    assert result["samples_per_second"] > 0
    more = [*shared, "--seed", "4", "--resume", str(folder / "checkpoint.pt"), "--samples", "330"]
    assert call(monkeypatch, *more) == 0
    resumed = json.loads((folder / "result.json").read_text())
    assert resumed["samples"] == 330
    assert resumed["accuracy_before"] == result["accuracy_before"]
    assert resumed["accuracy_after"] > 0.5
    assert call(monkeypatch, *more) == 2


@pytest.mark.parametrize("preset", Preset)
def test_the_preset_of_a_plan_is_found_again(preset: Preset) -> None:
    plan: Plan = make_plan(digits_mlp(), Wishes(preset=preset))
    assert preset_name(plan) == preset.value


def test_lanes_update_as_many_weights_as_they_multiply_unless_told() -> None:
    assert parse_lanes("4x2, 8x4/8") == (Folding(4, 2, 8), Folding(8, 4, 8))
    for text in ("", "4", "4x", "x4", "4x4x4", "-4x4", "4x4/", "4x4,"):
        with pytest.raises(InputError, match="lanes must look like"):
            parse_lanes(text)


def test_the_model_needs_neither_amaranth_nor_cocotb() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True, timeout=120)


def test_accuracies_without_test_images_are_null_and_not_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--samples", "3", "--tests", "0", "--output", str(tmp_path))
    assert call(monkeypatch, "train", *arguments) == 0
    result = json.loads((tmp_path / "digits_mlp-lwp+sc-float32" / "result.json").read_text())
    measured = (result["accuracy_before"], result["accuracy_after"], result["loss_after"])
    assert measured == (None, None, None)
    assert "not measured" in capsys.readouterr().out
