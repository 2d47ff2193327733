"""The part that runs inside the simulator: moves words in and out, and decides nothing.

The process that started the simulator sends commands over a local socket. Python is touched once in
many packets: the bench (tidemill_bench.v) has memories for all that goes in and comes out.
"""

import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from time import perf_counter
from typing import Any

import cocotb
from cocotb.triggers import Timer

from cosim.messages import (
    SOCKET_VARIABLE,
    Captured,
    Finished,
    Read,
    Report,
    Run,
    Setup,
    StreamState,
    TileActivity,
    Write,
)

CLOCK = 10
"""Steps (nanoseconds) of a clock; waits are multiples, so that no access meets an edge."""
QUEUE = 256
"""Packets that the bench's input memory holds, as in tidemill_bench.v.in."""
LOG = 1024
BUS = 4096
QUANTUM_SLOTS = 48
"""Slots that pass between two looks at the array."""


@cocotb.test()
async def drive(top: Any) -> None:
    """Serve commands until the other side hangs up."""
    with Client(os.environ[SOCKET_VARIABLE]) as connection:
        setup: Setup = connection.recv()
        bench = Bench(top.bench, setup)
        await bench.start()
        while (command := connection.recv()) is not None:
            if isinstance(command, Write):
                await bench.write(command)
            elif isinstance(command, Read):
                connection.send(await bench.read(command))
            elif isinstance(command, Captured):
                connection.send(bench.captured(command))
            else:
                await bench.run(command, connection)


class Bench:
    """Handles of the bench's memories, and the loops over them.

    32-bit words are read and written by the simulator interface's own integers, which cost a tenth
    of cocotb's value objects.
    """

    def __init__(self, bench: Any, setup: Setup) -> None:
        self._bench, self._setup = bench, setup
        self._probes = [getattr(bench.array, f"probe_{i}") for i in range(setup.streams)]
        self._logs = [self._words(probe.crc_log, LOG) for probe in self._probes]
        self._packets = [self._word(probe.packets) for probe in self._probes]
        self._results = self._words(bench.results, 2 * QUEUE)
        self._samples = [bench.samples[i] for i in range(QUEUE)]
        self._addresses = [bench.bus_address[i] for i in range(BUS)]
        self._data = [bench.bus_data[i]._handle for i in range(BUS)]
        self._received, self._cycle = self._word(bench.received), self._word(bench.cycle)
        self._fed = self._word(bench.fed)
        self._ticket = 0

    @staticmethod
    def _word(handle: Any) -> Callable[[], int]:
        read = handle._handle.get_signal_val_long
        return lambda: read() & 0xFFFF_FFFF

    def _words(self, memory: Any, count: int) -> list[Callable[[], int]]:
        return [self._word(memory[i]) for i in range(count)]

    async def start(self) -> None:
        """Set what the probes read during reset, and wait for its end."""
        await Timer(1)
        self._bench.stall.value = self._setup.stall
        self._bench.seed.value = self._setup.seed
        self._bench.capture.value = self._setup.capture
        await Timer(20 * CLOCK - 1)

    async def write(self, command: Write) -> None:
        for at in range(0, len(command.addresses), BUS):
            addresses = command.addresses[at : at + BUS]
            for place, word in enumerate(command.words[at : at + BUS]):
                self._data[place].set_signal_val_int(0, word - (word >> 31 << 32))
            await self._request(addresses, True)

    async def read(self, command: Read) -> list[int]:
        words: list[int] = []
        for at in range(0, len(command.addresses), BUS):
            addresses = command.addresses[at : at + BUS]
            await self._request(addresses, False)
            words += (
                self._data[i].get_signal_val_long() & 0xFFFF_FFFF for i in range(len(addresses))
            )
        return words

    async def _request(self, addresses: list[int], write: bool) -> None:
        for handle, address in zip(self._addresses, addresses, strict=False):
            handle.value = address
        self._ticket += 1
        self._bench.bus_count.value = len(addresses)
        self._bench.bus_write.value = write
        self._bench.bus_ticket.value = self._ticket
        await Timer(CLOCK * (len(addresses) + 8))
        while int(self._bench.bus_done.value) != self._ticket:
            await Timer(CLOCK)

    def captured(self, command: Captured) -> list[int]:
        kept = self._probes[command.stream].captured
        return [int(kept[i].value) for i in range(command.beats)]

    async def run(self, command: Run, connection: Connection) -> None:
        """Keep the input memory filled; hand over what has come out after every quantum."""
        total = len(command.packets)
        targets = [total] * (len(self._probes) - 1) + [2 * total]
        taken = [0] * len(self._probes)
        results, filled, last_progress = 0, 0, self._cycle()
        begin = perf_counter()
        quantum_slots = max(1, min(QUANTUM_SLOTS, total // 8))
        quantum = quantum_slots * command.slot_cycles
        while any(seen < target for seen, target in zip(taken, targets, strict=True)):
            filled = self._fill(command, filled)
            await Timer(CLOCK * quantum)
            crcs = [list(self._new(i, taken)) for i in range(len(taken))]
            arrived = self._received()
            words = [self._results[i % (2 * QUEUE)]() for i in range(results, arrived)]
            self._set_window(command, quantum_slots)
            cycles = self._cycle()
            connection.send(Report(crcs, words, cycles, perf_counter() - begin))
            if any(crcs):
                last_progress = cycles
            elif cycles - last_progress > command.patience:
                connection.send(self._finished(begin, stuck=True))
                return
            results = arrived
        connection.send(self._finished(begin, stuck=False))

    def _fill(self, command: Run, filled: int) -> int:
        room = min(self._fed() + QUEUE, len(command.packets))
        for place in range(filled, room):
            self._samples[place % QUEUE].value = command.packets[place]
        self._bench.wanted.value = room
        return room

    def _new(self, stream: int, taken: list[int]) -> Iterator[int]:
        """CRCs of the packets that have passed a stream since the last look."""
        arrived = self._packets[stream]()
        if arrived - taken[stream] > LOG:
            raise RuntimeError(
                f"stream {stream}: {arrived - taken[stream]} packets overran the log"
            )
        log = self._logs[stream]
        for packet in range(taken[stream], arrived):
            yield log[packet % LOG]()
        taken[stream] = arrived

    def _set_window(self, command: Run, quantum_slots: int) -> None:
        """The window closes before a packet beyond it could be sent."""
        start, stop = command.window
        self._bench.window.value = start <= self._fed() < stop - 2 * quantum_slots

    def _finished(self, begin: float, stuck: bool) -> Finished:
        bench = self._bench
        activity = [
            TileActivity(
                *(int(memory[t].value) for memory in (bench.slots, bench.span)),
                *(int(memory[t].value) for memory in (bench.busy, bench.waiting)),
            )
            for t in range(self._setup.tiles)
        ]
        states = [
            StreamState(count(), bool(int(p.shown_valid.value)), bool(int(p.shown_ready.value)))
            for count, p in zip(self._packets, self._probes, strict=True)
        ]
        seconds = perf_counter() - begin
        answered = self._word(bench.answered)()
        return Finished(answered, self._cycle(), seconds, activity, states if stuck else None)
