"""`python -m divtrace`: the command line without its script."""

from divtrace.commands.main import main

main()
