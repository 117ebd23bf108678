"""The networks in Flax Linen without dropout, [N,32,32,3] -> [N,10].  Modules have the names of our layers."""

import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from fault_injection.models.networks.effnet import HEAD, STAGES
from fault_injection.models.networks.nfnet import VARIANCE_KEPT


def convolution(name, x, features, size, stride=1, bias=True):
    return nn.Conv(features, (size, size), stride, padding="SAME", use_bias=bias, name=name)(x)


def norm(name, x):
    return nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-3, name=name)(x)


def head(x):
    return nn.Dense(10, name="fc")(x.mean((1, 2)))


class ResNet18(nn.Module):
    """`models.networks.resnet.resnet18`."""

    width: int
    blocks: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        x = nn.relu(norm("bn1", convolution("conv1", x, self.width, 7, 2)))
        for stage, count in enumerate(self.blocks, 1):
            for i in range(count):
                name, features = f"basicblock_{stage}_basic_{i}", self.width * 2 ** (stage - 1)
                stride = 2 if stage > 1 and i == 0 else 1
                y = nn.relu(norm(f"{name}_bn1", convolution(f"{name}_conv1", x, features, 3, stride)))
                y = norm(f"{name}_bn2", convolution(f"{name}_conv2", y, features, 3))
                if stride != 1:
                    x = norm(f"{name}_bn3", convolution(f"{name}_downsample", x, features, 1, stride))
                x = nn.relu(y + x)
        return head(x)


class EffNet(nn.Module):
    """`models.networks.effnet.effnet`."""

    width: int
    blocks: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        def scaled(channels):
            return max(1, channels * self.width // 32)

        x = nn.swish(norm("bn1", convolution("conv1", x, self.width, 3, 2, bias=False)))
        for stage, ((channels, expansion, size, stride), count) in enumerate(zip(STAGES, self.blocks, strict=True), 1):
            for i in range(count):
                name, expanded = f"block{stage}_mbconv_{i}", x.shape[-1] * expansion
                y = nn.swish(norm(f"{name}_bn1", convolution(f"{name}_conv1", x, expanded, 1, bias=False)))
                y = nn.Conv(
                    expanded,
                    (size, size),
                    1 if i else stride,
                    padding="SAME",
                    feature_group_count=expanded,
                    use_bias=False,
                    name=f"{name}_dwconv",
                )(y)
                y = norm(f"{name}_bn2", y)
                gate = y.mean((1, 2), keepdims=True)
                gate = nn.swish(convolution(f"{name}_se_reduce_conv", gate, max(1, expanded // 4), 1))
                gate = nn.sigmoid(convolution(f"{name}_se_expand_conv", gate, expanded, 1))
                y = convolution(f"{name}_conv2", nn.swish(y * gate), scaled(channels), 1, bias=False)
                y = norm(f"{name}_bn3", y)
                x = x + y if i else y
        return head(nn.swish(norm("bn2", convolution("conv2", x, scaled(HEAD), 1, bias=False))))


class DenseNet(nn.Module):
    """`models.networks.densenet.densenet`."""

    width: int
    blocks: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        growth = max(1, self.width // 2)
        x = nn.relu(norm("densenet_bn", convolution("densenet_conv", x, self.width, 7, 2)))
        x = convolution("densenet_conv_p", x, self.width, 3, 2)
        for stage, count in enumerate(self.blocks, 1):
            if stage > 1:
                name, features = f"densenet_transition_{stage - 1}", x.shape[-1] // 2
                x = convolution(f"{name}_conv", nn.relu(norm(f"{name}_bn", x)), features, 1)
                x = convolution(f"{name}_conv_p", x, features, 3, 2)
            for i in range(count):
                name = f"densenet_dense_block_{stage}_bottleneck_{i}"
                y = convolution(f"{name}_conv1", nn.relu(norm(f"{name}_bn1", x)), 4 * growth, 1)
                y = convolution(f"{name}_conv2", nn.relu(norm(f"{name}_bn2", y)), growth, 3)
                x = jnp.concatenate([x, y], axis=-1)
        return head(x)


class Standardised(nn.Module):
    """`models.layers.standardisation.standardised_convolution`."""

    features: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        shape = (self.size, self.size, x.shape[-1], self.features)
        w = self.param("kernel", nn.initializers.lecun_normal(), shape)
        gain = self.param("gain", nn.initializers.ones, (self.features,))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        centred = w - w.mean((0, 1, 2))
        kernel = centred * gain * jax.lax.rsqrt(jnp.maximum((centred**2).sum((0, 1, 2)), 1e-4))
        layout, strides = ("NHWC", "HWIO", "NHWC"), (self.stride, self.stride)
        return jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=layout) + bias


class SkipGain(nn.Module):
    """`models.layers.gain.skip_gain`."""

    @nn.compact
    def __call__(self, x):
        return x * self.param("skip_gain", nn.initializers.zeros, ())


class NFNet(nn.Module):
    """`models.networks.nfnet.nfnet` with two blocks per stage."""

    width: int
    blocks: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        def activated(x, deviation=1.0):
            return nn.relu(x) * (VARIANCE_KEPT / deviation)

        x = Standardised(self.width, 3, 2, name="NF_ResNet_init_conv")(x)
        variance, numbers = 1.0, itertools.count()
        for stage, count in enumerate(self.blocks):
            for i in range(count):
                name, features = f"NF_ResNet_block_{next(numbers)}", 4 * self.width * 2**stage
                stride = 2 if stage > 0 and i == 0 else 1
                out = activated(x, math.sqrt(variance))
                y = activated(Standardised(features // 4, 1, name=f"{name}_conv0")(out))
                y = activated(Standardised(features // 4, 3, stride, name=f"{name}_conv1")(y))
                y = SkipGain(name=name)(Standardised(features, 1, name=f"{name}_conv2")(y))
                x = y + (x if i else Standardised(features, 1, stride, name=f"{name}_conv_shortcut")(out))
                variance = (variance if i else 1.0) + 1
        return head(activated(x))


NETWORKS = {"resnet18": ResNet18, "effnet": EffNet, "densenet": DenseNet, "nfnet": NFNet}


def make_network(workload) -> nn.Module:
    """The Linen network of a workload."""
    return NETWORKS[workload.network](workload.width, workload.blocks)


def to_linen(params):
    """Our parameters in Linen's form: norms have `scale` and `bias`, and depthwise kernels are [k,k,1,C]."""
    return _renamed(params, {"gamma": "scale", "beta": "bias"})


def from_linen(params):
    """The inverse of `to_linen`."""
    norms = {layer for layer, named in params.items() if "scale" in named}
    theirs = {layer: named for layer, named in params.items() if layer in norms}
    ours = {layer: named for layer, named in params.items() if layer not in norms}
    return _renamed(theirs, {"scale": "gamma", "bias": "beta"}) | _renamed(ours, {})


def _renamed(params, names):
    def array(layer, value):
        return value.swapaxes(2, 3) if layer.endswith("_dwconv") else value

    return {
        layer: {names.get(name, name): array(layer, value) for name, value in named.items()}
        for layer, named in params.items()
    }
