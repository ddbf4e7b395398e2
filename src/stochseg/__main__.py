"""Run the program with `python -m stochseg`."""

from stochseg.cli.app import main

if __name__ == "__main__":  # processes that the command starts import this module
    main()
