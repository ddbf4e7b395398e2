"""Run the program with `python -m stochseg`."""

from stochseg.cli.app import main

main()
