"""How a recurrent layer is cut into programs on a GPU."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from noisyact.ops.recurrent.gpu.plan import (
    backward_plan,
    backward_sizes,
    forward_plan,
    forward_sizes,
    padded_size,
    slice_size,
)
from noisyact.ops.recurrent.types import GATES

REGISTERS = 2**18
"""The bytes of the registers of a multiprocessor."""
SHARED = 227 * 2**10
"""The bytes of shared memory that a program can have there."""


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(GATES)), st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([2, 4, 8]),
    st.integers(0, 200), st.sampled_from([forward_plan, backward_plan]),
)  # fmt: skip
@example("lstm", 20, 1500, 4, 132, backward_plan)
@example("lstm", 1000, 64, 4, 132, backward_plan)
@example("gru", 20, 200, 2, 132, forward_plan)
@example("lstm", 512, 256, 4, 132, backward_plan)
@example("gru", 1000, 65, 4, 132, backward_plan)
@example("rnn_tanh", 40, 1000, 4, 132, backward_plan)
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
    if plan.resident and not plan.alone:
        assert inner <= plan.depth * (plan.slices if choose is forward_plan else 1)
        lines = plan.units * (4 if choose is forward_plan and GATES[kind] > 1 else 1)
        assert plan.slices * plan.depth * (plan.rows + lines) * size <= SHARED
    if plan.alone:
        assert plan.programs(hidden) == 1
        gates = 4 if GATES[kind] > 1 else 1
        assert gates * plan.units * plan.depth * size <= REGISTERS / 2


def test_a_team_shares_the_products_of_large_layers_and_small_ones_need_no_other_program():
    assert [backward_plan("lstm", 20, hidden, 4, 132).team for hidden in (200, 1500)] == [1, 4]
    for plan in (forward_plan, backward_plan):
        assert [plan("gru", 20, hidden, 4, 132).alone for hidden in (1, 32, 33)] == [True, True, False]
        assert [plan("gru", 200, hidden, 4, 132).alone for hidden in (33, 64, 65)] == [True, True, False]
        assert [plan("gru", 200, hidden, 2, 132).alone for hidden in (64, 65)] == [True, False]
        assert [plan(kind, 20, 128, 2, 132).alone for kind in ("gru", "lstm", "rnn_tanh")] == [False, False, True]
        assert plan("rnn_tanh", 200, 128, 2, 132).warps == 8
        assert not plan("gru", 10_000, 64, 4, 132).alone


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(GATES)), st.integers(1, 100_000), st.integers(1, 500), st.integers(1, 1000),
    st.sampled_from([2, 4]),
)  # fmt: skip
@example("lstm", 128, 16, 128, 4)
@example("lstm", 100_000, 16, 128, 4)
@example("gru", 20, 20, 200, 2)
def test_the_exchange_holds_its_counters_and_slots_and_stays_small(kind, steps, batch, hidden, size):
    for choose, sizes_of in ((forward_plan, forward_sizes), (backward_plan, backward_sizes)):
        plan = choose(kind, batch, hidden, size, 132)
        kinds = () if choose is forward_plan else (kind,)
        sizes = sizes_of(plan, *kinds, steps, batch, hidden, size)
        gates = 1 if choose is forward_plan else GATES[kind]
        slot = sizes.blocks * plan.rows * gates * sizes.padded * size
        slots = steps + 1 if sizes.by_value else 0 if plan.alone else 2
        assert 4 * sizes.exchange >= 4 * sizes.counters + slots * slot
        assert sizes.counters >= sizes.blocks + 1
        assert sizes.counters % 32 == sizes.exchange % 32 == 0
        assert 4 * sizes.exchange <= 2**24 + 2 * slot + 2**20
        assert plan.resident or not sizes.by_value


def test_small_layers_that_exchange_wait_for_values():
    def by_value(steps, batch, hidden):
        forward, backward = (plan("lstm", batch, hidden, 4, 132) for plan in (forward_plan, backward_plan))
        sizes = (
            forward_sizes(forward, steps, batch, hidden, 4),
            backward_sizes(backward, "lstm", steps, batch, hidden, 4),
        )
        return [own.by_value for own in sizes]

    assert by_value(128, 16, 128) == [True, True]
    assert by_value(20, 20, 200) == [False, False]
    assert by_value(20, 20, 32) == [False, False]  # a program needs no other
    assert by_value(20, 20, 300) == [False, False]
    assert by_value(1_000, 16, 128) == [True, False]
    assert by_value(4_000, 16, 128) == [False, False]  # the slots of all steps would need too much memory
