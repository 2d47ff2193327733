"""A running simulator as an object: the near end of cosim/driver."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from cosim import messages, toolchain
from cosim.harness import TOP, Build
from cosim.toolchain import SimulationError


@dataclass
class Session:
    """Commands to the driver in the simulator; one answer each."""

    _connection: Connection
    wave_file: Path | None = field(default=None, init=False)

    def write(self, accesses: Sequence[tuple[int, int]]) -> None:
        """Write (address, word) pairs over the bus."""
        self._send(messages.Write([a for a, _ in accesses], [w for _, w in accesses]))

    def read(self, addresses: Sequence[int]) -> list[int]:
        """The words at bus addresses."""
        self._send(messages.Read(list(addresses)))
        return list(self._receive())

    def captured(self, stream: int, beats: int) -> list[int]:
        """The first beats of the captured packet on a stream."""
        self._send(messages.Captured(stream, beats))
        return list(self._receive())

    def run(
        self, run: messages.Run, report: Callable[[messages.Report], None]
    ) -> messages.Finished:
        """Run packets through the array, calling `report` for everything that comes out."""
        self._send(run)
        while not isinstance(answer := self._receive(), messages.Finished):
            report(answer)
        return answer

    def _send(self, command: object) -> None:
        try:
            self._connection.send(command)
        except OSError as error:
            raise SimulationError(f"the simulator has gone: {error}") from None

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise SimulationError("the simulator stopped in the middle of a run") from None


@contextmanager
def simulate(build: Build, setup: messages.Setup, log: Path) -> Iterator[Session]:
    """Start the simulator of a build; it ends with the context.

    Raises SimulationError with the tail of its log when it dies.
    """
    with tempfile.TemporaryDirectory(prefix="tidemill-") as folder:
        address = str(Path(folder) / "socket")
        with Listener(address) as listener:
            process = _Process(build, address, log)
            process.start()
            session = Session(_accept(listener, process))
            try:
                session._send(setup)
                yield session
                session._send(None)
            except SimulationError:
                session._connection.close()
                process.join()
                raise process.failure or SimulationError("the simulator stopped") from None
            finally:
                session._connection.close()
                process.join()
            if process.failure:
                raise process.failure
            session.wave_file = process.wave_file


def _accept(listener: Listener, process: "_Process") -> Connection:
    """Wait for the driver; a simulator that dies before it calls shall not hang us."""
    accepted: list[Connection] = []
    waiter = threading.Thread(target=lambda: accepted.append(listener.accept()), daemon=True)
    waiter.start()
    while waiter.is_alive():
        waiter.join(0.05)
        if waiter.is_alive() and not process.is_alive():
            raise process.failure or SimulationError("the simulator ended before it began")
    return accepted[0]


class _Process(threading.Thread):
    """Waits for the simulator's process, and keeps how it ended."""

    def __init__(self, build: Build, address: str, log: Path) -> None:
        super().__init__(daemon=True)
        self._build, self._address, self._log = build, address, log
        self.failure: Exception | None = None
        self.wave_file: Path | None = None

    def run(self) -> None:
        try:
            self.wave_file = toolchain.run_cocotb(
                self._build.simulator,
                TOP,
                self._build.directory,
                module="cosim.driver",
                environment={messages.SOCKET_VARIABLE: self._address},
                log=self._log,
                waves=self._build.waves,
            )
        except Exception as error:
            self.failure = error
