"""Losses and gradients of the models of `lab/src/model/` as PyTorch has them, for `lab/tests/pytorch.rs`.

Written by PyTorch 1.13.1 (the package torch of PyPI, whose numbers are those of Debian's python3-torch 1.13.1+dfsg-4) on
Python 3.11, on a processor, in float64, with

    python3 lab/tests/pytorch.py lab/tests/pytorch.safetensors

Inputs and parameters are float32, so that both sides begin with the same numbers; results are rounded to float32.
"""

import json
import struct
import sys

import torch
from torch import nn

EXAMPLES = 9


def softmax(columns, classes):
    return nn.Sequential(nn.Linear(columns, classes)), ["linear"]


def perceptron(columns, classes, hidden):
    modules, names, inputs = [], [], columns
    for number, units in enumerate(hidden, 1):
        modules += [nn.Linear(inputs, units), nn.ReLU()]
        names += ["hidden" if len(hidden) == 1 else f"hidden{number}"]
        inputs = units
    return nn.Sequential(*modules, nn.Linear(inputs, classes)), [*names, "output"]


def convnet(planes, side, classes, hidden):
    modules = [nn.Unflatten(1, (planes, side, side))]
    for inputs, maps in [(planes, 8), (8, 16)]:
        convolution = nn.Conv2d(inputs, maps, 5, padding=2, bias=False)
        modules += [convolution, nn.BatchNorm2d(maps), nn.ReLU(), nn.MaxPool2d(2)]
    head, names = perceptron(16 * (side // 4) ** 2, classes, hidden)
    return nn.Sequential(*modules, nn.Flatten(), *head), ["conv1", "norm1", "conv2", "norm2", *names]


CASES = {
    "softmax": (20, 3, *softmax(20, 3)),
    "mlp": (20, 3, *perceptron(20, 3, [7])),
    "mlp-deep": (20, 3, *perceptron(20, 3, [9, 8, 6])),
    "convnet": (64, 10, *convnet(1, 8, 10, [12])),
    "convnet-colour": (3 * 16, 4, *convnet(3, 4, 4, [6, 5])),
}


def case(columns, classes, model, names):
    """All tensors of one model: what both sides begin with, and what comes out."""
    model.double()
    named = [module for module in model if list(module.parameters())]
    state = {f"{name}.{key}": value for name, module in zip(names, named) for key, value in module.state_dict().items()}
    state = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    with torch.no_grad():
        for name, value in state.items():
            drawn = torch.rand(value.shape) if name.endswith("running_var") else torch.randn(value.shape)
            scale = 1.0 if value.dim() == 1 else (2.0 / value[0].numel()) ** 0.5
            value.copy_((scale * drawn).float().double())
    features = torch.rand(EXAMPLES, columns).float().double()
    labels = torch.randint(classes, (EXAMPLES,))
    out = {"features": features, "labels": labels.double()}
    out.update({f"parameters/{name}": value.clone() for name, value in state.items()})

    model.eval()
    out["evaluation"] = nn.functional.cross_entropy(model(features), labels).reshape(1)
    model.train()
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    out["loss"] = loss.reshape(1)
    for name, module in zip(names, named):
        out.update({f"gradient/{name}.{key}": value.grad for key, value in module.named_parameters()})
        # What BatchNorm2d remembers after this batch, with its momentum of 0.1.
        out.update({f"remembered/{name}.{key}": value for key, value in module.named_buffers() if value.dim()})
    return out


def factorisation(rows, columns, rank, penalty):
    """The same of the factors of a matrix, which are two embeddings. One entry occurs twice."""
    factors = {"rows": nn.Embedding(rows, rank).double(), "columns": nn.Embedding(columns, rank).double()}
    numbers = {"rows": torch.randint(rows, (EXAMPLES,)), "columns": torch.randint(columns, (EXAMPLES,))}
    values = (2.0 * torch.randn(EXAMPLES)).float().double()
    for part in numbers.values():
        part[-1] = part[0]
    out = {"values": values, "shape": torch.tensor([rows, columns, rank, penalty])}
    with torch.no_grad():
        for name, factor in factors.items():
            factor.weight.copy_(torch.randn(factor.weight.shape).float().double())
            out[f"parameters/{name}.weight"] = factor.weight.clone()
            out[name] = numbers[name].double()
    left, right = (factors[name](numbers[name]) for name in ("rows", "columns"))
    error = nn.functional.mse_loss((left * right).sum(1), values)
    out["evaluation"] = error.reshape(1)
    loss = error + penalty * (left.square().sum(1) + right.square().sum(1)).mean()
    loss.backward()
    out["loss"] = loss.reshape(1)
    out.update({f"gradient/{name}.weight": factor.weight.grad for name, factor in factors.items()})
    return out


def write(path, tensors):
    """The safetensors format: the length of a JSON header, the header, the values."""
    header, data = {"__metadata__": {"torch": torch.__version__}}, b""
    for name, value in tensors.items():
        values = value.detach().flatten().tolist()
        packed = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)


if __name__ == "__main__":
    torch.manual_seed(17)
    tensors = {}
    for name, parts in CASES.items():
        tensors.update({f"{name}/{key}": value for key, value in case(*parts).items()})
    tensors.update({f"factorisation/{key}": value for key, value in factorisation(6, 5, 3, 0.125).items()})
    write(sys.argv[1], tensors)
