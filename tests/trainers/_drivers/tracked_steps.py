"""Steps recorded by MLflow or SwanLab in a resumed run, read back by the service's own reader.

tracked_steps.py NAME FOLDER
"""

import json
import socket
import sys
from pathlib import Path

from agentflow.errors import ConfigurationError
from agentflow.learner.trackers import TrackerSettings, open_trackers


def mlflow_points(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    found = []
    for run in client.search_runs([client.get_experiment_by_name("tests").experiment_id]):
        history = client.get_metric_history(run.info.run_id, "reward/mean")
        found.append([run.info.status, [[point.step, point.value] for point in history]])
    return found


def swanlab_points(folder):
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    found = []
    # A resumed run writes another file under the same id.
    for path in sorted((folder / "swanlab").glob("run-*/*.swanlab")):
        reader = DataStoreReader()
        reader.open(str(path))
        records = [Record.FromString(data) for data in reader]
        reader.close()
        scalars = [record.scalar for record in records if record.scalar.key == "reward/mean"]
        found.append([path.stem, [[point.step, point.value.number] for point in scalars]])
    return found


def refuse(*arguments):
    raise AssertionError(f"the network was used: {arguments}")


def main():
    name, folder = sys.argv[1], Path(sys.argv[2])
    resolve, socket.getaddrinfo = socket.getaddrinfo, refuse
    settings = TrackerSettings(use=(name,), project="tests")
    for steps, after in ((range(4), -1), (range(2, 6), 1)):
        trackers = open_trackers(settings, folder, after)
        for step in steps:
            trackers.log(step, {"reward/mean": step / 2, "loss": float("nan")})
        trackers.close()
    points = {"mlflow": mlflow_points, "swanlab": swanlab_points}[name](folder)
    socket.getaddrinfo = resolve
    try:
        open_trackers(TrackerSettings(use=(name,), online=True), folder / "online")
        refused = ""
    except ConfigurationError as error:
        refused = str(error)
    print(json.dumps({"points": points, "refused": refused}))


main()
