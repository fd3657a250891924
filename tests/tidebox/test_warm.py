"""After warming up no request waits for the compiler."""

from tidebox import kernels, raw_kernels
from tidebox.warm import warm_up


def test_every_loop_of_a_scan_is_compiled():
    warm_up()
    used = [kernels.parse, kernels.choose_changes, kernels.choose_visible, kernels.sizes, kernels.encode]
    used += [kernels.match_long, raw_kernels.parse, raw_kernels.choose_changes, raw_kernels.choose_live]
    used += [raw_kernels.sizes, raw_kernels.encode]
    assert all(loop.signatures for loop in used)
