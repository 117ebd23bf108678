"""The explicit training step, compared with PyTorch's: eager and compiled, contiguous and channels-last.

Both sides have the same network, batch 128, dropout 0, Adam (`torch.optim.Adam` with its defaults) and the same
number of threads.  `torch.compile` compiles loss and gradients; the optimizer runs as PyTorch runs it by default.
Batch normalisation is per worker in ours and over the whole batch in PyTorch's, which is no more work for PyTorch.
Our step is compared with the faster of PyTorch's two layouts.

At the start both networks must give the same loss and gradients in float64.  The timed contestants compute in
float32, and PyTorch uses oneDNN.  How far each float32 result is from float64 is printed and not judged.

All contestants run with the huge pages that the project's commands use; `GLIBC_TUNABLES` in the environment replaces
this setting for all of them.  The benchmark needs a quiet machine.  PyTorch's threads wait for each other at every
operation: next to another program PyTorch took ten times as long, and ours twice.

PyTorch is optional: `pip install torch`.
"""

import itertools
import sys

import jax
import numpy as np
import ours
import pairs

from fault_injection.machine.environment import number_of_threads

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    sys.exit("this benchmark compares with PyTorch, which is not installed: pip install torch")

BOUNDS = {"eager": {64: 0.95, 8: 1.25}, "compiled": {64: 0.95, 8: 1.6}}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


class Convolution(nn.Conv2d):
    """A convolution padded like TensorFlow's SAME, which at stride 2 pads less before the image than after it."""

    def __init__(self, inputs, outputs, size, stride=1):
        super().__init__(inputs, outputs, size, stride, padding=0 if stride > 1 else size // 2)
        missing = max(size - stride, 0) if stride > 1 else 0  # valid if the stride divides the image size
        self.around = (missing // 2, missing - missing // 2) * 2

    def forward(self, x):
        return super().forward(F.pad(x, self.around) if any(self.around) else x)


def norm(features):
    """Batch norm with Keras's epsilon and momentum; PyTorch's momentum is one minus Keras's."""
    return nn.BatchNorm2d(features, eps=1e-3, momentum=0.1)


class Block(nn.Module):
    """One basic block; its attributes have the names of our layers."""

    def __init__(self, inputs, features, stride):
        super().__init__()
        self.conv1, self.bn1 = Convolution(inputs, features, 3, stride), norm(features)
        self.conv2, self.bn2 = Convolution(features, features, 3), norm(features)
        if stride != 1:
            self.downsample, self.bn3 = Convolution(inputs, features, 1, stride), norm(features)
        self.stride = stride

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.bn3(self.downsample(x)) if self.stride != 1 else x))


class ResNet18(nn.Module):
    """`models.networks.resnet.resnet18` without dropout, [N,3,32,32] -> [N,10]."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = Convolution(3, width, 7, 2), norm(width)
        self.blocks, inputs = [], width
        for stage, i in itertools.product((1, 2, 3, 4), (0, 1)):
            features = width * 2 ** (stage - 1)
            block = Block(inputs, features, 2 if stage > 1 and i == 0 else 1)
            self.add_module(f"basicblock_{stage}_basic_{i}", block)
            self.blocks.append(block)
            inputs = features
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))


def named_like_ours(network):
    """Our layer and name of each parameter, the permutation of axes from ours to PyTorch's, and the parameter."""
    for path, parameter in network.named_parameters():
        *layer, name = path.split(".")
        axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[parameter.ndim]
        if layer[-1].startswith("bn"):
            name = {"weight": "gamma", "bias": "beta"}[name]
        yield "_".join(layer), {"weight": "kernel"}.get(name, name), axes, parameter


def make_network(contestant, layout):
    """PyTorch's network with our initial parameters."""
    network = ResNet18(contestant.workload.width)
    params = jax.device_get(ours.start(contestant).params)
    with torch.no_grad():
        for layer, name, axes, parameter in named_like_ours(network):
            parameter.copy_(torch.from_numpy(params[layer][name].transpose(axes).copy()))
    return network.to(memory_format=LAYOUTS[layout])


def as_torch(image, label, layout):
    """One batch, [N,H,W,C] and [N], in the form that PyTorch expects."""
    image = torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2)))
    return image.contiguous(memory_format=LAYOUTS[layout]), torch.from_numpy(label).long()


def training(contestant, mode, layout):
    """A function that does PyTorch's next training step on the same batches as ours."""
    network = make_network(contestant, layout)
    optimizer = torch.optim.Adam(network.parameters())
    batches = itertools.cycle([as_torch(*batch, layout) for batch in ours.whole_batches(contestant)])

    def loss_of(image, label):
        return F.cross_entropy(network(image), label)

    loss_of = torch.compile(loss_of) if mode == "compiled" else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(*next(batches)).backward()
        optimizer.step()

    return step


def loss_and_gradients(contestant, image, label, dtype):
    """PyTorch's loss and gradients of one batch, under our names, computed in `dtype`."""
    network = make_network(contestant, "contiguous").to(dtype)
    image, label = as_torch(image, label, "contiguous")
    loss = F.cross_entropy(network(image.to(dtype)), label)
    loss.backward()
    grads: dict[str, dict[str, np.ndarray]] = {}
    for layer, name, axes, parameter in named_like_ours(network):
        grads.setdefault(layer, {})[name] = parameter.grad.numpy().transpose(np.argsort(axes))
    return loss.item(), grads


def check(contestant):
    """Stop unless both compute the same in float64, with equal parameters and one worker that holds the whole batch."""
    batch, params = ours.batch_to_compare(), ours.start(contestant).params
    reference = loss_and_gradients(contestant, *batch, torch.float64)
    ours.require_same("PyTorch's", ours.reference_gradients(contestant, params, *batch), reference)
    in_float32 = {
        "ours": ours.reference_gradients(contestant, params, *batch, np.float32),
        "PyTorch's": loss_and_gradients(contestant, *batch, torch.float32),
    }
    for name, found in in_float32.items():
        print(f"  {name} in float32, compared with float64 (not judged): {ours.difference(reference, found)[1]}")


def main():
    options = pairs.parse(__doc__)
    found = pairs.start(options)
    torch.set_num_threads(number_of_threads())
    found |= {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
    pairs.show_machine(found)
    print(f"  PyTorch {found['torch']}, {found['torch_threads']} threads")
    contestant = ours.make(options)
    check(contestant)
    contestants = {"explicit step": ours.training(contestant)}
    for mode, layout in itertools.product(BOUNDS, LAYOUTS):
        contestants[f"{mode}, {layout}"] = training(contestant, mode, layout)
    seconds = pairs.alternate(contestants, options.pairs)
    pairs.show_times(seconds)
    claims = []
    for mode, bounds in BOUNDS.items():
        best = min((f"{mode}, {layout}" for layout in LAYOUTS), key=lambda name: np.median(seconds[name]))
        what = f"explicit step / PyTorch {best}, {ours.size(contestant)}"
        claims.append(
            pairs.claim(what, seconds["explicit step"] / seconds[best], bounds.get(contestant.workload.width))
        )
    pairs.write(options, found, claims, seconds=seconds)


if __name__ == "__main__":
    main()
