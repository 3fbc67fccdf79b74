"""How a recurrent layer is cut into programs on a GPU."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from noisyact.ops.recurrent.gpu.plan import backward_plan, forward_plan, padded_size, slice_size
from noisyact.ops.recurrent.types import GATES

REGISTERS = 2**18
"""The bytes of the registers of a multiprocessor."""


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(GATES)), st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([2, 4, 8]),
    st.integers(0, 200), st.sampled_from([forward_plan, backward_plan]),
)  # fmt: skip
@example("lstm", 20, 1500, 4, 132, backward_plan)
@example("lstm", 1000, 64, 4, 132, backward_plan)
@example("gru", 20, 200, 2, 132, forward_plan)
def test_plans_cover_the_layer_and_fit_the_device(kind, batch, hidden, size, processors, choose):
    plan = choose(kind, batch, hidden, size, processors)
    padded = padded_size(hidden, plan)
    inner = padded
    if choose is backward_plan:
        inner = slice_size(kind, padded, plan)
        assert inner * plan.slices * plan.team >= GATES[kind] * padded
    assert hidden <= plan.programs(hidden) * plan.units <= padded
    assert plan.programs(hidden) % plan.team == 0
    assert not plan.persistent or plan.programs(hidden) * plan.blocks(batch) <= processors
    assert plan.persistent or (plan.team == 1 and not plan.alone)
    assert not plan.persistent or size < 8
    assert inner % plan.depth == 0 or plan.resident
    if plan.alone:
        assert plan.programs(hidden) == 1
        gates = 4 if GATES[kind] > 1 else 1
        assert gates * plan.units * plan.depth * size <= REGISTERS / 2


def test_a_team_shares_the_products_of_large_layers_and_small_ones_need_no_other_program():
    assert [backward_plan("lstm", 20, hidden, 4, 132).team for hidden in (200, 1500)] == [1, 4]
    for plan in (forward_plan, backward_plan):
        assert [plan("gru", 20, hidden, 4, 132).alone for hidden in (1, 64, 65)] == [True, True, False]
        assert [plan("gru", 200, hidden, 2, 132).alone for hidden in (128, 129)] == [True, False]
        assert [plan(kind, 20, 128, 2, 132).alone for kind in ("gru", "lstm", "rnn_tanh")] == [False, False, True]
        assert plan("lstm", 200, 128, 2, 132).warps == 8
        assert not plan("gru", 10_000, 64, 4, 132).alone
