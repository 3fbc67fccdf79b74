"""phi(x, xi) for a pair of four numbers, forward and backward, with noise from a seed."""

from noisyact.ops.activation.op import has_kernel as has_kernel
from noisyact.ops.activation.op import noisy_activation as noisy_activation
