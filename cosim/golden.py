"""The golden side of a co-simulation: the engine in a process of its own, running ahead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch

from cosim.host import Access, counter_accesses, state_accesses
from model.arithmetic import IntegerArithmetic
from model.data import Dataset
from model.engine import Engine, SlotRecord
from model.feed import Phase
from model.initial import initial_parameters
from model.packets import packet_beats
from spec.packets import RESULT_FIELDS, Header, pack_fields, packet_crc
from spec.plan import Plan

CHUNK = 64
"""Slots between two messages."""


@dataclass(frozen=True)
class Slots:
    """The CRCs of the next slots, one list a stream in the order of `hardware.streams`."""

    crcs: list[list[int]]


@dataclass(frozen=True)
class Final:
    """What the host should read when all slots are over."""

    accesses: list[Access]


class Golden:
    """Runs the engine over the phases of a run and packs what it puts on the streams."""

    def __init__(self, plan: Plan, dataset: Dataset, phases: Sequence[Phase]) -> None:
        torch.set_num_threads(1)
        arithmetic = IntegerArithmetic()
        self.plan, self._phases = plan, phases
        self.engine = Engine(plan, arithmetic, initial_parameters(plan, arithmetic))
        entrance = plan.hardware.edges[0]
        self._images = {
            id(split): arithmetic.encode(split.images, entrance.activation)
            for split in (dataset.train, dataset.test)
        }

    def inputs(self) -> Iterator[tuple[Header, torch.Tensor | None]]:
        """Header and encoded sample of every slot."""
        for phase in self._phases:
            images = self._images[id(phase.split)]
            for header, sample in phase.turns:
                yield header, None if sample is None else images[sample]

    def records(self) -> Iterator[SlotRecord]:
        """Run all slots."""
        for header, sample in self.inputs():
            yield self.engine.slot(header, sample)

    def beats(self, record: SlotRecord) -> list[list[list[int]]]:
        """Per stream the packets of a slot, each a list of beats; results are two packets."""
        packets = {(seen.edge, seen.forward): seen.packet for seen in record.packets}
        beats = []
        for stream in self.plan.hardware.streams:
            if stream.layout is None or stream.edge is None:
                beats.append([[_result(record)], [_done(record)]])
            else:
                packet = packets[stream.edge, stream.forward]
                beats.append([packet_beats(stream.layout, packet.header, packet.data)])
        return beats

    def crcs(self, record: SlotRecord) -> list[list[int]]:
        """Per stream the CRCs of a slot's packets."""
        widths = [stream.width for stream in self.plan.hardware.streams]
        return [
            [packet_crc(packet, width) for packet in packets]
            for width, packets in zip(widths, self.beats(record), strict=True)
        ]

    def final(self) -> Final:
        return Final([*state_accesses(self.engine), *counter_accesses(self.engine)])


class GoldenProcess:
    """The golden run in another process, as fast as it goes; a context manager.

    `poll` returns the messages that have arrived, `wait` blocks for the next one. The last message
    is a Final.
    """

    def __init__(self, plan: Plan, dataset: Dataset, phases: Sequence[Phase]) -> None:
        context = get_context("spawn")
        self._receiver, self._sender = context.Pipe(duplex=False)
        arguments = (self._sender, plan, dataset, phases)
        self._over = False
        self._process = context.Process(target=_serve, args=arguments, daemon=True)

    def __enter__(self) -> "GoldenProcess":
        self._process.start()
        self._sender.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._receiver.close()

    def poll(self) -> Iterator["Slots | Final"]:
        while not self._over and self._receiver.poll():
            yield self.wait()

    def wait(self) -> "Slots | Final":
        """Raises RuntimeError when the process has died."""
        try:
            message: Slots | Final = self._receiver.recv()
        except EOFError:
            raise RuntimeError("the golden model's process died") from None
        self._over = isinstance(message, Final)
        return message


def _serve(sender: Connection, plan: Plan, dataset: Dataset, phases: Sequence[Phase]) -> None:
    golden = Golden(plan, dataset, phases)
    waiting: list[list[int]] = [[] for _ in plan.hardware.streams]
    for number, record in enumerate(golden.records(), start=1):
        for stream, crcs in zip(waiting, golden.crcs(record), strict=True):
            stream += crcs
        if number % CHUNK == 0:
            sender.send(Slots(waiting))
            waiting = [[] for _ in waiting]
    sender.send(Slots(waiting))
    sender.send(golden.final())


def _result(record: SlotRecord) -> int:
    result = record.result
    values = {
        "kind": int(result.kind),
        "done": 0,
        "prediction": result.prediction,
        "loss": int(result.loss),
    }
    return pack_fields(RESULT_FIELDS, values)


def _done(record: SlotRecord) -> int:
    values = {"kind": int(record.done), "done": 1, "prediction": 0, "loss": 0}
    return pack_fields(RESULT_FIELDS, values)
