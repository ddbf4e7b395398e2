from stochseg.cli.app import main

main()
