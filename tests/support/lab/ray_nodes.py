"""A Ray cluster of two nodes with a core each, on this machine: python tests/support/lab/ray_nodes.py

Prints its address. Reads commands: `kill` removes the second node without notice, and end of input stops the cluster.
"""

import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray.cluster_utils import Cluster

SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
# A silent node counts as lost after some seconds instead of half a minute.
SOON = {"health_check_period_ms": 500, "health_check_timeout_ms": 3000}


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "_system_config": SOON})
    second = cluster.add_node(**SMALL)
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        assert line == "kill\n", line
        cluster.remove_node(second, allow_graceful=False)
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
