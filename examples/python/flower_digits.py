"""Federated training of the digits with Flower (https://flower.ai): three clients, each with a third of the data, train
on their own; after each round all go on from the mean of their weights. Moments of the optimizer stay where they are.

    pip install 'flwr[simulation]'
    PYTHONPATH=build/python python examples/python/flower_digits.py

The client is the same for a real federation (`flwr run`): it takes weights, trains, and gives weights.
"""

import logging
import sys
from pathlib import Path

import numpy as np
import onnx_train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

CLIENTS, ROUNDS = 3, int(sys.argv[1]) if len(sys.argv) > 1 else 5
MODELS = Path(__file__).resolve().parents[2] / "models"


def digits(part):
    with np.load(MODELS / "data" / f"digits_{part}.npz") as archive:
        return dict(archive)


def new_session():
    model = onnx_train.build(MODELS / "digits_cnn.onnx", "cross_entropy", "adamw(lr=3e-3)")
    return onnx_train.Session(model, threads=1)


def names(session):
    """Weights and running statistics; what has a role belongs to the optimizer, or is a random key."""
    return [port.name for port in session.states() if not port.role]


def weights_of(session):
    return ArrayRecord(numpy_ndarrays=[session.state[name].copy() for name in names(session)])


def set_weights(session, arrays):
    for name, value in zip(names(session), arrays.to_numpy_ndarrays()):
        session.state[name] = value


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    number = context.node_config["partition-id"]
    own = {name: values[number::CLIENTS] for name, values in digits("train").items()}
    session = new_session()
    set_weights(session, message.content["arrays"])
    history = onnx_train.fit(session, own, epochs=1, batch_size=32, seed=number, progress=False)
    metrics = MetricRecord({"num-examples": len(own["labels"]), "loss": float(np.mean(history.losses))})
    return Message(RecordDict({"arrays": weights_of(session), "metrics": metrics}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    session, test = new_session(), digits("test")

    def evaluate(number, arrays):
        set_weights(session, arrays)
        accuracy = session.evaluate(test).accuracy
        print(f"round {number}: accuracy {accuracy:.1%}", flush=True)
        return MetricRecord({"accuracy": accuracy})

    strategy = FedAvg(min_available_nodes=CLIENTS, min_train_nodes=CLIENTS, fraction_evaluate=0)
    strategy.start(grid, weights_of(session), num_rounds=ROUNDS, evaluate_fn=evaluate)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.WARNING)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
