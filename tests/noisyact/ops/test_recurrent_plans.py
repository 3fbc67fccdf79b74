"""How a recurrent layer is cut into programs on a GPU."""

import pytest

from noisyact.ops.recurrent.gpu.plan import backward_plan, forward_plan, padded_size, slice_size
from noisyact.ops.recurrent.types import GATES


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_plans_cover_the_layer_and_fit_the_device(kind):
    processors, teams = 132, set()
    for batch in (1, 20, 64, 128):
        for hidden in (1, 200, 257, 650, 1024, 1500, 2500):
            for size in (2, 4):
                for choose in (forward_plan, backward_plan):
                    plan = choose.__wrapped__(kind, batch, hidden, size, processors)
                    padded = padded_size(hidden, plan)
                    inner = padded
                    if choose is backward_plan:
                        inner = slice_size(kind, padded, plan)
                        assert inner * plan.slices * plan.team >= GATES[kind] * padded
                    assert hidden <= plan.programs(hidden) * plan.units <= padded
                    assert plan.programs(hidden) % plan.team == 0
                    assert not plan.persistent or plan.programs(hidden) * plan.blocks(batch) <= processors
                    assert plan.persistent or plan.team == 1
                    assert inner % plan.depth == 0 or plan.resident
                    teams.add(plan.team)
    assert teams == {1, 4}
