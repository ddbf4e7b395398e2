from stochseg.cli import main

main()
