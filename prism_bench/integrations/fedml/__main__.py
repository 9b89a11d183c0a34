"""``python -m prism_bench.integrations.fedml --cf fedml_config.yaml``, with the options of FedML's own scripts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prism_bench.base.errors import BadInput
from prism_bench.cli.fedml import start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m prism_bench.integrations.fedml", description=__doc__)
    parser.add_argument("--cf", "--yaml_config_file", type=Path, required=True, help="FedML's configuration file")
    parser.add_argument("--rank", type=int, default=0, help="of this process in a cross-silo job; 0 is the server")
    parser.add_argument("--role", choices=("server", "client"), help="in a cross-silo job; follows from the rank")
    parser.add_argument("--run_id", help="taken as FedML's scripts do, and not used")
    parser.add_argument("--out", type=Path, help="folder for the results (default: results/EXPERIMENT)")
    options = parser.parse_args()
    try:
        code = start(options.cf, options.rank, options.role, options.out)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
