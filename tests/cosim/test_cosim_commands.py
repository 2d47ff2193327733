"""`python -m cosim`: what it writes, and what it says about bad input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cosim import harness
from cosim.__main__ import commands
from cosim.toolchain import ToolError, find_verilator
from model.command import run
from spec.codec import content_hash
from spec.mac import Folding
from spec.method import TERMS
from spec.network import Network
from spec.planner import Wishes, make_plan
from spec.ranges import EdgeRange, ParameterRange, Ranges
from spec.shape import Shape
from spec.tiles import Loss, dense
from spec.zoo import digits_mlp
from tests.cosim.conftest import residual_plan


def command_line(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Run the command line in this process; return its exit status."""
    monkeypatch.setattr("sys.argv", ["cosim", *arguments])
    with pytest.raises(SystemExit) as left:
        run(commands)
    return left.value.code


def tiny_plan(folder: Path) -> Path:
    """A plan file of 64-2-10 on the digits: real images, a simulator that builds in seconds."""
    network = Network.chain(
        "tiny", Shape(1, 1, 64), (dense("one", 2),), (dense("two", 10, relu=False), Loss("loss"))
    )
    ranges = Ranges(
        content_hash(network),
        tuple(EdgeRange(edge, 1 if edge.source == "input" else 3, 0) for edge in network.edges),
        (),
        tuple(ParameterRange(tile.name, 1, 2, -2) for tile in network.convs),
    )
    foldings = (Folding(2, 1, 1), Folding(1, 2, 1))
    entry = replace(digits_mlp(), network=network, foldings=foldings)
    make_plan(entry, Wishes(), ranges).save(folder / "plan.json")
    return folder / "plan.json"


def test_sim_trains_on_real_digits_and_reports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = tiny_plan(tmp_path)
    monkeypatch.setattr(harness.build, "__kwdefaults__", {
        **harness.build.__kwdefaults__, "optimisation": "-O0", "folder": tmp_path / "simulators",
    })  # fmt: skip
    arguments = ("--plan", str(plan), "--samples", "200", "--output", str(tmp_path))
    assert command_line(monkeypatch, "sim", *arguments) == 0
    report = json.loads((tmp_path / "tiny-lwp+sc" / "report.json").read_text())
    assert report["bit_exact"] is True
    assert report["mismatch"] is None
    assert report["samples"] == 200
    assert report["slots"] == 360 + 200 + 2 + 360
    assert report["tensors_compared"] == 8 * report["slots"]
    assert 0 <= report["accuracy_before"] <= 1
    bottleneck = report["tiles"]["one"]
    assert report["mac_utilisation"] == pytest.approx(bottleneck["utilisation_formula"])
    assert bottleneck["slot_cycles_working"] == bottleneck["slot_cycles_formula"]
    wanted = {"cycles", "cycles_per_second", "accuracy_after", "hardware_hash", "run_hash"}
    assert wanted <= report.keys()


def test_verilog_is_lint_clean_and_comes_with_plan_and_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ("--plan", str(tiny_plan(tmp_path)), "--output", str(tmp_path / "verilog"))
    assert command_line(monkeypatch, "verilog", *arguments) == 0
    interface = json.loads((tmp_path / "verilog" / "interface.json").read_text())
    plan = json.loads((tmp_path / "verilog" / "plan.json").read_text())
    assert interface["hardware_hash"] == plan["hardware_hash"]
    assert "module tidemill(" in (tmp_path / "verilog" / "tidemill.v").read_text()


def test_verilog_of_branches_adapters_and_affine_norms_is_lint_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    residual_plan().save(tmp_path / "plan.json")
    arguments = ("--plan", str(tmp_path / "plan.json"), "--output", str(tmp_path / "verilog"))
    assert command_line(monkeypatch, "verilog", *arguments) == 0
    assert "10 tiles are" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--net", "nope"), "unknown network 'nope': must be one of"),
        (("--method", "sgd"), f"method must be terms of {TERMS} joined by +, not 'sgd'"),
        (("--lanes", "4x5,4x4,4x2"), "dense1: lanes_out must divide its 48 outputs (one of 1, 2"),
        (("--stash-bits", "100"), "dense1: a stash of 6 packets needs 3360 bits"),
        (("--stall", "91"), "stall must be from 0 to 90 percent, not 91"),
        (("--sim", "vcs"), "sim must be one of verilator, icarus, not 'vcs'"),
        (("--waves", "yes"), "waves must be 0 or 1, not 'yes'"),
        (("--samples", "0"), "samples must be a whole number of at least 1"),
        (("--lr", "1e-9"), "learning rate must be from"),
        (("--nonsense",), "No such option"),
    ],
)
def test_bad_input_gets_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert command_line(monkeypatch, "sim", *arguments) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


def test_an_edited_plan_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tiny_plan(tmp_path)
    whole = plan.read_text()
    plan.write_text(whole.replace('"stash_bits": 1073741824', '"stash_bits": 1073741825'))
    assert command_line(monkeypatch, "sim", "--plan", str(plan)) == 2
    assert "was edited: its hardware_hash says" in capsys.readouterr().err
    plan.write_text(whole.replace('"tokens": 2', '"tokens": 1'))
    assert command_line(monkeypatch, "sim", "--plan", str(plan)) == 2
    assert "plan.json: hardware: input->one: one needs room for" in capsys.readouterr().err


def test_an_old_verilator_is_named_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "verilator"
    old.write_text("#!/bin/sh\necho 'Verilator 4.038 2020-07-11'\n")
    old.chmod(0o755)
    monkeypatch.setenv("VERILATOR", str(old))
    with pytest.raises(ToolError, match=r"^Verilator 5\.036 or newer is needed, found .*4\.038"):
        find_verilator()


@pytest.mark.parametrize("missing", ["g++", "perl"])
def test_a_missing_tool_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    missing: str,
) -> None:
    for tool in {"g++", "make", "perl"} - {missing}:
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(harness.build, "__kwdefaults__", {
        **harness.build.__kwdefaults__, "folder": tmp_path / "simulators",
    })  # fmt: skip
    assert command_line(monkeypatch, "sim", "--plan", str(tiny_plan(tmp_path))) == 2
    output = capsys.readouterr().err
    assert output == f"error: {missing} not found: apt-get install {missing}\n"
