"""The power fails at any step of a log that is written, copied, cut and begun anew."""

from random import Random

import pytest
from logs import NOW_MS, batch, everything, open_log

from orderwire.broker.log import PartitionLog
from orderwire.broker.log.faulty import FaultyStorage, PowerFailure
from orderwire.broker.wire.batch import place, read_header


class Model:
    """What may and what must be there."""

    def __init__(self, chance: Random) -> None:
        self.sizes = {
            "segment_bytes": chance.choice((700, 3_000, 1 << 20)),
            "recovery_bytes": chance.choice((1, 1_000, 1 << 20)),
            "index_interval_bytes": 300,
        }
        self.start = 0
        self.values: list[bytes] = []
        """From `start` on."""
        self.synced = 0
        """Everything below must be there."""
        self.cutting: int | None = None
        """A cut to here may or may not have been made."""
        self.beginning: int | None = None
        """So may a new beginning."""
        self.number = 0

    @property
    def end(self) -> int:
        return self.start + len(self.values)

    def check(self, log: PartitionLog) -> None:
        """After a start: take what is there when it is what may be there."""
        if self.beginning is not None and log.start_offset == log.end_offset == self.beginning:
            self.start, self.values = self.beginning, []
        else:
            least = self.synced if self.cutting is None else min(self.synced, self.cutting)
            assert log.start_offset == self.start
            assert least <= log.end_offset <= self.end
            self.values = self.values[: log.end_offset - self.start]
            assert everything(log) == list(enumerate(self.values, self.start))
        self.synced = log.end_offset
        self.cutting = self.beginning = None
        if self.values:
            last = batch(self.values[-1], producer=(7, 0, self.end - 1))
            again = log.append(last, max(log.epochs.latest, 0), NOW_MS)
            assert getattr(again, "duplicate", False), again

    def fresh(self) -> bytes:
        self.number += 1
        return b"%d" % self.number * 20


def act(log: PartitionLog, model: Model, chance: Random) -> None:
    epoch = max(log.epochs.latest, 0) + (chance.random() < 0.1)
    match chance.choice("aaaapppsstr"):
        case "a":
            value = model.fresh()
            model.values.append(value)
            log.append(batch(value, producer=(7, 0, model.end - 1)), epoch, NOW_MS)
        case "p":
            data = bytearray()
            for _ in range(chance.randint(1, 4)):
                value = model.fresh()
                epoch += chance.random() < 0.1
                one = batch(value, producer=(7, 0, model.end))
                place(one, 0, read_header(one).batch_length, model.end, epoch)
                model.values.append(value)
                data += one
            log.append_placed(data, NOW_MS)
        case "s":
            log.sync()
            model.synced = log.end_offset
        case "t":
            to = chance.randint(model.start, model.end)
            model.cutting = to
            log.truncate(to, NOW_MS)
            if to < model.end:
                del model.values[to - model.start :]
                model.synced = to
            model.cutting = None
        case "r" if chance.random() < 0.3:
            to = chance.randint(0, model.end + 5)
            model.beginning = to
            log.reset(to, NOW_MS)
            model.start, model.values, model.synced = to, [], to
            model.beginning = None


@pytest.mark.parametrize("seed", range(150))
def test_a_log_that_is_cut_survives_the_power(seed: int) -> None:
    chance = Random(f"cut/{seed}")
    storage = FaultyStorage()
    model = Model(chance)
    for _ in range(6):
        storage.disk.crash_at_step = storage.disk.steps + chance.randint(1, 80)
        with pytest.raises(PowerFailure):  # noqa: PT012
            log = open_log(storage, **model.sizes)
            model.check(log)
            while True:
                act(log, model, chance)
        if chance.random() < 0.7:
            storage = storage.after_crash(chance)
        storage.disk.crash_at_step = None
    model.check(open_log(storage, **model.sizes))


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_every_step_of_a_cut_may_be_the_last(anew: bool, power: bool) -> None:
    for step in range(100):
        for seed in range(4):
            chance = Random(seed)
            storage = FaultyStorage()
            model = Model(Random(3))
            log = open_log(storage, **model.sizes)
            for _ in range(30):
                model.values.append(model.fresh())
                epoch = model.end // 5
                log.append(batch(model.values[-1], producer=(7, 0, model.end - 1)), epoch, NOW_MS)
                if model.end == 20:
                    log.sync()
                    model.synced = log.end_offset
            storage.disk.crash_at_step = storage.disk.steps + step
            try:
                if anew:
                    model.beginning = 12
                    log.reset(12, NOW_MS)
                else:
                    model.cutting = 12
                    log.truncate(12, NOW_MS)
            except PowerFailure:
                finished = False
            else:
                finished = True
            storage.disk.crash_at_step = None
            if power:
                storage = storage.after_crash(chance)
            log = open_log(storage, **model.sizes)
            if finished:
                assert log.end_offset == 12
            model.check(log)
        if finished:
            return
    raise AssertionError("it never finished")
