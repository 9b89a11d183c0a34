"""Methods that do what no method should, found by the command as any third party's are."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

import torch

from prism_bench.baselines.fedavg import FedAvg


class Hostile(FedAvg):
    """An honest method that does its harm in its second round."""

    def select(self, round, cohort):
        if round == 1:
            self.harm()
        return super().select(round, cohort)

    def harm(self):
        raise NotImplementedError


class Exits(Hostile):
    def harm(self):
        sys.exit(0)


class ExitsHard(Hostile):
    def harm(self):
        os._exit(0)


class Interrupts(Hostile):
    def harm(self):
        raise KeyboardInterrupt


class NotANumber(FedAvg):
    """Deploys weights that are no numbers after the last round."""

    def finish_round(self, round, merged):
        super().finish_round(round, merged)
        if round == 2:
            name = next(iter(self.state))
            self.state[name] = self.state[name] * float("nan")


class OtherDefaults(Hostile):
    def harm(self):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)


class GoesElsewhere(Hostile):
    def harm(self):
        os.chdir("/")


class LeavesAThread(Hostile):
    def harm(self):
        threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()


class Hangs(Hostile):
    def harm(self):
        time.sleep(1000)


class RealTimeSignal(Hostile):
    def harm(self):
        os.kill(os.getpid(), signal.SIGRTMIN + 5)


class ForksAndDies(Hostile):
    """What it leaves behind holds its pipes open."""

    def harm(self):
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


class Crashes(Hostile):
    def harm(self):
        ctypes.string_at(0)


class ClosesStreams(Hostile):
    def harm(self):
        os.close(1)
        os.close(2)
        sys.stdout.close()


class ChangesTheLibrary(Hostile):
    """A patch that an honest method would train with, were it to come after in the same process."""

    def harm(self):
        torch.nn.functional.relu = torch.relu = lambda x, *_: x
        torch.Tensor.relu = lambda x: x
        torch.randperm = lambda count, **_: torch.arange(count)


ENDS = {
    "ExitsHard": 1, "OtherDefaults": None, "ForksAndDies": 1, "Hangs": 1, "NotANumber": 1, "ChangesTheLibrary": None,
    "Exits": 1, "Interrupts": 1, "RealTimeSignal": 1, "Crashes": 1, "GoesElsewhere": None, "LeavesAThread": 0,
    "ClosesStreams": None,
}  # fmt: skip
"""Whether a run of each must fail (1), must not (0), or may do either."""
