"""Writing new weights into a model in place, bucket by bucket.

Names are those of the model's state dict. A tied output layer may be sent or left out. An update that ends without
some of the weights is an error: the model would be a mixture of two versions and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from datapm_rl.errors import UserError


class WeightUpdate:
    """The state of an update: which weights have been written since the last complete one."""

    def __init__(self, model: torch.nn.Module):
        self._targets = {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}
        self._seen: set[int] = set()

    @property
    def partial(self) -> bool:
        """Whether some weights are new and others are not."""
        return bool(self._seen)

    def write(self, named: Mapping[str, torch.Tensor | np.ndarray], last: bool) -> None:
        """Write one bucket; nothing of it when a name or a shape is wrong. `last` checks that none is missing.

        Raises `UserError` that names the first wrong or missing weight.
        """
        for name, value in named.items():
            if name not in self._targets:
                raise UserError(
                    f"the weight update holds {name!r}, which the rollout model does not have; "
                    f"its names look like {next(iter(self._targets))!r}"
                )
            if tuple(value.shape) != tuple(self._targets[name].shape):
                raise UserError(
                    f"the weight update holds {name!r} with shape {tuple(value.shape)}, "
                    f"the rollout model has {tuple(self._targets[name].shape)}"
                )
        for name, value in named.items():
            target = self._targets[name]
            if isinstance(value, np.ndarray):  # arrays out of Ray's store are read-only, which torch does not take
                value = torch.from_numpy(value if value.flags.writeable else value.copy())
            target.copy_(value)
            self._seen.add(target.data_ptr())
        if last:
            missing = [name for name, target in self._targets.items() if target.data_ptr() not in self._seen]
            if missing:
                raise UserError(f"the weight update ended without {missing[0]!r} ({len(missing)} missing in all)")
            self._seen.clear()
