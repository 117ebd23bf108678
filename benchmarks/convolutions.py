"""Every convolution of ResNet-18: the formulation chosen for its shape, compared with `lax.conv_general_dilated`.

This is the measurement behind the rules in models/formulations.py.  Both contestants are compiled with the options of
the training step.  There is no bound: a ratio above 1 shows a rule that could be better.
"""

import functools
import unittest.mock

import jax
import numpy as np
import pairs


def shapes(width):
    """Name, height, input channels, output channels, kernel size and stride of each distinct convolution."""
    yield "stem", 32, 3, width, 7, 2
    yield "stage 1", 16, width, width, 3, 1
    for stage, size in ((2, 16), (3, 8), (4, 4)):
        channels = width * 2 ** (stage - 1)
        yield f"stage {stage}, first", size, channels // 2, channels, 3, 2
        yield f"stage {stage}, downsample", size, channels // 2, channels, 1, 2
        yield f"stage {stage}", size // 2, channels, channels, 3, 1


def main():
    options = pairs.parse(__doc__)
    width = options.width or 64
    found = pairs.start(options)
    pairs.show_machine(found)

    from fault_injection.explicit.mesh import compiler_options
    from fault_injection.models import formulations

    random = np.random.default_rng(0)
    claims, everything, options_of_xla = [], {}, compiler_options()
    for name, size, inputs, outputs, k, stride in shapes(width):
        padding = formulations.same_padding((size, size), (k, k), stride)
        batch, out = options.batch_size, size // stride
        x = jax.device_put(random.standard_normal((batch, size, size, inputs), np.float32))
        kernel = jax.device_put(random.standard_normal((k, k, inputs, outputs), np.float32))
        dy = jax.device_put(random.standard_normal((batch, out, out, outputs), np.float32))
        operations = {
            "forward": (lambda x, w: formulations.fast_convolution(x, w, stride, padding), x, kernel),  # noqa: B023
            "grad_in": (
                lambda dy, w: formulations.input_gradient(dy, w, stride, padding, x.shape),  # noqa: B023
                dy,
                kernel,
            ),
            "grad_wt": (
                lambda x, dy: formulations.weight_gradient(x, dy, stride, padding, k),  # noqa: B023
                x,
                dy,
            ),
        }
        for operation, (function, *operands) in operations.items():
            contestants = {}
            for label, backend in (("chosen", "cpu"), ("convolution", "another")):
                jax.clear_caches()
                with unittest.mock.patch.object(jax, "default_backend", lambda: backend):  # noqa: B023
                    compiled = jax.jit(function, compiler_options=options_of_xla).lower(*operands).compile()
                contestants[label] = functools.partial(compiled, *operands)
            seconds = pairs.alternate(contestants, options.pairs)
            what = f"{name}, {operation}"
            everything |= {f"{what}, {label}": values for label, values in seconds.items()}
            ratios = seconds["chosen"] / seconds["convolution"]
            milliseconds = 1e3 * np.median(seconds["chosen"])
            claims.append(pairs.claim(f"{what}, width {width} ({milliseconds:.2f} ms), ratio", ratios, None))
    pairs.write(options, found, claims, seconds=everything)


if __name__ == "__main__":
    main()
