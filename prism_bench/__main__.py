"""``python -m prism_bench``"""

from prism_bench.cli import main

main()
