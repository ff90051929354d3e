"""A JAX model whose parameters and 8-bit optimizer states are libmemopt's: JAX reads the parameters through DLPack,
without a copy, and gives gradients the same way."""
import jax
import jax.numpy as jnp
import memopt
import numpy as np

device = memopt.Device("cpu")
allocator = memopt.Allocator(device)
shapes = [(64, 128), (128, 8)]
blocks = [allocator.alloc(4 * rows * columns) for rows, columns in shapes]
parameters = [block.tensor("f32", shape) for block, shape in zip(blocks, shapes)]
rng = np.random.default_rng(0)
for parameter in parameters:
    np.asarray(parameter.as_memoryview())[:] = rng.normal(0, 0.1, parameter.shape)
optimizer = memopt.AdamW8bit(allocator, parameters, lr=1e-2)


def loss_of(weights, x, y):
    return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)


step = jax.jit(jax.value_and_grad(loss_of))
x, y = jnp.asarray(rng.normal(size=(256, 64)), jnp.float32), jnp.asarray(rng.normal(size=(256, 8)), jnp.float32)
for number in range(50):
    weights = [jax.dlpack.from_dlpack(parameter) for parameter in parameters]
    assert all(w.unsafe_buffer_pointer() == p.pointer for w, p in zip(weights, parameters))  # no copy
    loss, gradients = step(weights, x, y)
    jax.block_until_ready(gradients)
    optimizer.step(gradients)
    if number % 49 == 0:
        print("step %d: loss %.4f" % (number, loss))
