"""The plain entry of the FedML integration, with its hooks counted, its messages measured and, if asked, a fault.

    python spied.py REPORT FAULT --cf ...

writes to REPORT-PID.json, however the process ends. FAULT is ``none``, or what the first worker to train in round 2
does: ``raise``, ``nan`` or ``kill``; ``kill-server`` is the server's when it merges round 2.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import sys
import time
import warnings
from collections import Counter

HOOKS = {
    "sp": {"sp": {"SubModelAPI": ["train", "_aggregate"]}},
    "mpi": {
        "mpi": {
            "Aggregator": ["aggregate", "get_global_model_params"],
            "ServerManager": ["send_message_init_config", "send_message_sync_model_to_client"],
            "Trainer": ["update_model", "train"],
            # Inherited: shows that FedML's own machinery carried the messages.
            "FedAVGServerManager": ["handle_message_receive_model_from_client"],
            "FedAVGClientManager": ["send_model_to_server"],
        }
    },
    "grpc": {
        "cross_silo": {
            "Aggregator": ["aggregate"],
            "Trainer": ["set_model_params", "train"],
            "FedMLServerManager": ["send_message_init_config", "send_message_diff_sync_model_to_client"],
            "ClientMasterManager": ["send_model_to_server"],
        }
    },
}


def spy(report: str, fault: str) -> None:
    from prism_bench.core import orthogonal
    from prism_bench.engine.federation import Federation
    from prism_bench.engine.round import Round
    from prism_bench.integrations.fedml import sides

    counts: Counter[str] = Counter()
    servers: Counter[str] = Counter()
    messages: list[dict[str, object]] = []

    def save() -> None:
        with open(f"{report}-{os.getpid()}.json", "w") as file:
            json.dump({"counts": counts, "servers": servers, "messages": messages}, file)

    def count(owner: type, name: str, label: str) -> None:
        original = getattr(owner, name)

        def counted(self: object, *arguments: object, **options: object) -> object:
            counts[label] += 1
            save()
            return original(self, *arguments, **options)

        setattr(owner, name, counted)

    for kind, modules in HOOKS.items():
        for module, classes in modules.items():
            try:
                loaded = __import__(f"prism_bench.integrations.fedml.{module}", fromlist=["*"])
            except ImportError:
                continue
            for owner, names in classes.items():
                for name in names:
                    count(getattr(loaded, owner), name, f"{kind}.{owner}.{name}")

    build, svd = Federation.__init__, orthogonal.svd

    def watched_build(self: Federation, *arguments: object, **options: object) -> None:
        servers["Federation"] += 1
        build(self, *arguments, **options)

    def watched_svd(*arguments: object) -> object:
        servers["svd"] += 1
        return svd(*arguments)

    Federation.__init__, orthogonal.svd = watched_build, watched_svd

    def strike() -> None:
        with open(f"{report}-fault", "x") as file:
            file.write(str(time.time()))

    train, collect = sides.Worker.train, sides.FedMLExecutor.collect

    def size(state: dict[str, object]) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in state.values())

    def watched(self: sides.Worker, message: sides.Message) -> sides.Message:
        hit = fault in ("raise", "nan", "kill") and message.get("round") == 1 and message["jobs"]
        if hit:
            try:
                strike()
            except FileExistsError:
                hit = False
        if hit and fault == "raise":
            raise ValueError("a client's data is broken")
        if hit and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = train(self, message)
        if hit and fault == "nan":
            next(iter(next(iter(answer["results"].values()))[0].values())).fill_(float("nan"))
        down: Counter[int] = Counter()
        up: Counter[int] = Counter()
        for job, (client, state, _) in message["jobs"].items():
            down[client.number] += size(state)
            up[client.number] += size(answer["results"][job][0])
        run = self.trainer.run
        messages.append(
            {
                "algorithm": run.algorithm.name,
                "round": message["round"],
                "down": down,
                "up": up,
                "tensors": sum(len(state) for _, state, _ in message["jobs"].values()),
                "pickled": len(pickle.dumps(message)),
                "own": len(self.trainer.algorithm.state),
            }
        )
        counts["Worker.train"] += 1
        save()
        return answer

    def watched_collect(self: sides.FedMLExecutor, round: Round, uploads: object) -> object:
        if fault == "kill-server" and round.number == 1:
            strike()
            os.kill(os.getpid(), signal.SIGKILL)
        return collect(self, round, uploads)

    sides.Worker.train, sides.FedMLExecutor.collect = watched, watched_collect
    atexit.register(save)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _, report, fault, *arguments = sys.argv
    sys.argv = ["python -m prism_bench.integrations.fedml", *arguments]
    spy(report, fault)
    from prism_bench.integrations.fedml.__main__ import main

    main()
